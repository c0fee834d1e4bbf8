"""The GPU checks through the real nvidia-ml-py, against an NVML that says what these tests want it to say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nvml import standin
from tests.nvml.standin import Standin, wait_until_gone

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
if standin.compiler() is None:
    pytest.skip("no C compiler for the NVML stand-in", allow_module_level=True)

AT = " (0000:4b:00.0, serial 1322621018203)"  # GPU 3
LINKS = " ".join(["1"] * 18)
BROKEN_LINKS = " ".join(["1"] * 16 + ["0", "0"])


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("nvml")
    return {"new": standin.build(directory / "new"), "old": standin.build(directory / "old", "OLD")}


@pytest.fixture
def node(libraries: dict[str, Path], tmp_path: Path) -> Standin:
    return Standin(libraries["new"], tmp_path / "nvml")


@pytest.fixture
def old_node(libraries: dict[str, Path], tmp_path: Path) -> Standin:
    return Standin(libraries["old"], tmp_path / "nvml")


SLURM = {"SLURM_GPUS_ON_NODE": "8"}

FAULTS: list[tuple[str, list[str], dict[str, str], list[tuple[str, str, str, str]]]] = [
    # id, what NVML answers, the job's environment, findings: check, status, subject, text
    (
        "version-mismatch",
        ["* error nvmlInitWithFlags 18"],
        SLURM,
        [("gpu-driver", "fail", "", "NVML does not start: driver/library version mismatch")],
    ),
    (
        "driver-not-loaded",
        ["* error nvmlInitWithFlags 9"],
        SLURM,
        [("gpu-driver", "fail", "", "NVML does not start: the driver is not loaded")],
    ),
    (
        "init-fails",
        ["* error nvmlInitWithFlags 999"],
        SLURM,
        [("gpu-driver", "fail", "", "NVML does not start: unknown error")],
    ),
    (
        "no-permission",
        ["* error nvmlInitWithFlags 4"],
        SLURM,
        [("gpu-driver", "unknown", "", "no permission to talk to the NVIDIA driver")],
    ),
    (
        "one-gpu-less",
        ["count 7"],
        SLURM,
        [("gpu-count", "fail", "", "7 of the 8 GPUs that Slurm gave can be used")],
    ),
    (
        "no-handle",
        ["3 error nvmlDeviceGetHandleByIndex_v2 999"],
        {},
        [("gpu-count", "fail", "GPU 3", "cannot be used: unknown error")],
    ),
    (
        "lost",
        ["3 error * 15"],
        SLURM,
        [
            ("gpu-count", "fail", "GPU 3", "cannot be used: it has fallen off the bus or cannot be reached"),
            ("gpu-count", "fail", "", "7 of the 8 GPUs that Slurm gave can be used"),
        ],
    ),
    (
        "reset-required",
        ["3 error nvmlDeviceGetMemoryInfo 16"],
        {},
        [("gpu-count", "fail", "GPU 3", f"cannot be used: it needs a reset before it can be used again{AT}")],
    ),
    (
        "power-cable",
        ["3 error nvmlDeviceGetHandleByIndex_v2 8"],
        {},
        [("gpu-count", "fail", "GPU 3", "cannot be used: its external power cables are not connected")],
    ),
    (
        "inforom",
        ["3 error nvmlDeviceGetName 14"],
        {},
        [("gpu-count", "warn", "GPU 3", f"answers with an error: its InfoROM is corrupted{AT}")],
    ),
    (
        "visible-gone",
        [],
        {"CUDA_VISIBLE_DEVICES": "GPU-000000a0,GPU-0000beef"},
        [("gpu-count", "fail", "GPU-0000beef", "CUDA_VISIBLE_DEVICES names GPU-0000beef, which is not there")],
    ),
    (
        "mig-gone",
        ["0 mig 1", "0 mig-device MIG-aaaa", "0 mig-device MIG-bbbb", "count 1"],
        {"CUDA_VISIBLE_DEVICES": "MIG-bbbb,MIG-cccc"},
        [("gpu-count", "fail", "MIG-cccc", "CUDA_VISIBLE_DEVICES names MIG-cccc, which is not there")],
    ),
    (
        "recovery-reset",
        ["3 field 230 1"],
        {},
        [("gpu-recovery", "fail", "GPU 3", f"the driver requests a GPU reset{AT}")],
    ),
    (
        "recovery-restart",
        ["3 field 230 2"],
        {},
        [("gpu-recovery", "fail", "GPU 3", f"the driver requests a restart of the node{AT}")],
    ),
    (
        "recovery-peers",
        ["3 field 230 3"],
        {},
        [("gpu-recovery", "fail", "GPU 3", f"the driver requests the end of programs with peer-to-peer access{AT}")],
    ),
    (
        "recovery-drain",
        ["3 field 230 4"],
        {},
        [("gpu-recovery", "fail", "GPU 3", f"the driver requests no new programs on the GPU, and then a reset{AT}")],
    ),
    (
        "ecc",
        ["3 volatile 2", "3 aggregate 2", "3 field 230 1"],
        {},
        [
            ("gpu-recovery", "fail", "GPU 3", f"the driver requests a GPU reset{AT}"),
            ("gpu-ecc", "fail", "GPU 3", f"2 uncorrected ECC errors since the last reset{AT}"),
        ],
    ),
    (
        "ecc-usable",
        ["3 volatile 1", "3 aggregate 4"],
        {},
        [
            (
                "gpu-ecc",
                "warn",
                "GPU 3",
                "1 uncorrected ECC error since the last reset (4 over its life); the driver permits",
            )
        ],
    ),
    (
        "ecc-off-on-one",
        ["3 ecc 0"],
        {},
        [("gpu-ecc", "warn", "GPU 3", f"ECC is off, on 7 other GPUs of this node it is on{AT}")],
    ),
    (
        "ecc-pending",
        ["3 ecc-pending 0"],
        {},
        [("gpu-ecc", "warn", "GPU 3", f"ECC will be off after the next reset, now it is not{AT}")],
    ),
    (
        "sram",
        ["3 sram-exceeded 1"],
        {},
        [("gpu-ecc", "fail", "GPU 3", f"uncorrected SRAM errors exceed NVIDIA's threshold for a replacement{AT}")],
    ),
    (
        "ecc-unreadable",
        ["3 error nvmlDeviceGetTotalEccErrors 999"],
        {},
        [("gpu-ecc", "unknown", "GPU 3", f"could not be read: unknown error{AT}")],
    ),
    (
        "rows-failed",
        ["3 rows 2 8 0 1"],
        {},
        [("gpu-rows", "fail", "GPU 3", f"a memory row could not be remapped: no spare row is left (10 remapped){AT}")],
    ),
    (
        "rows-pending",
        ["3 rows 0 1 1 0"],
        {},
        [("gpu-rows", "warn", "GPU 3", f"a memory row is to be remapped at the next reset (1 remapped){AT}")],
    ),
    (
        "nvlink-less",
        [f"3 links {BROKEN_LINKS}"],
        {},
        [("gpu-nvlink", "fail", "GPU 3", f"16 of 18 NVLinks are up, 18 on 7 of the 7 others (down: 16, 17){AT}")],
    ),
    (
        "fabric-failed",
        ["3 fabric 3 999"],
        {},
        [("gpu-nvlink", "fail", "GPU 3", f"the NVLink fabric could not be set up (NVML error 999){AT}")],
    ),
    (
        "fabric-not-started",
        ["3 fabric 1 0"],
        {},
        [("gpu-nvlink", "warn", "GPU 3", f"the NVLink fabric is not ready: not started{AT}")],
    ),
    (
        "fabric-in-progress",
        ["3 fabric 2 0"],
        {},
        [("gpu-nvlink", "warn", "GPU 3", f"the NVLink fabric is not ready: in progress{AT}")],
    ),
    (
        "width-half",
        ["3 width 8", "3 reasons 0"],
        {},
        [("gpu-pcie", "warn", "GPU 3", f"PCIe link x8 at work, x16 is possible{AT}")],
    ),
    (
        "width-quarter",
        ["3 width 4", "3 reasons 0"],
        {},
        [("gpu-pcie", "fail", "GPU 3", f"PCIe link x4 at work, x16 is possible{AT}")],
    ),
    (
        "width-idle",
        ["3 width 4"],
        {},
        [("gpu-pcie", "warn", "GPU 3", f"PCIe link x4 while idle, x16 on 7 of the 7 others just as idle{AT}")],
    ),
    (
        "generation-at-work",
        ["3 generation 3", "3 reasons 0"],
        {},
        [("gpu-pcie", "warn", "GPU 3", f"PCIe generation 3 at work, 5 is possible{AT}")],
    ),
    (
        "heat",
        ["3 reasons 0x48", "3 temperature 88"],
        {},
        [("gpu-clocks", "warn", "GPU 3", f"slowed down by heat (hardware slowdown) at 88 °C{AT}")],
    ),
    (
        "heat-by-software",
        ["3 reasons 0x20", "3 temperature 85"],
        {},
        [("gpu-clocks", "warn", "GPU 3", f"slowed down by heat (software slowdown) at 85 °C{AT}")],
    ),
    (
        "power-brake",
        ["3 reasons 0x88"],
        {},
        [("gpu-clocks", "warn", "GPU 3", f"slowed down by the power supply (power brake) at 34 °C{AT}")],
    ),
    (
        "slowdown",
        ["3 reasons 0x8"],
        {},
        [("gpu-clocks", "warn", "GPU 3", f"slowed down by its hardware (heat or power) at 34 °C{AT}")],
    ),
    (
        "near-its-end",
        ["3 temperature 93", "3 margin 0"],
        {},
        [("gpu-clocks", "fail", "GPU 3", f"93 °C: it switches itself off at 92 °C{AT}")],
    ),
    (
        "no-margin",
        ["3 temperature 87", "3 margin 0"],
        {},
        [("gpu-clocks", "warn", "GPU 3", f"87 °C: it slows down from 87 °C{AT}")],
    ),
    (
        "power-limit",
        ["3 limit 350000"],
        {},
        [("gpu-clocks", "warn", "GPU 3", f"power limit 350 W, most GPUs of this node have 700 W{AT}")],
    ),
]


@pytest.mark.parametrize(("lines", "environ", "wanted"), [pytest.param(*case[1:], id=case[0]) for case in FAULTS])
def test_a_fault_is_found_with_the_right_text(
    node: Standin, lines: list[str], environ: dict[str, str], wanted: list[tuple[str, str, str, str]]
) -> None:
    node.answer([line for line in lines if not line.startswith("count ")], *_count(lines))
    found = [one for one in node.run_checks("quick", environ=environ).findings() if not _see_count(one, wanted)]
    assert [one[:3] for one in found] == [one[:3] for one in wanted]
    for one, expected in zip(found, wanted, strict=True):
        assert one[3].startswith(expected[3])


def _count(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("count ")]


def _see_count(finding: tuple[str, str, str, str], wanted: list[tuple[str, str, str, str]]) -> bool:
    """The other checks say of a broken GPU that they could not read it; gpu-count says what it is."""
    return finding[1] == "unknown" and finding[:2] not in [one[:2] for one in wanted]


OLD_FAULTS = [
    ("old-ecc", ["3 volatile 1"], ("gpu-ecc", "fail", "GPU 3", f"1 uncorrected ECC error since the last reset{AT}")),
    (
        "old-pages-pending",
        ["3 retired-double 2", "3 retired-single 3", "3 retired-pending 1"],
        ("gpu-rows", "warn", "GPU 3", f"memory pages are to be retired at the next reset (5 retired){AT}"),
    ),
    (
        "old-pages",
        ["3 retired-double 60", "3 retired-single 3", "3 retired-pending 0"],
        ("gpu-rows", "fail", "GPU 3", f"63 memory pages are retired, NVIDIA replaces a GPU at 60{AT}"),
    ),
    (
        "old-heat",
        ["3 reasons 0x40"],
        ("gpu-clocks", "warn", "GPU 3", f"slowed down by heat (hardware slowdown) at 34 °C{AT}"),
    ),
    ("old-hot", ["3 temperature 90"], ("gpu-clocks", "warn", "GPU 3", f"90 °C: it slows down from 87 °C{AT}")),
    (
        "old-process",
        ["3 process 1 50000000000"],
        ("gpu-processes", "fail", "GPU 3", "pid 1 ("),
    ),
]


@pytest.mark.parametrize(("lines", "expected"), [pytest.param(*case[1:], id=case[0]) for case in OLD_FAULTS])
def test_a_fault_is_found_with_a_driver_of_2019(
    old_node: Standin, lines: list[str], expected: tuple[str, str, str, str]
) -> None:
    if expected[0] == "gpu-processes" and not _sees_pids():
        pytest.skip("processes are not judged within a PID namespace")
    old_node.answer(
        ["* field 230", *lines] if "ecc" not in expected[0] else ["* error nvmlDeviceGetFieldValues 13", *lines]
    )
    (found,) = old_node.run_checks("quick", environ=SLURM).findings()
    assert found[:3] == expected[:3]
    assert found[3].startswith(expected[3])


def _sees_pids() -> bool:
    return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"


@pytest.mark.parametrize("set_", ["quick", "background", "thorough"])
def test_a_healthy_node_has_no_findings(node: Standin, set_: str) -> None:
    look = node.run_checks(set_, environ=SLURM)
    assert look.findings() == []
    assert {verdict["status"] for verdict in look.verdicts.values()} == {"ok"}


def test_a_healthy_node_with_a_driver_of_2019_has_no_findings(old_node: Standin) -> None:
    assert old_node.run_checks("thorough", environ=SLURM).findings() == []


def test_a_driver_without_optional_functions_has_no_findings(node: Standin) -> None:
    functions = "EccMode TotalEccErrors SramEccErrorStatus RemappedRows RetiredPages FieldValues MarginTemperature"
    functions += " NvLinkState GpuFabricInfoV MigMode PcieReplayCounter PowerManagementLimit TemperatureThreshold"
    for code in (3, 13, 4):
        node.answer([f"* error nvmlDeviceGet{name} {code}" for name in functions.split()])
        assert node.run_checks("thorough", environ=SLURM).findings() == []


def test_a_node_without_the_library_has_no_findings(node: Standin, tmp_path: Path) -> None:
    node.library = tmp_path
    look = node.run_checks("thorough")
    assert look.findings() == []
    assert look.verdicts["gpu-driver"]["summary"] == "no NVIDIA driver here"


def test_a_cpu_job_on_a_gpu_node_has_no_findings(node: Standin) -> None:
    node.answer([], 0)
    assert node.run_checks("thorough", environ={"SLURM_JOB_ID": "7"}).findings() == []


def test_gpus_that_others_may_use_are_not_missed(node: Standin) -> None:
    node.answer([f"{number} error * 4" for number in (0, 1, 2, 3)])
    look = node.run_checks("quick", environ={"SLURM_GPUS_ON_NODE": "4"})
    assert look.findings() == []
    assert look.verdicts["gpu-count"]["summary"] == "4 GPUs"


def test_a_fault_of_another_jobs_gpu_does_not_fail_this_job(node: Standin) -> None:
    node.answer(["3 volatile 2", "3 field 230 1", "3 error nvmlDeviceGetTemperature 15"])
    job = {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "4,5"}
    assert [one[:2] for one in node.run_checks("thorough", environ=job).findings()] == [("gpu-count", "warn")]
    theirs = {"SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert ("gpu-ecc", "fail", "GPU 3") in [one[:3] for one in node.run_checks("thorough", environ=theirs).findings()]


def test_mig_devices_are_counted_and_their_gpu_is_judged(node: Standin) -> None:
    lines = ["0 mig 1", "0 mig-device MIG-aaaa", "0 mig-device MIG-bbbb", "0 mig-device MIG-cccc", "0 volatile 1"]
    lines += ["0 links " + LINKS.replace("1", "0"), "0 field 230 1"]
    node.answer(lines, 2)
    look = node.run_checks("quick", environ={"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "MIG-aaaa"})
    assert look.verdicts["gpu-count"]["summary"] == "4 GPU or MIG devices on 2 GPUs with MIG"
    assert [one[:3] for one in look.findings()] == [("gpu-recovery", "fail", "GPU 0"), ("gpu-ecc", "fail", "GPU 0")]


def test_growth_between_two_runs_is_reported(node: Standin) -> None:
    first = node.run_checks("background")
    node.answer(["3 volatile 2", "3 replays 9999", "3 field 162 1", "3 links " + BROKEN_LINKS, "3 field 180 1"])
    found = {(one[0], one[1]): one[3] for one in node.run_checks("background", before=first.facts).findings()}
    assert "2 of them new" in found["gpu-ecc", "warn"]
    assert found["gpu-nvlink", "fail"] == f"NVLink 16, 17 went down since the last check, 16 of 18 are up{AT}"
    assert found["gpu-nvlink", "warn"] == f"NVLink recoveries: 16 since the last check{AT}"
    assert "fatal PCIe error" in found["gpu-pcie", "warn"]


def test_a_slowdown_in_two_consecutive_runs_fails(node: Standin) -> None:
    node.answer(["3 reasons 0x88"])
    first = node.run_checks(["gpu-clocks"])
    ((_, status, _, text),) = node.run_checks(["gpu-clocks"], before=first.facts).findings()
    assert status == "fail"
    assert "as at the last check" in text


def test_a_rank_of_this_job_is_no_foreign_process(node: Standin) -> None:
    if not _sees_pids():
        pytest.skip("processes are not judged within a PID namespace")
    node.answer([f"3 process {os.getpid()} 50000000000", "3 used 50000000000"])
    assert node.run_checks(["gpu-processes"], own_pid=os.getpid(), busy=True).findings() == []
    ((_, status, subject, text),) = node.run_checks(["gpu-processes"], environ=SLURM).findings()
    assert (status, subject) == ("fail", "GPU 3")
    assert f"pid {os.getpid()} (" in text
    assert f"user {os.getuid()}) is on it and holds 46.6 of 80.0 GiB" in text


def test_a_process_of_another_step_of_this_job_does_not_cost_it_the_node(node: Standin) -> None:
    if not _sees_pids():
        pytest.skip("processes are not judged within a PID namespace")
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"}
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, **step})
    try:
        node.answer([f"3 process {other.pid} 50000000000", "3 used 50000000000"])
        looks = [node.run_checks(["gpu-processes"], environ={**SLURM, "SLURM_JOB_ID": job}) for job in ("77", "78")]
    finally:
        other.kill()
        other.wait()
    ((_, status, _, text),), ((_, of_another_job, _, _),) = (look.findings() for look in looks)
    assert (status, of_another_job) == ("warn", "fail")
    assert f"user {os.getuid()}, step 2 of this job) is on it" in text


@pytest.mark.parametrize(
    ("function", "check", "call", "read"),
    [
        ("nvmlInitWithFlags", "gpu-driver", "nvmlInit", ""),
        ("nvmlDeviceGetCount_v2", "gpu-driver", "nvmlDeviceGetCount", ""),
        (
            "nvmlDeviceGetHandleByIndex_v2",
            "gpu-count",
            "nvmlDeviceGetHandleByIndex of GPU 0",
            " (gpu-driver: read before)",
        ),
    ],
)
def test_a_driver_that_hangs_is_one_finding_with_the_call_and_leaves_no_process(
    node: Standin, function: str, check: str, call: str, read: str
) -> None:
    node.answer([f"* hang {function}"])
    look = node.run_checks("quick", limit_s=0.5)
    assert look.took_s < 1.5
    text = f"the NVIDIA driver hangs: no answer within 0.5 s in {call}{read}"
    assert look.findings() == [(check, "fail", "", text)]
    others = {name: verdict for name, verdict in look.verdicts.items() if name.startswith("gpu-") and name != check}
    unread = [verdict for name, verdict in others.items() if f"{name}: read" not in read]
    assert {(one["status"], one["summary"]) for one in unread} == {("unknown", f"not read: see {check}")}
    assert look.stuck == []


def test_what_was_read_before_a_hang_is_judged(node: Standin) -> None:
    node.answer(["3 hang nvmlDeviceGetTotalEccErrors", "3 field 230 1"])
    look = node.run_checks("quick", limit_s=1.0)
    text = "the NVIDIA driver hangs: no answer within 1 s in nvmlDeviceGetTotalEccErrors of GPU 3"
    assert look.findings() == [
        ("gpu-recovery", "fail", "GPU 3", f"the driver requests a GPU reset{AT}"),
        ("gpu-ecc", "warn", "", f"{text} (gpu-driver, gpu-count, gpu-recovery: read before)"),
    ]


class Watcher:
    """The Xid watcher as a process."""

    def __init__(self, node: Standin, directory: Path) -> None:
        self.pipe = directory / "events"
        os.mkfifo(self.pipe)
        node.answer([f"events {self.pipe}"], 8)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftslurm.health.xid"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=node.environment(),
            text=True,
        )

    def event(self, text: str) -> None:
        with open(self.pipe, "w") as pipe:  # waits until it is read
            pipe.write(text + "\n")

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        report: dict[str, Any] = json.loads(self.process.stdout.readline())
        return report


@pytest.fixture
def watcher(node: Standin, tmp_path: Path) -> Iterator[Watcher]:
    one = Watcher(node, tmp_path)
    yield one
    one.process.kill()
    one.process.communicate()


def test_xids_are_reported_as_they_happen(watcher: Watcher) -> None:
    watcher.event("3 79")
    report = watcher.line()
    assert abs(report.pop("time_ns") - time.time_ns()) < 60e9
    assert report == {
        "gpu": 3,
        "bus_id": "0000:4b:00.0",
        "xid": 79,
        "text": "the GPU has fallen off the bus",
        "status": "fail",
        "advice": "Have the node drained and power-cycled.",
    }
    watcher.event("0 13\n1 ecc")
    assert [(report["gpu"], report["xid"], report["status"]) for report in (watcher.line(), watcher.line())] == [
        (0, 13, "ok"),
        (1, None, "fail"),
    ]


def test_waiting_for_xids_costs_nothing(watcher: Watcher) -> None:
    watcher.event("3 31")
    watcher.line()
    began = _cpu_s(watcher.process.pid)
    time.sleep(1.0)
    assert _cpu_s(watcher.process.pid) - began <= 0.01


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_watcher_ends_on_sigterm_even_while_it_waits(watcher: Watcher) -> None:
    watcher.event("3 31")
    watcher.line()
    watcher.process.send_signal(signal.SIGINT)
    watcher.event("3 32")
    assert watcher.line()["xid"] == 32
    watcher.process.terminate()
    assert watcher.process.wait(5) == -signal.SIGTERM


def test_a_gpu_that_is_lost_while_waiting_is_reported(node: Standin, tmp_path: Path) -> None:
    node.answer(["* error nvmlEventSetWait_v2 15", "3 error nvmlDeviceGetTemperature 15"])
    with subprocess.Popen(
        [sys.executable, "-m", "ftslurm.health.xid"], stdout=subprocess.PIPE, env=node.environment(), text=True
    ) as process:
        assert process.stdout is not None
        printed = json.loads(process.stdout.readline())
        process.kill()
    assert (printed["gpu"], printed["xid"], printed["bus_id"], printed["status"]) == (3, 79, "0000:4b:00.0", "fail")


def test_the_watcher_dies_with_its_parent(node: Standin, tmp_path: Path) -> None:
    pipe = tmp_path / "events"
    os.mkfifo(pipe)
    node.answer([f"events {pipe}"])
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'ftslurm.health.xid'], stdout=sys.stdout)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env=node.environment(), text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    with open(pipe, "w") as events:
        events.write("2 48\n")
    assert json.loads(parent.stdout.readline())["xid"] == 48
    parent.kill()
    parent.communicate()
    assert wait_until_gone([pid])


@pytest.mark.parametrize(
    "lines", [["* error nvmlInitWithFlags 9"], ["* event-types 0"], ["* error nvmlEventSetCreate 3"]]
)
def test_the_watcher_ends_silently_without_events(node: Standin, lines: list[str]) -> None:
    node.answer(lines)
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm.health.xid"],
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_watcher_ends_silently_without_nvml(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftslurm.health.xid"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
