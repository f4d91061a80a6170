"""The machine profile: read from the system's own files, measured once, measured again when the hardware changes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostinatod.machine.cpus import Cpus, NumaNode, cgroup_memory_bytes, cpu_list, read_cpus
from ostinatod.machine.gpus import Gpu, PcieLink, list_gpus
from ostinatod.machine.memory import measure_read_gbps, read_memory
from ostinatod.machine.profile import Probes, hardware_fingerprint, machine_profile
from ostinatod.machine.transfers import Transfers

CPUINFO = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu sse4_2 avx2 avx512_bf16 amx_int8\n"


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_processors_are_read_from_the_system(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        {
            "proc/cpuinfo": CPUINFO,
            "sys/devices/system/node/node0/cpulist": "0-1,8\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       1000 kB\n",
            "sys/devices/system/node/node1/cpulist": "2-3\n",
        },
    )
    cpus = read_cpus(root)
    assert cpus.name == "Some CPU @ 2.00GHz"
    assert cpus.instruction_sets == ("sse4_2", "avx2", "avx512_bf16", "amx_int8")
    assert cpus.numa_nodes == (NumaNode(0, (0, 1, 8), 1_024_000), NumaNode(1, (2, 3), None))
    assert cpus.cgroup_cores is None


def test_limits_of_the_own_cgroup_hold(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/job/memory.max": "2000000000\n",
        },
    )
    # 150,000 of every 100,000 us: one and a half cores, rounded up to two threads.
    assert read_cpus(root).cgroup_cores == 1.5
    assert cgroup_memory_bytes(root) == 2_000_000_000
    limited = dataclasses.replace(read_cpus(root), physical_cores=8, allowed_cores=16)
    assert limited.usable_cores == 2


def test_older_cgroups_are_read_too(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}
    root = system(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert read_cpus(root).cgroup_cores is None
    system(root, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n"})
    system(root, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert read_cpus(root).cgroup_cores == 4
    assert cgroup_memory_bytes(root) is None


def test_the_kernel_s_lists_of_numbers() -> None:
    assert cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert cpu_list("") == ()


class Nvml(SimpleNamespace):
    """The part of NVML that is used, with one GPU that does not tell its NUMA node."""

    class NVMLError(Exception):
        """As in pynvml."""

    broken = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("driver not loaded")

    def nvmlShutdown(self) -> None:
        self.ended = True

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 << 30, free=20 << 30),
            "nvmlDeviceGetName": b"RTX 4090D",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlSystemGetDriverVersion": "575.1",
            "nvmlDeviceGetCudaComputeCapability": (8, 9),
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": 4,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
        }

        def ask(*_: Any) -> Any:
            if name not in answers:
                raise self.NVMLError("not supported")
            return answers[name]

        return ask


def test_gpus_are_told_as_the_driver_tells_them() -> None:
    nvml = Nvml()
    (gpu,) = list_gpus(nvml)
    assert (gpu.name, gpu.compute_capability, gpu.numa_node) == ("RTX 4090D", "8.9", None)
    assert gpu.link == PcieLink(generation=1, width=16, max_generation=4, max_width=16)
    assert gpu.upload_gbps is None
    assert nvml.ended


def test_without_a_driver_there_are_no_gpus() -> None:
    assert list_gpus(Nvml(broken=True)) == ()


def test_bandwidth_counts_the_bytes_of_all_threads() -> None:
    ticks = iter([0.0, 0.5, 1.0, 1.25])
    # Two threads of 1 MiB; the better of two readings took 0.25 s.
    speed = measure_read_gbps(2, array_bytes=1 << 20, repeats=2, clock=lambda: next(ticks))
    assert speed == pytest.approx(2 * (1 << 20) / 0.25 / 1e9)


def test_memory_that_is_short_is_not_taken_to_measure() -> None:
    assert measure_read_gbps(1, array_bytes=1 << 50) is None
    memory = read_memory(None, 1, measure=lambda _: None)
    assert (memory.read_gbps, memory.read_threads) == (None, None)


def test_what_may_be_pinned_is_the_smallest_limit() -> None:
    memory = read_memory(1_000_000, 1, measure=lambda _: 1.0)
    assert memory.pinnable_bytes == min(800_000, memory.lockable_bytes or 800_000)


CPUS = Cpus("cpu", 4, 8, 8, None, (), ("avx2",))
GPU = Gpu(0, "gpu", "GPU-1", 100, 50, "575.1", "8.9", 0, PcieLink(1, 16, 4, 16), None, None)


def probes(measured: list[int], **changes: Any) -> Probes:
    return Probes(
        gpus=lambda: (dataclasses.replace(GPU, **changes),),
        cpus=lambda: CPUS,
        cgroup_bytes=lambda: None,
        read_gbps=lambda threads: measured.append(threads) or 80.0,
        transfers=lambda threads: ({"GPU-1": Transfers(upload_gbps=54.0)}, "GPU 1: no memory"),
    )


def test_the_profile_is_measured_once_and_again_when_asked(tmp_path: Path) -> None:
    measured: list[int] = []
    file = tmp_path / "new" / "machine.json"
    first = machine_profile(file, probes=probes(measured))
    assert first["memory"]["read_gbps"] == 80.0
    assert (first["gpus"][0]["upload_gbps"], first["transfers_reason"]) == (54.0, "GPU 1: no memory")
    assert json.loads(file.read_text()) == first
    assert machine_profile(file, probes=probes(measured)) == first
    assert measured == [4]
    machine_profile(file, refresh=True, probes=probes(measured))
    assert measured == [4, 4]


@pytest.mark.parametrize("change", [{"uuid": "GPU-2"}, {"driver": "580.2"}, {"total_bytes": 200}])
def test_other_hardware_is_measured_again(tmp_path: Path, change: dict[str, Any]) -> None:
    measured: list[int] = []
    machine_profile(tmp_path / "m", probes=probes(measured))
    machine_profile(tmp_path / "m", probes=probes(measured, **change))
    assert len(measured) == 2


def test_what_is_free_now_is_no_change_of_hardware() -> None:
    busy = dataclasses.replace(GPU, free_bytes=1, link=dataclasses.replace(GPU.link, generation=4))
    assert hardware_fingerprint((GPU,), CPUS, None) == hardware_fingerprint((busy,), CPUS, None)


def test_memory_that_a_virtual_machine_is_given_while_it_runs_is_no_change_of_hardware() -> None:
    def with_memory(total_bytes: int | None) -> Cpus:
        return dataclasses.replace(CPUS, numa_nodes=(NumaNode(0, (0, 1), total_bytes),))

    assert hardware_fingerprint((), with_memory(9 << 30), None) == hardware_fingerprint((), with_memory(24 << 30), None)
    two = dataclasses.replace(CPUS, numa_nodes=(NumaNode(0, (0,), 1 << 30), NumaNode(1, (1,), 1 << 30)))
    assert hardware_fingerprint((), with_memory(1 << 30), None) != hardware_fingerprint((), two, None)


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 2, "fingerprint": "other"}'])
def test_a_profile_that_is_not_ours_is_made_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "m").write_text(content)
    measured: list[int] = []
    assert machine_profile(tmp_path / "m", probes=probes(measured))["format"] == 2
    assert measured
    assert json.loads((tmp_path / "m").read_text())["format"] == 2
