"""Figures as short text. A figure that is not known is a dash, never 0. Memory is in GiB, as GPUs count it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ostinatod.tui.view.symbols import Symbols

_GIB = 1024**3
_MIB = 1024**2


def gib(size: float | None, symbols: Symbols) -> str:
    """Bytes as 22.1 GiB or 151 MiB."""
    if size is None:
        return symbols.missing
    if abs(size) < 0.95 * _GIB:
        return f"{size / _MIB:.0f} MiB"
    return f"{size / _GIB:.1f} GiB" if size < 999 * _GIB else f"{size / _GIB / 1024:.1f} TiB"


def in_gib(size: int) -> str:
    """Bytes in GiB where the unit stands elsewhere: 22.1, and 0.014 where one digit would show nothing."""
    return f"{size / _GIB:.{3 if 0 < size < _GIB / 10 else 1}f}"


def file_size(size: int, done: int | None = None) -> str:
    """Bytes of files as hubs and disks count them: 142.0 GB, 38 MB; with a part that is done, 18.2/142.0 GB."""
    scale, unit, digits = (1e9, "GB", 1) if size >= 1e9 else (1e6, "MB", 0)
    part = "" if done is None else f"{done / scale:.{digits}f}/"
    return f"{part}{size / scale:.{digits}f} {unit}"


def ms(value: float | None, symbols: Symbols) -> str:
    """Milliseconds as 8.4 ms, 812 ms, 3.2 s or 2 m 05 s."""
    if value is None:
        return symbols.missing
    if value < 9.95:
        return f"{value:.1f} ms"
    if value < 999.5:
        return f"{value:.0f} ms"
    if value < 99_950:
        return f"{value / 1000:.1f} s"
    minutes, seconds = divmod(round(value / 1000), 60)
    return f"{minutes} m {seconds:02d} s"


def share(value: float | None, symbols: Symbols) -> str:
    """0 to 1 as 84.1 %."""
    return symbols.missing if value is None else f"{100 * value:.1f} %"


def points(value: float | None, symbols: Symbols) -> str:
    """A difference of shares as +2.1 points."""
    return symbols.missing if value is None else f"{100 * value:+.1f} pt"


def count(value: float | None, symbols: Symbols) -> str:
    """1234567 as 1.23M, 61234 as 61.2k; below ten thousand in full."""
    if value is None:
        return symbols.missing
    for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= scale:
            return f"{value / (1e3 if letter == 'k' else scale):.3g}{letter}"
    return f"{value:,.0f}"


def counted(value: int | None, noun: str, symbols: Symbols) -> str:
    """A number of things: 1 token, 61.2k tokens."""
    return f"{count(value, symbols)} {noun}{'' if value == 1 else 's'}"


def exact(value: int | None, symbols: Symbols) -> str:
    """1234567 as 1,234,567."""
    return symbols.missing if value is None else f"{value:,}"


def decimal(value: float | None, symbols: Symbols, digits: int = 2) -> str:
    """A plain number."""
    return symbols.missing if value is None else f"{value:.{digits}f}"


def length(seconds: float | None, symbols: Symbols) -> str:
    """A time span in its two largest units: 42 s, 5 m 10 s, 3 h 12 m, 2 d 4 h."""
    if seconds is None:
        return symbols.missing
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(at_s: float | None, now_s: float, symbols: Symbols) -> str:
    """How long ago, in its largest unit: now, 42 s, 5 m, 3 h, 2 d."""
    if at_s is None:
        return symbols.missing
    whole = max(0, int(now_s - at_s))
    if whole < 2:
        return "now"
    for unit, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= unit:
            return f"{whole // unit} {letter}"
    return f"{whole} s"


def percentile(values: Sequence[float], share_below: float) -> float | None:
    """The value below which that share of `values` lies, between neighbours in proportion; None of no values."""
    return float(np.quantile(np.asarray(values, dtype=float), share_below)) if values else None
