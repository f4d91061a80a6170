"""Memory by use: every GPU as the engine accounts for it, and this machine's RAM and CPU."""

from __future__ import annotations

from collections.abc import Sequence

from ostinatod.client_dashboard_values import DeviceMemory, ModelState
from ostinatod.client_json import Json
from ostinatod.tui.view.charts import meter, stacked
from ostinatod.tui.view.empty import key_hint, sentence, unreachable
from ostinatod.tui.view.figures import exact, gib, in_gib
from ostinatod.tui.view.lines import EMPTY, Line, Span, ends, fit, line, mark, span, width_of
from ostinatod.tui.view.state import View
from ostinatod.tui.view.symbols import USES, Symbols

_LABEL = 6
_AMOUNT = 12
_WORDS = {"kv": "KV", "compute": "comp", "margin": "marg", "borrowed": "lent", "staging": "stage"}
_LONG_WORDS = {"kv": "KV", "other": "other programs", "rest": "not told"}
_RARE = ("borrowed", "staging", "margin", "other", "rest")
"""Uses that are named only while there are any."""

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
    in_full = _in_full(devices, parts, view, width)
    if len(in_full) + len(tail) <= height:
        return [*in_full, *tail]
    bars = [_bar_row(at, device, parts[at], view.symbols, width) for at, device in enumerate(devices)]
    room = max(height - len(bars) - len(tail), 1)
    table = _figures(parts, view.symbols, width)
    if not table or len(table) > room:
        table = _sums(parts, view.symbols, width, room)
    return [*bars, *table, *tail]


def parts_of(device: DeviceMemory) -> Parts:
    """What the device's memory is used for, adding up to its size where that is known."""
    used = [(use, size) for use, size in device.used_bytes if size or use not in _RARE]
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
    words = [_WORDS.get(use, use) for use in uses]
    columns = [max(len(word) + 2, 6) for word in words]
    if _LABEL + sum(columns) > width:
        return []
    head = [Span(" " * _LABEL)]
    for use, word, column in zip(uses, words, columns, strict=True):
        glyph = mark(symbols.uses[use].strip() or " ", f"use_{use}")
        head += [Span(" " * (column - len(word) - 1)), glyph, mark(word, "dim")]
    rows: list[Line] = [tuple(head)]
    for at, device in enumerate(parts):
        sizes = dict(device)
        cells = (in_gib(sizes[use]) if use in sizes else symbols.missing for use in uses)
        told = (mark(cell.rjust(column)) for cell, column in zip(cells, columns, strict=True))
        rows.append((mark(f"GPU {at}".ljust(_LABEL), "dim"), *told))
    return rows


def _sums(parts: Sequence[Parts], symbols: Symbols, width: int, room: int) -> list[Line]:
    """Every use of all devices together; the largest ones where there is no room for all."""
    sums = {use: sum(size for device in parts for name, size in device if name == use) for use in USES}
    told = [(use, size) for use, size in sums.items() if any(use == name for device in parts for name, _ in device)]
    label = mark("all" if len(parts) > 1 else "", "dim")
    lines = _legend(told, symbols, width - _LABEL)
    if len(lines) > room:
        told.sort(key=lambda use: -use[1])
        lines = _legend(told, symbols, width - _LABEL)[:room]
    return [_row(label.text if at == 0 else "", entry, symbols, width) for at, entry in enumerate(lines)]


def _in_full(devices: Sequence[DeviceMemory], parts: Sequence[Parts], view: View, width: int) -> list[Line]:
    """A name, a bar, every use with its size, and an empty line per device."""
    symbols, lines = view.symbols, list[Line]()
    gpus = _profiled_gpus(view.reading.profile) if view.reading else ()
    # An engine calls its devices CUDA0, CUDA1, ...; what they are only the profile of the machine knows.
    known = [str(gpu.get("name") or "") for gpu in gpus] if len(gpus) == len(devices) else []
    for at, device in enumerate(devices):
        name = known[at] if known and known[at] else device.name
        title = line(mark(f"GPU {at}".ljust(_LABEL), "strong"), span(name, "dim"))
        figures = line(
            mark(gib(_taken(parts[at]), symbols), "strong"), mark(f" of {gib(device.total_bytes, symbols)}", "dim")
        )
        lines += [ends(title, figures, width, symbols.ellipsis), _bar(parts[at], width, symbols)]
        lines += _legend(parts[at], symbols, width)
        if device.pool_used_bytes is not None and device.pool_used_bytes < dict(parts[at]).get("pool", 0):
            lines.append(line(mark(f"{gib(device.pool_used_bytes, symbols)} of the pool hold experts", "dim")))
        lines.append(EMPTY)
    return lines


def _legend(parts: Sequence[tuple[str, int]], symbols: Symbols, width: int) -> list[Line]:
    """Every use with its glyph, and its size in GiB, over as many lines as it needs."""
    lines: list[Line] = []
    row: list[Span] = []
    for use, size in parts:
        entry = [mark(symbols.uses[use], f"use_{use}"), mark(f" {_LONG_WORDS.get(use, use)}", "dim")]
        entry += [mark(f" {in_gib(size)}"), mark("  ")]
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
        lines += sentence("No GPU: experts are on the CPU.", width)
        return [*lines, *_host_uses(model, view.symbols, width)]
    return [*lines, *sentence("The engine does not tell its GPU memory by use.", width)]


def _host_uses(model: ModelState, symbols: Symbols, width: int) -> list[Line]:
    """What the engine uses host memory for, as much as there is room for."""
    told = [f"  {_LONG_WORDS.get(use, use)} {gib(size, symbols)}" for use, size in model.host_bytes]
    while len("".join(told)) > width and len(told) > 1:
        told.pop()
    return [fit(line(mark("".join(told))), width, symbols.ellipsis)] if told else []


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
    told = _engines(models, symbols, width - _LABEL)
    return [*lines, _row("", line(mark(told, "dim")), symbols, width)] if told else lines


def _engines(models: Sequence[ModelState], symbols: Symbols, width: int) -> str:
    """What engines keep in host memory, as exactly as there is room for."""
    resident = sum(model.rss_bytes or 0 for model in models)
    if not resident:
        return ""
    brief = f"engines: {gib(resident, symbols)} resident"
    weights = sum(size for model in models for use, size in model.host_bytes if use == "weights")
    full = f"{brief}, {gib(weights, symbols)} weights" if weights else brief
    return full if len(full) <= width else brief


def _row(label: str, rest: Line, symbols: Symbols, width: int) -> Line:
    return fit((mark(label.ljust(_LABEL), "strong"), *rest), width, symbols.ellipsis)


def memory_subtitle(view: View) -> str:
    """The unit, and the cores that the share of the CPU is of."""
    cores = view.host.cores if view.host.is_daemons else None
    return f"GiB, {cores} cores" if cores else "GiB"
