"""`ostinato profile`: what this machine is, and what it was measured to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from ostinatod import locations
from ostinatod.cli.context import json_option
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import human_bytes, section


@click.command()
@click.option("--refresh", is_flag=True, help="Measure again, also if nothing has changed.")
@json_option
def profile(refresh: bool, as_json: bool) -> None:
    """Show GPUs, processors and memory of this machine, as measured.

    The measurements are kept until hardware, limits or driver change. No daemon is needed.
    """
    from ostinatod.errors import PlanUnavailable
    from ostinatod.learning.files import LearningFiles, known_calibrations
    from ostinatod.machine.profile import machine_profile

    found = machine_profile(locations.machine_profile_file(), refresh=refresh)
    files = LearningFiles(locations.learning_file(), locations.residency_dir(), locations.machine_profile_file())
    reason = None
    try:
        found["calibrations"] = known_calibrations(files)
    except PlanUnavailable as error:
        found["calibrations"], reason = [], error
    found["calibrations_reason"] = reason.message if reason else None
    if as_json:
        print_json(found)
    else:
        print_text("\n\n".join(_sections(found)))
    if reason:
        say(str(reason))


def _sections(found: Mapping[str, Any]) -> Iterator[str]:
    for gpu in found["gpus"]:
        yield section(f"GPU {gpu['index']}: {gpu['name']}", _gpu(gpu))
    if found["transfers_reason"]:
        yield section("Transfers", [("not measured", found["transfers_reason"])])
    if not found["gpus"]:
        yield section("GPUs", [("found", "none that NVIDIA's driver tells of")])
    yield section(f"Processor: {found['cpus']['name']}", _cpus(found))
    yield section("Memory", _memory(found["memory"]))
    for item in found["calibrations"]:
        if lines := list(_calibration(item)):
            yield section(f"Engine {item['build'][:12]}, model {item['model'][:12]}", lines)


def _gpu(gpu: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    link = gpu["link"]
    yield "memory", f"{human_bytes(gpu['total_bytes'])}, {human_bytes(gpu['free_bytes'])} free"
    yield "link", f"PCIe {_told(link['max_generation'])} x{_told(link['max_width'])}"
    yield "upload", f"{_speed(gpu['upload_gbps'])} page-locked, {_speed(gpu['upload_pageable_gbps'])} from other memory"
    yield (
        "while busy",
        f"{_speed(gpu['upload_busy_gbps'])}, processors read {_speed(gpu['cpu_read_busy_gbps'])} meanwhile",
    )
    yield "in place", _speed(gpu["in_place_gbps"])
    yield "download", _speed(gpu["download_gbps"])
    yield "driver", gpu["driver"]


def _cpus(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cpus = found["cpus"]
    yield "cores", f"{_told(cpus['physical_cores'])} physical, {cpus['logical_cores']} logical"
    yield "usable", str(found["usable_cores"])
    yield "NUMA nodes", str(len(cpus["numa_nodes"]) or "unknown")
    yield "instructions", " ".join(cpus["instruction_sets"]) or "unknown"


def _memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "total", human_bytes(memory["total_bytes"])
    if memory["cgroup_bytes"] is not None:
        yield "limit", human_bytes(memory["cgroup_bytes"])
    yield "read", _speed(memory["read_gbps"]) + (f", {memory['read_threads']} threads" if memory["read_gbps"] else "")
    yield "pinnable", human_bytes(memory["pinnable_bytes"])


def _calibration(item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for branch in item["cpu_branch"]:
        size = human_bytes(branch["expert_bytes"])
        line = f"{branch['alpha_ms']:.3f} + {branch['beta_ms']:.3f} r ms, within {branch['largest_error_ms']:.3f} ms"
        yield "cold routes", f"{line} ({size} per expert, {branch['steps']} steps)"
    if overlap := item["overlap"]:
        line = f"the GPU works meanwhile for {overlap['hidden_share']:.0%} of it"
        yield "", f"{line}; a cold route adds {overlap['route_ms']:.3f} ms to a token"
    for device in item["speeds"]:
        yield (
            device["name"],
            (
                f"cold experts by the CPU at {_speed(device['cpu_row_gbps'])} with one row, "
                f"{_speed(device['cpu_rows_gbps'])} with 16, {_speed(device['link_gbps'])} over the link"
                + (f", {_speed(device['in_place_gbps'])} read in place" if device["in_place_gbps"] else "")
            ),
        )
    if item["prefill_error"] is not None:
        yield "in prefill", f"{item['prefill_error']:+.0%} of what these speeds say"
    if item["foreseen_share"] is not None:
        yield "prefetch", f"{item['foreseen_share']:.0%} of the experts copied ahead were then chosen"
    for size in item["uploads"]:
        line = f"{_speed(size['link_gbps'])} beside the CPU branch, which takes {size['cpu_factor']:.2f} times its own"
        yield f"{size['tokens']} tokens", f"{line} time; then {size['chain_ms']:.2f} ms of the GPU"
    if item["upload_error"] is not None:
        yield "uploads", f"their layers took {item['upload_error']:+.0%} of what was expected of them"


def _speed(gbps: float | None) -> str:
    return "not measured" if gbps is None else f"{gbps:.1f} GB/s"


def _told(value: object) -> str:
    return "?" if value is None else str(value)
