"""How many workers `gpu`, `cpu` and `auto` mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftslurm.agent.devices import count_gpus, resolve_slots
from ftslurm.terminal import UsageError


def slots(text: str, gpus: int = 4, **environment: str) -> int:
    return resolve_slots(text, environment, lambda: (gpus, "" if gpus else "no driver"), 16).count


def test_a_number_is_that_number_and_no_driver_is_queried() -> None:
    def ask() -> tuple[int, str]:
        raise AssertionError("asked")

    assert resolve_slots("8", {}, ask, 16).count == 8
    assert resolve_slots("cpu", {}, ask, 16).count == 16


def test_gpu_and_auto_are_the_gpus_of_the_node() -> None:
    assert slots("gpu") == slots("auto") == 4


def test_auto_without_a_gpu_is_the_processors() -> None:
    assert slots("auto", gpus=0) == 16
    assert slots("auto", CUDA_VISIBLE_DEVICES="") == 16


def test_auto_returns_the_reason_of_its_choice() -> None:
    def choice(gpus: int, **environment: str) -> str | None:
        return resolve_slots("auto", environment, lambda: (gpus, ""), 2).choice

    assert choice(0) == "no GPU: 2 workers per node"
    assert choice(8) == "8 GPUs: 8 workers per node"
    assert choice(4, CUDA_VISIBLE_DEVICES="1") == "4 GPUs, CUDA_VISIBLE_DEVICES allows 1: 1 worker per node"
    assert choice(4, CUDA_VISIBLE_DEVICES="") == "4 GPUs, CUDA_VISIBLE_DEVICES allows none: 2 workers per node"
    assert resolve_slots("8", {}, lambda: (4, ""), 2).choice is None


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0", 1),
        ("0,1", 2),
        ("3,1,2,0", 4),
        (" 2 , 3 ", 2),
        ("0,-1,2", 1),
        ("-1", None),
        ("NoDevFiles", None),
        ("0,1,2,3,4,5,6,7", 4),
        ("0,9,1", 1),
        ("GPU-8932f937-d72c-4106,GPU-1", 2),
        ("MIG-GPU-8932f937/1/0", 1),
        ("0,,1", 1),
    ],
)
@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_what_slurm_or_the_user_hides_is_not_counted(name: str, visible: str, count: int | None) -> None:
    if count is None:
        with pytest.raises(UsageError, match=f"4 GPUs found, but {name} allows none"):
            slots("gpu", **{name: visible})
    else:
        assert slots("gpu", **{name: visible}) == count


def test_gpu_without_a_gpu_is_an_error_with_the_reason_and_the_other_values() -> None:
    with pytest.raises(UsageError, match=r"no GPU found on .* \(no driver\); give a number, or cpu"):
        slots("gpu", gpus=0)


def python_that(tmp_path: Path, does: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return str(path)


def kfd(tmp_path: Path, **ids: str) -> str:
    for node, gpu_id in ids.items():
        directory = tmp_path / "class/kfd/kfd/topology/nodes" / node
        directory.mkdir(parents=True)
        (directory / "gpu_id").write_text(gpu_id)
    return str(tmp_path)


def test_nvml_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert count_gpus(python_that(tmp_path, "echo 8"), str(tmp_path)) == (8, "")


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("echo 0", "NVML counts none"),
        ("echo 'none: Driver Not Loaded'", "Driver Not Loaded"),
        ("exit 3", "NVML ended with code 3"),
        ("kill -SEGV $$", "NVML ended with code -11"),
    ],
)
def test_without_an_answer_of_nvml_the_reason_is_reported(tmp_path: Path, does: str, why: str) -> None:
    assert count_gpus(python_that(tmp_path, does), str(tmp_path)) == (0, why)


def test_a_driver_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftslurm.agent.devices.NVML_TIMEOUT_S", 0.05)
    count, why = count_gpus(python_that(tmp_path, "exec sleep 10"), str(tmp_path))
    assert (count, why[:20]) == (0, "NVML did not respond")


def test_a_python_that_is_not_there_is_reported(tmp_path: Path) -> None:
    count, why = count_gpus(str(tmp_path / "missing"), str(tmp_path))
    assert (count, why) == (0, f"{tmp_path / 'missing'}: {os.strerror(2)}")


def test_gpus_of_amd_are_counted_by_the_kernels_topology(tmp_path: Path) -> None:
    sysfs = kfd(tmp_path, **{"0": "0\n", "1": "28851\n", "2": "4098\n"})
    assert count_gpus(python_that(tmp_path, "exit 1"), sysfs) == (2, "")


def test_a_gpu_of_amd_that_the_jobs_cgroup_hides_does_not_hide_the_others(tmp_path: Path) -> None:
    sysfs = kfd(tmp_path, **{"0": "0\n", "3": "4098\n"})
    for hidden in ("1", "2", "4"):
        # Reading it gives an error, as it does for a device that the cgroup denies.
        (tmp_path / "class/kfd/kfd/topology/nodes" / hidden / "gpu_id").mkdir(parents=True)
    assert count_gpus(python_that(tmp_path, "exit 1"), sysfs) == (1, "")
