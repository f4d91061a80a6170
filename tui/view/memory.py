"""Memory by use: every GPU as the engine accounts for it, and this machine's RAM and CPU."""

from __future__ import annotations

from collections.abc import Sequence

from ostinatod.client_dashboard_values import DeviceMemory, ModelState
from ostinatod.client_values import Json
from ostinatod.tui.view.charts import meter, stacked
from ostinatod.tui.view.empty import key_hint, sentence, unreachable
from ostinatod.tui.view.figures import exact, gib
from ostinatod.tui.view.lines import EMPTY, Line, Span, ends, fit, line, mark, span, width_of
from ostinatod.tui.view.state import View
from ostinatod.tui.view.symbols import USES, Symbols

_LABEL = 6
_AMOUNT = 12
_COLUMN = 6
_WORDS = {"kv": "KV", "compute": "comp", "margin": "marg", "borrowed": "lent"}
_LONG_WORDS = {"kv": "KV", "other": "other programs", "rest": "not told"}

Parts = tuple[tuple[str, int], ...]


def memory_lines(view: View, width: int, height: int) -> list[Line]:
    """A bar per device, what its parts are, then RAM and CPU."""
    if (told := unreachable(view, width)) is not None:
        return [*told, EMPTY, *_host(view, width)] if view.host.is_daemons else told
    models = view.reading.daemon.models if view.reading else ()
    devices = [device for model in models for device in model.devices]
    tail = [*_pools(models, view.symbols, width), *_host(view, width)]
    if not devices:
        lines = _no_devices(view, width)
        return [*lines, *([EMPTY] if height > len(lines) + len(tail) else []), *tail]
    parts = [parts_of(device) for device in devices]
    in_full = _in_full(devices, parts, view.symbols, width)
    if len(in_full) + len(tail) <= height:
        return [*in_full, *tail]
    bars = [_bar_row(at, device, parts[at], view.symbols, width) for at, device in enumerate(devices)]
    table = _figures(parts, view.symbols, width)
    if not table or height < len(bars) + len(table) + len(tail):
        table = _legend([(use, 0) for use, _ in parts[0]], view.symbols, width, amounts=False)[:1]
    return [*bars, *table, *tail]


def parts_of(device: DeviceMemory) -> Parts:
    """What the device's memory is used for, adding up to its size where that is known."""
    used = list(device.used_bytes)
    told = sum(size for _, size in used)
    rest = (device.total_bytes or 0) - told - (device.free_bytes or 0)
    if rest > 0:
        # What neither the engine nor the free memory accounts for belongs to others only where free memory is known.
        used.append(("other" if device.free_bytes is not None else "rest", rest))
    return (*used, ("free", device.free_bytes)) if device.free_bytes is not None else tuple(used)


def _taken(parts: Parts) -> int:
    return sum(size for use, size in parts if use not in ("free", "rest"))


def _bar(parts: Parts, width: int, symbols: Symbols) -> Line:
    total = float(sum(size for _, size in parts))
    return tuple(Span(symbols.uses[use] * cells, f"use_{use}") for use, cells in stacked(parts, total, width))


def _bar_row(at: int, device: DeviceMemory, parts: Parts, symbols: Symbols, width: int) -> Line:
    total = symbols.missing if device.total_bytes is None else f"{device.total_bytes / 1024**3:.1f}"
    amount = f"{_taken(parts) / 1024**3:.1f}/{total}".rjust(_AMOUNT)
    bar = _bar(parts, max(width - _LABEL - _AMOUNT, 4), symbols)
    return fit((mark(f"GPU {at}".ljust(_LABEL), "strong"), *bar, mark(amount)), width, symbols.ellipsis)


def _figures(parts: Sequence[Parts], symbols: Symbols, width: int) -> list[Line]:
    """A column per use and a row per device, in GiB; nothing where they have no room."""
    uses = [use for use in USES if any(use == name for device in parts for name, _ in device)]
    if _LABEL + _COLUMN * len(uses) > width:
        return []
    head = [Span(" " * _LABEL)]
    for use in uses:
        word = _WORDS.get(use, use)
        head += [
            Span(" " * (_COLUMN - len(word) - 1)),
            mark(symbols.uses[use].strip() or " ", f"use_{use}"),
            mark(word, "dim"),
        ]
    rows: list[Line] = [tuple(head)]
    for at, device in enumerate(parts):
        sizes = dict(device)
        cells = (f"{sizes[use] / 1024**3:.1f}" if use in sizes else symbols.missing for use in uses)
        rows.append((mark(f"GPU {at}".ljust(_LABEL), "dim"), *(mark(cell.rjust(_COLUMN)) for cell in cells)))
    return rows


def _in_full(devices: Sequence[DeviceMemory], parts: Sequence[Parts], symbols: Symbols, width: int) -> list[Line]:
    """A name, a bar, every use with its size, and an empty line per device."""
    lines: list[Line] = []
    for at, device in enumerate(devices):
        title = line(mark(f"GPU {at}".ljust(_LABEL), "strong"), span(device.name, "dim"))
        figures = line(
            mark(gib(_taken(parts[at]), symbols), "strong"), mark(f" of {gib(device.total_bytes, symbols)}", "dim")
        )
        lines += [ends(title, figures, width, symbols.ellipsis), _bar(parts[at], width, symbols)]
        lines += [*_legend(parts[at], symbols, width), EMPTY]
    return lines


def _legend(parts: Sequence[tuple[str, int]], symbols: Symbols, width: int, *, amounts: bool = True) -> list[Line]:
    """Every use with its glyph, and its size in GiB, over as many lines as it needs."""
    lines: list[Line] = []
    row: list[Span] = []
    for use, size in parts:
        entry = [mark(symbols.uses[use], f"use_{use}"), mark(f" {_LONG_WORDS.get(use, use)}", "dim")]
        entry += [mark(f" {size / 1024**3:.1f}"), mark("  ")] if amounts else [mark(" ")]
        if row and width_of((*row, *entry)) > width + 2:
            lines.append(tuple(row))
            row = []
        row += entry
    return [*lines, tuple(row)]


def _no_devices(view: View, width: int) -> list[Line]:
    model, reading = view.model, view.reading
    gpus = _profiled_gpus(reading.profile) if reading else ()
    lines: list[Line] = []
    for at, gpu in enumerate(gpus):
        size = gpu.get("memory_bytes") or gpu.get("total_bytes")
        told = gib(size, view.symbols) if isinstance(size, (int, float)) else ""
        title = line(mark(f"GPU {at}".ljust(_LABEL), "strong"), span(gpu.get("name") or "", "dim"))
        lines.append(ends(title, line(mark(told, "dim")), width, view.symbols.ellipsis))
    if model is None:
        return [
            *lines,
            *sentence("No model is loaded, so no engine uses memory.", width),
            key_hint("l", "load a model"),
        ]
    if model.state == "loading":
        return [*lines, *sentence("The engine tells its memory by use once it has loaded.", width)]
    if model.backend == "cpu":
        return [*lines, *sentence("This engine uses no GPU: experts are computed on the CPU.", width)]
    return [*lines, *sentence("The engine does not tell its GPU memory by use.", width)]


def _profiled_gpus(profile: object) -> tuple[Json, ...]:
    found = profile.get("gpus") if isinstance(profile, dict) else None
    return tuple(gpu for gpu in found if isinstance(gpu, dict)) if isinstance(found, list) else ()


def _pools(models: Sequence[ModelState], symbols: Symbols, width: int) -> list[Line]:
    lines = []
    for model in models:
        if model.pool_bytes and not model.devices:
            told = f"{exact(model.hot_experts, symbols)} hot experts"
            row = line(mark(gib(model.pool_bytes, symbols)), mark(f"  {told}", "dim"))
            lines.append(_row("pool", row, symbols, width))
    return lines


def _host(view: View, width: int) -> list[Line]:
    host, symbols = view.host, view.symbols
    if not host.is_daemons:
        reason = "RAM and CPU: the daemon runs on another machine." if view.link.state == "up" else ""
        return [line(mark(row, "faint")) for row in ([reason] if reason else [])]
    bar = max(width - _LABEL - _AMOUNT, 4)
    used = None
    if host.ram_total_bytes and host.ram_available_bytes is not None:
        used = host.ram_total_bytes - host.ram_available_bytes
    share = used / host.ram_total_bytes if used is not None and host.ram_total_bytes else None
    ram = symbols.missing if used is None else f"{used / 1024**3:.1f}/{(host.ram_total_bytes or 0) / 1024**3:.0f}"
    cpu = symbols.missing if host.cpu is None else f"{100 * host.cpu:.0f} %"
    lines = [
        _row("RAM", (*meter(share, bar, symbols, "use_ram"), mark(ram.rjust(_AMOUNT))), symbols, width),
        _row("CPU", (*meter(host.cpu, bar, symbols, "use_cpu"), mark(cpu.rjust(_AMOUNT))), symbols, width),
    ]
    models = view.reading.daemon.models if view.reading else ()
    resident = [model.rss_bytes for model in models if model.rss_bytes]
    if resident:
        told = f"engines keep {gib(sum(resident), symbols)} resident, {exact(host.cores, symbols)} cores"
        lines.append(_row("", line(mark(told, "dim")), symbols, width))
    return lines


def _row(label: str, rest: Line, symbols: Symbols, width: int) -> Line:
    return fit((mark(label.ljust(_LABEL), "strong"), *rest), width, symbols.ellipsis)


def memory_subtitle(view: View) -> str:
    """The unit."""
    return "GiB"
