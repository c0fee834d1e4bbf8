"""What the GPU checks say of facts (pure), of fake trees of sysfs, and of nothing at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ftslurm.health import nvml
from ftslurm.health.check import Absent, Check, Context
from ftslurm.health.checks import (
    amd_count,
    amd_ras,
    gpu_clocks,
    gpu_count,
    gpu_driver,
    gpu_ecc,
    gpu_nvlink,
    gpu_pcie,
    gpu_processes,
    gpu_recovery,
    gpu_rows,
)
from ftslurm.health.slurm_steps import of_this_job
from ftslurm.health.verdict import Finding, Json, verdict
from ftslurm.records.health import FAIL, OK, UNKNOWN, WARN

BUS = "0000:1b:00.0"
Facts = dict[str, Any]


def gpu(number: int = 3, **facts: Any) -> Facts:
    return {"gpu": number, "bus": f"0000:{0x1B + number - 3:02x}:00.0", "serial": "1322", "errors": {}, **facts}


def gpus(*some: Facts, **more: Any) -> Facts:
    return {"gpus": list(some), **more}


def linked(*others: Facts) -> Facts:
    """Return links of GPUs that are all well and at work, but for the given facts of GPU 3 and those after it."""
    return gpus(*(gpu(3 + number, **{**PCIE, **link}) for number, link in enumerate(others)), monotonic_s=1.0)


def context(**fields: Any) -> Context:
    environ = fields.pop("environ", {})
    return Context("n17", environ, **fields)


def judged(check: Check, facts: Json, before: Json | None = None, **fields: Any) -> tuple[Finding, ...]:
    return check.judge(facts, before, context(**fields)).findings


def counted(*some: Facts, hidden: int = 0, missing: tuple[str, ...] = (), seen: bool = True) -> Facts:
    return {"nvml": seen, "gpus": list(some), "hidden": hidden, "missing": list(missing)}


def there(number: int, **facts: Any) -> Facts:
    return gpu(number, **{"uuid": f"GPU-{number:04x}", "name": "H100", "mig": None, **facts})


FOUR = [there(number) for number in range(4)]
HOUR = 3600.0
PCIE = {
    "width": 16,
    "max_width": 16,
    "generation": 5,
    "max_generation": 5,
    "performance": 0,
    "reasons": 0,
    "replays": 7,
}
NARROW = {"width": 4}
SAVING = {"performance": 8, "reasons": 1, "used_percent": 0}
LINKED = {"name": "H100", "counters": {"crc": 0, "replays": 0, "recoveries": 0}, "fabric": None}
UP = [1] * 18
ONE_DOWN = [1] * 5 + [0] + [1] * 12
GIB = 1 << 30
HELD = {"uuid": "GPU-1", "mig": False, "total": 80 * GIB, "used": 40 * GIB}
LEFT = {"pid": 4242, "bytes": 40 * GIB, "name": "python", "uid": 1001, "step": None, "own": False}
COUNTED = {"SLURM_GPUS_ON_NODE": "4"}

FAULTS: list[tuple[str, Check, Facts, Facts | None, dict[str, Any], str, str, str]] = [
    # id, check, facts, those of the look before, context, status, subject, text
    (
        "driver-not-loaded",
        gpu_driver.CHECK,
        {"error": "DRIVER_NOT_LOADED", "pci": [BUS, "0000:2b:00.0"], "device": True, "module": None},
        None,
        {"environ": COUNTED},
        FAIL,
        "",
        "NVML does not start: the driver is not loaded; 2 NVIDIA GPUs on the PCI bus (0000:1b:00.0, …)",
    ),
    (
        "driver-mismatch",
        gpu_driver.CHECK,
        {"error": "LIB_RM_VERSION_MISMATCH", "pci": [BUS], "device": True, "module": "535.1", "library": "570.2"},
        None,
        {"environ": COUNTED},
        FAIL,
        "",
        "NVML does not start: driver/library version mismatch (kernel module 535.1, library 570.2)",
    ),
    (
        "driver-library-missing",
        gpu_driver.CHECK,
        {"error": "LIBRARY_NOT_FOUND", "pci": [BUS], "device": True, "module": "535.1"},
        None,
        {"environ": COUNTED},
        UNKNOWN,
        "",
        "there are NVIDIA GPUs, but not NVML's library (libnvidia-ml.so.1)",
    ),
    (
        "count-none-seen",
        gpu_count.CHECK,
        counted(seen=False),
        None,
        {"environ": COUNTED},
        UNKNOWN,
        "",
        "Slurm gave 4 GPUs, none can be seen from here",
    ),
    (
        "count-off-the-bus",
        gpu_count.CHECK,
        counted(*FOUR[:3], missing=(BUS,)),
        None,
        {"environ": COUNTED},
        FAIL,
        "",
        "3 of the 4 GPUs that Slurm gave can be used; on the PCI bus, but not usable: 0000:1b:00.0",
    ),
    (
        "count-off-the-bus-without-slurm",
        gpu_count.CHECK,
        counted(*FOUR[:3], missing=(BUS,)),
        None,
        {},
        FAIL,
        "",
        "3 GPUs can be used, 1 more should be there; on the PCI bus, but not usable: 0000:1b:00.0",
    ),
    (
        "count-mig-device-missing",
        gpu_count.CHECK,
        counted(there(0, mig=["MIG-a", "MIG-b"])),
        None,
        {"environ": {"SLURM_GPUS_ON_NODE": "3"}},
        FAIL,
        "",
        "2 of the 3 GPU or MIG devices that Slurm gave can be used",
    ),
    (
        "count-lost",
        gpu_count.CHECK,
        counted(*FOUR[:3], gpu(3, errors={"name": "GPU_IS_LOST", "uuid": "GPU_IS_LOST"})),
        None,
        {},
        FAIL,
        "GPU 3",
        "cannot be used: it has fallen off the bus or cannot be reached (0000:1b:00.0, serial 1322)",
    ),
    (
        "count-visible-uuid-gone",
        gpu_count.CHECK,
        counted(*FOUR),
        None,
        {"environ": {"CUDA_VISIBLE_DEVICES": "GPU-0001,GPU-00ff"}},
        FAIL,
        "GPU-00ff",
        "CUDA_VISIBLE_DEVICES names GPU-00ff, which is not there",
    ),
    (
        "count-visible-mig-gone",
        gpu_count.CHECK,
        counted(there(0, mig=["MIG-a", "MIG-b"])),
        None,
        {"environ": {"CUDA_VISIBLE_DEVICES": "MIG-c"}},
        FAIL,
        "MIG-c",
        "CUDA_VISIBLE_DEVICES names MIG-c, which is not there",
    ),
    (
        "count-visible-index",
        gpu_count.CHECK,
        counted(*FOUR),
        None,
        {"environ": {"CUDA_VISIBLE_DEVICES": "0,7"}},
        WARN,
        "",
        "CUDA_VISIBLE_DEVICES=0,7 names GPU 7, NVML shows 4 GPUs",
    ),
    (
        "ecc-new",
        gpu_ecc.CHECK,
        gpus(gpu(mode=1, pending=1, volatile=3, aggregate=9)),
        gpus(gpu(mode=1, pending=1, volatile=1, aggregate=7)),
        {},
        FAIL,
        "GPU 3",
        "3 uncorrected ECC errors since the last reset, 2 of them new (9 over its life) (0000:1b:00.0, serial 1322)",
    ),
    (
        "rows-pages-worn-out",
        gpu_rows.CHECK,
        gpus(gpu(rows=None, pages=61, pages_pending=0)),
        None,
        {},
        FAIL,
        "GPU 3",
        "61 memory pages are retired, NVIDIA replaces a GPU at 60 (0000:1b:00.0, serial 1322)",
    ),
    (
        "recovery-unheard-of",
        gpu_recovery.CHECK,
        gpus(gpu(action=12)),
        None,
        {},
        WARN,
        "GPU 3",
        "the driver requests an unknown action (recovery action 12) (0000:1b:00.0, serial 1322)",
    ),
    (
        "clocks-brake-twice",
        gpu_clocks.CHECK,
        gpus(gpu(reasons=0x88, celsius=50)),
        gpus(gpu(reasons=0x88, celsius=50)),
        {},
        FAIL,
        "GPU 3",
        "slowed down by the power supply (power brake) at 50 °C, as at the last check (0000:1b:00.0, serial 1322)",
    ),
    (
        "pcie-replays",
        gpu_pcie.CHECK,
        gpus(gpu(**{**PCIE, "replays": 5007}), monotonic_s=300.0),
        gpus(gpu(**PCIE), monotonic_s=0.0),
        {},
        WARN,
        "GPU 3",
        "5000 PCIe packets repeated since the last check, 1000 a minute (0000:1b:00.0, serial 1322)",
    ),
    (
        "pcie-quarter-at-work",
        gpu_pcie.CHECK,
        linked(NARROW),
        None,
        {},
        FAIL,
        "GPU 3",
        "PCIe link x4 at work, x16 is possible (0000:1b:00.0, serial 1322)",
    ),
    (
        "pcie-one-lane-at-work-by-utilization",
        gpu_pcie.CHECK,
        linked({"width": 1, "reasons": None, "used_percent": 30}),
        None,
        {},
        FAIL,
        "GPU 3",
        "PCIe link x1 at work, x16 is possible (0000:1b:00.0, serial 1322)",
    ),
    (
        "pcie-half-at-work",
        gpu_pcie.CHECK,
        linked({"width": 8}, {}, {}),
        None,
        {},
        WARN,
        "GPU 3",
        "PCIe link x8 at work, x16 is possible (0000:1b:00.0, serial 1322)",
    ),
    (
        "pcie-narrow-among-others-just-as-idle",
        gpu_pcie.CHECK,
        linked({**SAVING, **NARROW}, SAVING, SAVING, {}),
        None,
        {},
        WARN,
        "GPU 3",
        "PCIe link x4 while idle, x16 on 2 of the 2 others just as idle (0000:1b:00.0, serial 1322)",
    ),
    (
        "nvlink-went-down",
        gpu_nvlink.CHECK,
        gpus(gpu(links=ONE_DOWN, **LINKED)),
        gpus(gpu(links=UP, **LINKED)),
        {},
        FAIL,
        "GPU 3",
        "NVLink 5 went down since the last check, 17 of 18 are up (0000:1b:00.0, serial 1322)",
    ),
    (
        "nvlink-all-down-on-one",
        gpu_nvlink.CHECK,
        gpus(*(gpu(number, links=UP if number else [0] * 18, **LINKED) for number in range(8))),
        None,
        {},
        FAIL,
        "GPU 0",
        "0 of 18 NVLinks are up, 18 on 7 of the 7 others (down: 0, 1, 2, 3 and 14 more) (0000:18:00.0, serial 1322)",
    ),
    (
        "nvlink-recoveries",
        gpu_nvlink.CHECK,
        gpus(gpu(links=UP, **{**LINKED, "counters": {"recoveries": 2}})),
        gpus(gpu(links=UP, **{**LINKED, "counters": {"recoveries": 0}})),
        {},
        WARN,
        "GPU 3",
        "NVLink recoveries: 2 since the last check (0000:1b:00.0, serial 1322)",
    ),
    (
        "nvlink-crc",
        gpu_nvlink.CHECK,
        gpus(gpu(links=UP, **{**LINKED, "counters": {"crc": 900}})),
        gpus(gpu(links=UP, **{**LINKED, "counters": {"crc": 100}})),
        {},
        WARN,
        "GPU 3",
        "NVLink CRC errors: 800 since the last check (0000:1b:00.0, serial 1322)",
    ),
    (
        "processes-leftover",
        gpu_processes.CHECK,
        gpus(gpu(processes=[LEFT], **HELD), visible=True),
        None,
        {"environ": COUNTED},
        FAIL,
        "GPU 3",
        "pid 4242 (python, user 1001) is on it and holds 40.0 of 80.0 GiB (0000:1b:00.0, serial 1322)",
    ),
    (
        "processes-of-others-where-slurm-gives-no-gpus",
        gpu_processes.CHECK,
        gpus(gpu(processes=[LEFT], **HELD), visible=True),
        None,
        {},
        WARN,
        "GPU 3",
        "pid 4242 (python, user 1001) is on it and holds 40.0 of 80.0 GiB (0000:1b:00.0, serial 1322)",
    ),
    (
        "processes-of-another-step-of-this-job",
        gpu_processes.CHECK,
        gpus(gpu(processes=[{**LEFT, "step": "step 2 of this job"}], **HELD), visible=True),
        None,
        {"environ": COUNTED},
        WARN,
        "GPU 3",
        "pid 4242 (python, user 1001, step 2 of this job) is on it and holds 40.0 of 80.0 GiB "
        "(0000:1b:00.0, serial 1322)",
    ),
    (
        "processes-hidden-memory",
        gpu_processes.CHECK,
        gpus(gpu(processes=[], **HELD), visible=False),
        None,
        {},
        WARN,
        "GPU 3",
        "40.0 of 80.0 GiB of memory is in use, by no process that can be seen (0000:1b:00.0, serial 1322)",
    ),
    (
        "processes-stranger-in-a-round",
        gpu_processes.CHECK,
        gpus(gpu(processes=[{**LEFT, "own": True, "pid": 1}, LEFT], **HELD), visible=True),
        None,
        {"busy": True, "own_pid": 77},
        WARN,
        "GPU 3",
        "pid 4242 (python, user 1001) is on it and holds 40.0 of 80.0 GiB (0000:1b:00.0, serial 1322)",
    ),
]


@pytest.mark.parametrize(
    ("check", "facts", "before", "fields", "status", "subject", "expected"),
    [pytest.param(*case[1:], id=case[0]) for case in FAULTS],
)
def test_a_fault_is_found_with_its_figures(
    check: Check, facts: Facts, before: Facts | None, fields: dict[str, Any], status: str, subject: str, expected: str
) -> None:
    found = judged(check, facts, before, **fields)
    assert [(one.status, one.subject, one.text) for one in found] == [(status, subject, expected)]
    assert found[0].advice.endswith(".")


FINE: list[tuple[str, Check, Facts, Facts | None, dict[str, Any]]] = [
    ("all-there", gpu_count.CHECK, counted(*FOUR), None, {"environ": COUNTED}),
    ("cgroup-shows-two-of-eight", gpu_count.CHECK, counted(*FOUR[:2]), None, {"environ": {"SLURM_STEP_GPUS": "4,7"}}),
    ("visible-by-short-uuid", gpu_count.CHECK, counted(*FOUR), None, {"environ": {"CUDA_VISIBLE_DEVICES": "GPU-0001"}}),
    ("no-devices-for-this-task", gpu_count.CHECK, counted(*FOUR), None, {"environ": {"CUDA_VISIBLE_DEVICES": ""}}),
    ("global-indices", gpu_count.CHECK, counted(*FOUR, hidden=4), None, {"environ": {"CUDA_VISIBLE_DEVICES": "6,7"}}),
    (
        "mig-devices-count",
        gpu_count.CHECK,
        counted(there(0, mig=["MIG-a", "MIG-b"])),
        None,
        {"environ": {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "MIG-b"}},
    ),
    (
        "old-mig-name",
        gpu_count.CHECK,
        counted(there(0, mig=["MIG-a"])),
        None,
        {"environ": {"CUDA_VISIBLE_DEVICES": "MIG-GPU-0000/7/0"}},
    ),
    ("errors-of-its-past", gpu_ecc.CHECK, gpus(gpu(mode=1, pending=1, volatile=0, aggregate=12)), None, {}),
    ("no-ecc", gpu_ecc.CHECK, gpus(gpu(mode=None, pending=None, volatile=None, aggregate=None)), None, {}),
    ("remapped", gpu_rows.CHECK, gpus(gpu(rows={"corrected": 1, "uncorrected": 2, "pending": 0})), None, {}),
    ("power-cap", gpu_clocks.CHECK, gpus(gpu(reasons=0x4, celsius=70, slowdown_celsius=87)), None, {}),
    ("idle-and-slow", gpu_clocks.CHECK, gpus(gpu(reasons=0x9, celsius=30)), None, {}),
    (
        "generation-drops-when-idle",
        gpu_pcie.CHECK,
        gpus(gpu(**{**PCIE, "generation": 1, "performance": 8, "reasons": 1}), monotonic_s=1.0),
        None,
        {},
    ),
    ("width-drops-when-idle", gpu_pcie.CHECK, linked({**SAVING, **NARROW}), None, {"busy": True}),
    ("width-drops-on-all-idle-gpus", gpu_pcie.CHECK, linked(*[{**SAVING, **NARROW}] * 3, SAVING), None, {"busy": True}),
    ("width-of-others-at-work", gpu_pcie.CHECK, linked({**SAVING, **NARROW}, {}, {}, {}), None, {"busy": True}),
    (
        "width-of-others-less-idle",
        gpu_pcie.CHECK,
        linked({**SAVING, **NARROW}, *[{**SAVING, "performance": 0}] * 3),
        None,
        {"busy": True},
    ),
    ("width-of-a-gpu-with-mere-memory-in-use", gpu_pcie.CHECK, linked({**NARROW, "reasons": 1}), None, {"busy": True}),
    (
        "width-of-a-gpu-that-shows-nothing-of-its-work",
        gpu_pcie.CHECK,
        linked({**NARROW, "reasons": None, "used_percent": None}),
        None,
        {"busy": True},
    ),
    (
        "width-of-a-gpu-without-a-performance-state",
        gpu_pcie.CHECK,
        linked({**NARROW, "performance": None}),
        None,
        {"busy": True},
    ),
    (
        "a-few-replays",
        gpu_pcie.CHECK,
        gpus(gpu(**{**PCIE, "replays": 12}), monotonic_s=300.0),
        gpus(gpu(**PCIE), monotonic_s=0.0),
        {},
    ),
    (
        "replays-begin-anew",
        gpu_pcie.CHECK,
        gpus(gpu(**{**PCIE, "replays": 1}), monotonic_s=300.0),
        gpus(gpu(**{**PCIE, "replays": 90000}), monotonic_s=0.0),
        {},
    ),
    (
        "bridged-pairs",
        gpu_nvlink.CHECK,
        gpus(*(gpu(number, links=[1] * 4 if number < 2 else [0] * 4, **LINKED) for number in range(4))),
        None,
        {},
    ),
    ("own-ranks", gpu_processes.CHECK, gpus(gpu(processes=[{**LEFT, "own": True}], **HELD), visible=True), None, {}),
    (
        "mps-server",
        gpu_processes.CHECK,
        gpus(gpu(processes=[{**LEFT, "name": "nvidia-cuda-mps"}], **HELD), visible=True),
        None,
        {},
    ),
    (
        "shared-on-purpose",
        gpu_processes.CHECK,
        gpus(gpu(processes=[LEFT], **HELD), visible=True),
        None,
        {"environ": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}},
    ),
    (
        "in-a-round-in-a-container",
        gpu_processes.CHECK,
        gpus(gpu(processes=[LEFT], **HELD), visible=False),
        None,
        {"busy": True, "own_pid": 7},
    ),
    (
        "mig-neighbours",
        gpu_processes.CHECK,
        gpus(gpu(processes=[LEFT], **{**HELD, "mig": True}), visible=True),
        None,
        {},
    ),
    (
        "the-others-gpu",
        gpu_processes.CHECK,
        gpus(gpu(0, processes=[], **{**HELD, "used": 0}), gpu(3, processes=[LEFT], **HELD), visible=True),
        None,
        {"environ": {"SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}},
    ),
    (
        "cpu-job-on-a-node-without-driver",
        gpu_driver.CHECK,
        {"error": "DRIVER_NOT_LOADED", "pci": [BUS], "device": False, "module": None},
        None,
        {},
    ),
]


@pytest.mark.parametrize(("check", "facts", "before", "fields"), [pytest.param(*case[1:], id=case[0]) for case in FINE])
def test_what_is_normal_is_no_finding(check: Check, facts: Facts, before: Facts | None, fields: dict[str, Any]) -> None:
    judgement = check.judge(facts, before, context(**fields))
    assert judgement.findings == ()
    assert judgement.summary


def test_a_gpu_that_may_be_another_jobs_does_not_fail() -> None:
    facts = gpus(gpu(0, processes=[], **{**HELD, "used": 0}), gpu(3, processes=[LEFT], **HELD), visible=True)
    assert [one.status for one in judged(gpu_processes.CHECK, facts, environ={"SLURM_GPUS_ON_NODE": "1"})] == [WARN]


HERE = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({**HERE, "SLURM_STEP_ID": "2"}, "step 2 of this job"),
        ({**HERE, "SLURM_STEP_ID": "4294967291"}, "this job"),  # the batch script
        ({"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "1"}, "this job"),
        ({**HERE, "SLURM_JOB_ID": "78"}, None),
        ({**HERE, "SLURM_RESTART_COUNT": "0"}, None),  # from before the job was requeued
        ({}, None),  # it may not be read
    ],
)
def test_a_process_belongs_to_this_job_by_its_environment(environment: dict[str, str], expected: str | None) -> None:
    assert of_this_job(environment, HERE) == expected
    assert of_this_job(environment, {}) is None, "no job looks"


def test_a_broken_gpu_of_another_job_does_not_cost_this_one_the_node() -> None:
    facts = counted(*FOUR[:3], gpu(3, errors={"handle": "UNKNOWN"}))
    ours = {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert [one.status for one in judged(gpu_count.CHECK, facts, environ=ours)] == [WARN]
    assert FAIL in [one.status for one in judged(gpu_count.CHECK, facts, environ=COUNTED)]


def test_what_could_not_be_read_is_unknown() -> None:
    (found,) = judged(gpu_ecc.CHECK, gpus(gpu(errors={"ecc": "UNKNOWN"})))
    assert (found.status, found.text) == (UNKNOWN, "could not be read: unknown error (0000:1b:00.0, serial 1322)")


def test_errors_of_a_gpu_that_the_driver_permits_are_a_warning() -> None:
    (found,) = judged(gpu_ecc.CHECK, gpus(gpu(mode=1, pending=1, volatile=1, aggregate=1, recovery=0)))
    assert found.status == WARN
    assert "1 uncorrected ECC error since the last reset; the driver permits its use" in found.text


def test_another_gpu_in_the_same_slot_has_no_past() -> None:
    now, then = gpu(mode=1, pending=1, volatile=1), gpu(mode=1, pending=1, volatile=0)
    (found,) = judged(gpu_ecc.CHECK, gpus(now), gpus({**then, "serial": "9999"}))
    assert "new" not in found.text


# Trees


def tree(root: Path, files: dict[str, str], links: dict[str, str] | None = None) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    for name, target in (links or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return str(root)


def pci(bus: str, vendor: str, class_: str, driver: str | None) -> tuple[dict[str, str], dict[str, str]]:
    device = f"sys/bus/pci/devices/{bus}"
    files = {f"{device}/vendor": vendor, f"{device}/class": class_}
    return files, {f"{device}/driver": f"../../drivers/{driver}"} if driver else {}


def amd_tree(root: Path, cards: int = 2, **counts: str) -> str:
    files: dict[str, str] = {}
    for card in range(cards):
        device = f"sys/class/drm/card{card}/device"
        files[f"{device}/vendor"] = "0x1002"
        files[f"{device}/uevent"] = f"DRIVER=amdgpu\nPCI_SLOT_NAME=0000:{0x1B + card:02x}:00.0"
        for block in ("umc", "gfx", "sdma"):
            files[f"{device}/ras/{block}_err_count"] = "ue: 0\nce: 0"
        files[f"{device}/ras/features"] = "feature mask: 0x1ff"
    files["sys/class/drm/card1-DP-1/status"] = "disconnected"
    for name, text in counts.items():
        files[f"sys/class/drm/card1/device/ras/{name}"] = text
    return tree(root, files)


AMD_FAULTS = [
    # id, file, its text, that of the look before, status, expected text
    (
        "amd-uncorrectable",
        "umc_err_count",
        "ue: 2\nce: 0",
        "ue: 0\nce: 0",
        FAIL,
        "2 uncorrectable errors in its memory (umc), 2 of them new (card1, 0000:1c:00.0)",
    ),
    (
        "amd-uncorrectable-gfx",
        "gfx_err_count",
        "ue: 1\nce: 5",
        None,
        FAIL,
        "1 uncorrectable error in gfx (card1, 0000:1c:00.0)",
    ),
    (
        "amd-corrected-growth",
        "umc_err_count",
        "ue: 0\nce: 5000",
        "ue: 0\nce: 100",
        WARN,
        "4900 corrected errors in its memory (umc) since the last check (card1, 0000:1c:00.0)",
    ),
    (
        "amd-bad-pages-stay",
        "gpu_vram_bad_pages",
        "0x1 : 0x1000 : R\n0x2 : 0x1000 : F",
        None,
        FAIL,
        "1 bad memory page could not be retired (card1, 0000:1c:00.0)",
    ),
    (
        "amd-bad-pages-pending",
        "gpu_vram_bad_pages",
        "0x1 : 0x1000 : P",
        None,
        WARN,
        "1 bad memory page to be retired (card1, 0000:1c:00.0)",
    ),
]


@pytest.mark.parametrize(
    ("name", "text", "before", "status", "expected"), [pytest.param(*case[1:], id=case[0]) for case in AMD_FAULTS]
)
def test_amds_counters_show_hardware_errors(
    tmp_path: Path, name: str, text: str, before: str | None, status: str, expected: str
) -> None:
    facts = amd_ras.fetch(context(root=amd_tree(tmp_path / "now", **{name: text})))
    then = amd_ras.fetch(context(root=amd_tree(tmp_path / "then", **{name: before}))) if before else None
    found = judged(amd_ras.CHECK, facts, then)
    assert [(one.status, one.subject, one.text) for one in found] == [(status, "GPU 1", expected)]


def test_healthy_amd_gpus_have_no_findings(tmp_path: Path) -> None:
    facts = amd_ras.fetch(context(root=amd_tree(tmp_path)))
    judgement = amd_ras.judge(facts, facts, context())
    assert (judgement.summary, judgement.findings) == ("2 AMD GPUs, no uncorrectable errors", ())


def kfd(root: Path, *usable: int, driver: str | None = "amdgpu", topology: bool = True) -> str:
    files, links = {}, {}
    for number in range(4):
        more = pci(f"0000:{0x1B + number:02x}:00.0", "0x1002", "0x120000", driver)
        files.update(more[0])
        links.update(more[1])
    nodes = "sys/class/kfd/kfd/topology/nodes"
    if topology:
        files[f"{nodes}/0/properties"] = "cpu_cores_count 64\nsimd_count 0"
    for number in usable:
        text = f"cpu_cores_count 0\nsimd_count 1216\nlocation_id {(0x1B + number) << 8}\ndomain 0"
        files[f"{nodes}/{number + 1}/properties"] = text
    return tree(root, files, links)


def test_an_amd_gpu_that_slurm_gave_and_that_is_gone_is_named(tmp_path: Path) -> None:
    facts = amd_count.fetch(context(root=kfd(tmp_path, 0, 1, 3)))
    (found,) = judged(amd_count.CHECK, facts, environ=COUNTED)
    assert found.status == FAIL
    assert found.text == "3 of the 4 GPUs that Slurm gave can be used; on the PCI bus, but not usable: 0000:1d:00.0"


def test_an_amd_gpu_that_went_away_between_two_runs_is_named(tmp_path: Path) -> None:
    before = amd_count.fetch(context(root=kfd(tmp_path / "then", 0, 1, 2, 3)))
    facts = amd_count.fetch(context(root=kfd(tmp_path / "now", 0, 1, 2)))
    (found,) = judged(amd_count.CHECK, facts, before)
    assert (found.status, found.text) == (FAIL, "1 AMD GPU gone since the last check: 0000:1e:00.0")


def test_amds_driver_that_is_not_loaded_is_found(tmp_path: Path) -> None:
    facts = amd_count.fetch(context(root=kfd(tmp_path, driver=None, topology=False)))
    (found,) = judged(amd_count.CHECK, facts, environ=COUNTED)
    assert (found.status, found.text) == (FAIL, "the driver amdgpu is not loaded, 4 AMD GPUs on the PCI bus")
    assert judged(amd_count.CHECK, facts) == ()


def test_an_amd_index_beyond_the_gpus_is_found(tmp_path: Path) -> None:
    facts = amd_count.fetch(context(root=kfd(tmp_path, 0, 1)))
    (found,) = judged(amd_count.CHECK, facts, environ={"ROCR_VISIBLE_DEVICES": "0,5"})
    assert (found.status, found.text) == (WARN, "the job's variables name GPU 5, there are 2")


def test_what_a_cgroup_leaves_of_the_amd_gpus_is_enough(tmp_path: Path) -> None:
    facts = amd_count.fetch(context(root=kfd(tmp_path, 2, 3)))
    environ = {"SLURM_GPUS_ON_NODE": "2", "ROCR_VISIBLE_DEVICES": "0,1"}
    judgement = amd_count.judge(facts, facts, context(environ=environ))
    assert (judgement.summary, judgement.findings) == ("2 AMD GPUs", ())


def test_gpus_are_distinguished_on_the_pci_bus_with_their_drivers(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for bus, vendor, class_, driver in (
        ("0000:1b:00.0", "0x10de", "0x030200", "nvidia"),
        ("0000:1c:00.0", "0x10de", "0x030000", None),
        ("0000:1c:00.1", "0x10de", "0x040300", "snd_hda_intel"),
        ("0000:05:00.0", "0x10de", "0x068000", "nvidia"),
        ("0000:2b:00.0", "0x1002", "0x030200", "amdgpu"),
    ):
        more = pci(bus, vendor, class_, driver)
        files.update(more[0])
        links.update(more[1])
    root = tree(tmp_path, files, links)
    assert nvml.pci_gpus(root) == {"0000:1b:00.0": "nvidia", "0000:1c:00.0": ""}


def test_a_gpu_behind_a_cgroup_or_outside_of_a_container_is_not_missing(tmp_path: Path) -> None:
    information = "Model: \t\t NVIDIA H100\nDevice Minor: \t 3"
    root = tree(tmp_path, {f"proc/driver/nvidia/gpus/{BUS}/information": information})
    assert not gpu_count._allowed(root, BUS)  # no device file: a container
    device = tmp_path / "dev/nvidia3"
    device.parent.mkdir()
    device.touch()
    assert gpu_count._allowed(root, BUS)
    assert not gpu_count._allowed(root, "0000:99:00.0")  # the driver does not have it
    if os.geteuid() != 0:
        device.chmod(0)
        assert not gpu_count._allowed(root, BUS)


@pytest.mark.parametrize(
    "check",
    [
        gpu_driver.CHECK,
        gpu_count.CHECK,
        gpu_ecc.CHECK,
        gpu_rows.CHECK,
        gpu_recovery.CHECK,
        gpu_clocks.CHECK,
        gpu_pcie.CHECK,
        gpu_nvlink.CHECK,
        gpu_processes.CHECK,
        amd_ras.CHECK,
        amd_count.CHECK,
    ],
    ids=lambda check: check.name,
)
def test_a_node_without_gpus_has_nothing_to_check(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "started", _no_library)
    with pytest.raises(Absent):
        check.fetch(context(root=str(tmp_path)))


def _no_library() -> Any:
    raise Absent("no NVIDIA driver here")


def test_how_many_gpus_slurm_gave() -> None:
    assert nvml.given({}) is None
    assert nvml.given({"SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_GPUS": "0,1"}) == 8
    assert nvml.given({"SLURM_GPUS_ON_NODE": "(null)", "SLURM_STEP_GPUS": "2,5,7"}) == 3
    assert nvml.given({"SLURM_JOB_GPUS": "2,5"}) == 2
    assert nvml.given({"SLURM_JOB_GPUS": "2,5", "SLURM_STEP_ID": "0"}) is None


def test_a_step_without_gpus_in_a_job_with_some_does_not_fail() -> None:
    assert [one.status for one in judged(gpu_count.CHECK, counted(), environ=COUNTED)] == [UNKNOWN]
    assert [one.status for one in judged(gpu_count.CHECK, counted(missing=(BUS,)), environ=COUNTED)] == [FAIL]


def test_a_verdict_of_a_healthy_run_is_ok() -> None:
    facts = gpus(gpu(mode=1, pending=1, volatile=0, aggregate=0))
    assert verdict("gpu-ecc", gpu_ecc.judge(facts, None, context())).status == OK
