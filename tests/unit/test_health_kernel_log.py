"""What the kernel's log says of a node: lines as real kernels and drivers write them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.health.check import Absent, Context
from ftslurm.health.checks import host_kernel_log
from ftslurm.health.kernel_log_patterns import PATTERNS, is_relevant
from ftslurm.health.verdict import Json, Judgement, describe, worst
from ftslurm.records.health import FAIL, WARN
from tests.unit.health_trees import Tree

NOW = 10_000.0
NODE = Context("n1")
AER = "0000:81:00.0: AER: PCIe Bus Error: severity="
LUSTRE = "Lustre: work-OST0003-osc-ffff9f2e: Connection"


def facts(*texts: str, at_s: float = NOW - 60.0, boot: str = "a") -> Json:
    lines = [{"at_s": at_s + n, "text": text} for n, text in enumerate(texts)]
    return {"lines": lines, "count": len(lines), "at_s": NOW, "boot": boot}


def judge(*texts: str, before: Json | None = None, at_s: float = NOW - 60.0) -> Judgement:
    return host_kernel_log.judge(facts(*texts, at_s=at_s), before, NODE)


FAULTS = [
    pytest.param(
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",),
        FAIL,
        "GPU 0000:3b:00.0: Xid 79: the GPU has fallen off the bus (1 min ago)",
        id="xid-fatal",
    ),
    pytest.param(
        ("NVRM: Xid (PCI:0000:3b:00): 94, pid=1234, Contained: SM (0x1). RST: No, D-RST: No",) * 3,
        WARN,
        "GPU 0000:3b:00.0: Xid 94: contained memory error: it hit one program, which must be started again"
        " (3 times, the last 58 s ago)",
        id="xid-contained",
    ),
    pytest.param(
        ("nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error",),
        FAIL,
        "3: fatal error of an NVSwitch",
        id="nvswitch-fatal",
    ),
    pytest.param(
        ("EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x7f)",),
        FAIL,
        "MC1: uncorrected hardware error: EDAC MC1: 1 UE memory read error on CPU_SrcID#1",
        id="memory-uncorrected",
    ),
    pytest.param(
        ("mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 3: be00000000800400",),
        FAIL,
        "uncorrected hardware error",
        id="machine-check",
    ),
    pytest.param(
        ("{1}[Hardware Error]: event severity: fatal",), FAIL, "uncorrected hardware error", id="firmware-says-fatal"
    ),
    pytest.param(
        ("Memory failure: 0x1fc8a3: Sending SIGBUS to python:4242 due to hardware memory corruption",),
        FAIL,
        "uncorrected hardware error",
        id="memory-poisoned",
    ),
    pytest.param(
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",) * 12,
        WARN,
        "MC0: many corrected memory errors: EDAC MC0: 1 CE memory read error",
        id="memory-corrected-often",
    ),
    pytest.param(
        (f"pcieport {AER}Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",),
        FAIL,
        "0000:81:00.0: fatal error on the PCIe bus",
        id="pcie-fatal",
    ),
    pytest.param(
        ("nvme 0000:81:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",),
        WARN,
        "0000:81:00.0: error on the PCIe bus",
        id="pcie-uncorrected",
    ),
    pytest.param(
        (f"pcieport {AER}Corrected, type=Physical Layer",) * 25,
        WARN,
        "0000:81:00.0: many corrected errors on the PCIe bus",
        id="pcie-corrected-often",
    ),
    pytest.param(
        ("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!. Source:  1",),
        WARN,
        "0000:c1:00.0: the AMD GPU's driver had to reset it",
        id="amdgpu-reset",
    ),
    pytest.param(
        ("mlx5_core 0000:17:00.0: poll_health:845:(pid 0): device's health compromised - reached miss count",),
        WARN,
        "0000:17:00.0: the network card's firmware has stopped",
        id="nic-firmware",
    ),
    pytest.param(
        ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3",),
        FAIL,
        "cpu 3: a CPU hangs with interrupts off",
        id="hard-lockup",
    ),
    pytest.param(
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:4242]",),
        WARN,
        "CPU#12: a CPU was stuck in the kernel",
        id="soft-lockup",
    ),
    pytest.param(("rcu: INFO: rcu_sched self-detected stall on CPU",), WARN, "CPUs did not answer", id="rcu-stall"),
    pytest.param(
        ("INFO: task python:4242 blocked for more than 120 seconds.",),
        WARN,
        "python:4242: it hangs in the kernel: INFO: task python:4242 blocked for more than 120 seconds.",
        id="hung-task",
    ),
    pytest.param(("Oops: 0002 [#1] SMP NOPTI",), WARN, "the kernel hit a bug: Oops: 0002", id="oops"),
    pytest.param(
        ("Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT_DYNAMIC SMP",),
        WARN,
        "the kernel hit a bug: Oops: general protection fault",
        id="oops-6",
    ),
    pytest.param(("Internal error: Oops: 0000000096000004 [#1] SMP",), WARN, "the kernel hit a bug", id="oops-arm64"),
    pytest.param(
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008",), WARN, "the kernel hit", id="bug-null"
    ),
    pytest.param(
        ("{7}[Hardware Error]:   Error 0, type: fatal",), FAIL, "uncorrected hardware error", id="firmware-error"
    ),
    pytest.param(
        ("MCE: Killing python:4242 due to hardware memory corruption fault at 7f52a3c00000",),
        FAIL,
        "uncorrected hardware error",
        id="memory-poisoned-used",
    ),
    pytest.param(
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0",),
        FAIL,
        "0000:00:01.0: fatal error on the PCIe bus",
        id="pcie-port-fatal",
    ),
    pytest.param(
        ("amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0, 2 uncorrectable hardware errors detected in umc block",),
        WARN,
        "0000:c1:00.0: the AMD GPU's driver had to reset it",
        id="amdgpu-uncorrectable",
    ),
    pytest.param(("thermal thermal_zone0: acpitz: critical temperature reached",), WARN, "too hot", id="too-hot-board"),
    pytest.param(
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3",), FAIL, "cpu 3: a CPU hangs", id="hard-lockup-old"
    ),
    pytest.param(
        ("BTRFS: error (device sda1: state EA) in btrfs_sync_log:3105: errno=-5; forced readonly",),
        WARN,
        "sda1: the filesystem was stopped after an error",
        id="btrfs-read-only",
    ),
    pytest.param(
        ("Buffer I/O error on dev dm-0, logical block 17, lost async page write",), WARN, "dm-0: the disk", id="buffer"
    ),
    pytest.param(
        ("blk_update_request: critical medium error, dev sdb, sector 8 op 0x0:(READ) flags 0x0",),
        WARN,
        "sdb: the disk gives errors",
        id="medium-error",
    ),
    pytest.param(("BUG: unable to handle page fault for address: ffffb2e0",), WARN, "the kernel hit a bug", id="bug"),
    pytest.param(
        ("Out of memory: Killed process 4242 (python) total-vm:90000kB, anon-rss:80000kB",),
        WARN,
        "the node ran out of memory: Out of memory: Killed process 4242 (python)",
        id="out-of-memory",
    ),
    pytest.param(
        ("mce: CPU7: Package temperature above threshold, cpu clock throttled (total events = 3)",),
        WARN,
        "too hot",
        id="too-hot",
    ),
    pytest.param(
        ("EXT4-fs error (device sda1): ext4_lookup:1855: inode #2: comm ls: checksumming directory block 0",),
        WARN,
        "sda1: the filesystem is damaged",
        id="ext4-error",
    ),
    pytest.param(
        ("EXT4-fs (sda1): Remounting filesystem read-only",),
        WARN,
        "sda1: the filesystem was stopped after an error",
        id="ext4-read-only",
    ),
    pytest.param(
        ("XFS (nvme0n1p1): Log I/O Error (0x2) detected at xlog_ioend_work. Shutting down filesystem.",),
        WARN,
        "nvme0n1p1: the filesystem was stopped after an error",
        id="xfs-shutdown",
    ),
    pytest.param(
        ("I/O error, dev nvme1n1, sector 123456 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 0",) * 7,
        WARN,
        "nvme1n1: the disk gives errors",
        id="disk-error",
    ),
    pytest.param(
        ("nvme nvme0: I/O 12 QID 4 timeout, aborting",), WARN, "nvme0: the disk did not answer", id="nvme-timeout"
    ),
    pytest.param(
        ("nfs: server nas-3.example not responding, still trying",),
        WARN,
        "nas-3.example: the NFS server does not answer",
        id="nfs-server",
    ),
    pytest.param(
        (f"{LUSTRE} to work-OST0003 (at 10.0.0.5@o2ib) was lost; in progress operations using this service will wait",),
        WARN,
        "work-OST0003-osc-ffff9f2e: Lustre has lost a server",
        id="lustre-lost",
    ),
    pytest.param(
        ("LustreError: 167-0: work-OST0001-osc-ff: This client was evicted by work-OST0001; in progress operations",),
        WARN,
        "work-OST0001-osc-ff: Lustre evicted this node",
        id="lustre-evicted",
    ),
]


@pytest.mark.parametrize(("lines", "status", "expected"), FAULTS)
def test_faults_are_found(lines: tuple[str, ...], status: str, expected: str) -> None:
    judgement = judge(*lines)
    assert [expected in describe(finding) for finding in judgement.findings] == [True], judgement
    assert worst(finding.status for finding in judgement.findings) == status
    assert judgement.summary == "1 bad in the last 10 min"
    assert all(is_relevant(line.encode()) for line in lines)
    assert all(finding.advice.endswith(".") for finding in judgement.findings)


def test_every_row_is_found_by_some_line() -> None:
    lines = [line for fault in FAULTS for line in fault.values[0]]  # type: ignore[union-attr]
    assert [known.name for known in PATTERNS if not any(re.match(known.pattern, str(line)) for line in lines)] == []


@pytest.mark.parametrize(
    "lines",
    [
        ("python[4242]: segfault at 0 ip 00007f6526385ad8 sp 00007ffe9aa8df68 error 4 in libc.so.6",),
        ("traps: python[4242] general protection fault ip:55d0c7 sp:7ffd in python3.11",),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4242, Ch 00000010, intr 00000000. MMU Fault",),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=4242, Ch 00000010",),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.15",),
        ("nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 22013, Non-fatal, Link 12 minion Link DLREQ interrupt",),
        ("I/O error, dev fd0, sector 0 op 0x0:(READ)", "Buffer I/O error on dev sr0, logical block 0"),
        ("EXT4-fs (vda): mounted filesystem 1234 r/w with ordered data mode. Quota mode: none.",),
        ("EXT4-fs (loop0): Remounting filesystem read-only", "EXT4-fs error (device loop0): trigger_test_error:125"),
        ("EXT4-fs (vda): re-mounted 1234 ro. Quota mode: none.",),
        ("EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0: DEV 0000:7e:0c.0",),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",) * 9,
        (f"pcieport {AER}Corrected, type=Data Link Layer",) * 3,
        ("pcieport 0000:00:01.0: AER: enabled with IRQ 25",),
        ("nfs: server nas not responding, still trying", "nfs: server nas OK"),
        (f"{LUSTRE} to work-OST0003 (at 1.2.3.4@tcp) was lost; in progress", f"{LUSTRE} restored to 1.2.3.4@tcp"),
        ("mce: CPU7: Core temperature/speed normal",),
        ("nvme nvme0: 64/0/0 default/read/poll queues",),
        ("usb 1-1: device descriptor read/64, error -110",),
        ("mlx5_core 0000:17:00.0 eth2: Link up",),
        ("amdgpu 0000:c1:00.0: amdgpu: GPU reset(2) succeeded!",),
        ("rcu: \tOffload RCU callbacks from CPUs: (none).",),
        ("audit: type=1400 apparmor=ALLOWED",),
    ],
)
def test_normal_conditions_are_not_found(lines: tuple[str, ...]) -> None:
    assert judge(*lines) == Judgement("nothing bad in the last 10 min")


def test_a_job_that_hits_its_own_limit_is_reported_but_is_not_the_nodes_fault() -> None:
    line = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:370336kB"
    assert judge(line, line) == Judgement("nothing bad in the last 10 min; 2 killed for the memory limit of their job")


def test_a_server_that_answers_proves_nothing_about_another() -> None:
    judgement = judge("nfs: server a not responding, still trying", "nfs: server b OK")
    assert [finding.subject for finding in judgement.findings] == ["a"]


def test_the_worst_comes_first() -> None:
    lines = [str(fault.values[0][0]) for fault in FAULTS if fault.id in ("nfs-server", "xid-fatal")]  # type: ignore[index]
    assert [finding.status for finding in judge(*lines).findings] == [FAIL, WARN]


def test_old_lines_are_not_reported_but_all_since_the_run_before() -> None:
    old = "nfs: server nas not responding, still trying"
    assert judge(old, at_s=NOW - 700.0).findings == ()
    assert judge(old, at_s=NOW - 700.0, before={**facts(), "at_s": NOW - 30.0}).findings == ()
    longer = judge(old, at_s=NOW - 700.0, before={**facts(), "at_s": NOW - 3600.0})
    assert [finding.status for finding in longer.findings] == [WARN] and longer.summary == "1 bad in the last 1 h"
    assert judge(old, at_s=NOW - 700.0, before={**facts(boot="b"), "at_s": NOW - 3600.0}).findings == ()


@pytest.mark.parametrize(
    ("fault", "counts"),
    [("xid-fatal", True), ("memory-uncorrected", True), ("disk-error", True), ("hung-task", False), ("oops", False)]
    + [("out-of-memory", False), ("nfs-server", False), ("lustre-evicted", False), ("soft-lockup", False)],
)
def test_before_the_job_only_the_nodes_own_hardware_counts(fault: str, counts: bool) -> None:
    lines = next(one.values[0] for one in FAULTS if one.id == fault)
    found = facts(*lines, at_s=NOW - 60.0)  # type: ignore[misc]
    later, earlier = replace(NODE, job_since_s=NOW - 30.0), replace(NODE, job_since_s=NOW - 90.0)
    assert bool(host_kernel_log.judge(found, None, later).findings) is counts
    assert host_kernel_log.judge(found, None, earlier).findings
    assert Context.of_json(later.to_json()).job_since_s == NOW - 30.0, "as a look receives it"


def test_control_characters_of_a_line_do_not_reach_the_terminal() -> None:
    (finding,) = judge("Oops: \x1b[31m \x07: 0002 [#1]").findings
    assert "\x1b" not in finding.text and "Oops:  \\x07: 0002" in finding.text


# The log itself


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.boot("a")
    return tree


def record(text: str, priority: int = 6, at_s: float | None = None, flag: str = "-") -> str:
    at_s = host_kernel_log.time.monotonic() - 5.0 if at_s is None else at_s
    return f"{priority},339,{int(at_s * 1e6)},{flag};{text}"


def test_records_are_read_with_their_time_and_only_the_kernels(tree: Tree) -> None:
    tree.file(
        "dev/kmsg",
        "\n".join(
            [
                record("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."),
                " SUBSYSTEM=pci",
                " DEVICE=+pci:0000:3b:00.0",
                record("nothing of interest"),
                record("NVRM: Xid (PCI:0000:3b:00): 79, written by a user", priority=14),
                record("I/O error, dev sda, sector 0", at_s=host_kernel_log.time.monotonic() - 90000),
                "I/O error without a head",
                "6,x,y,-;I/O error, dev sda, sector 0",
                record("NVRM: Xid (PCI:0000:3b:00): 79, a fragment of a line", flag="c"),
            ]
        ),
    )
    found = host_kernel_log.fetch(Context("n1", root=tree.root))
    assert [line["text"][:9] for line in found["lines"]] == ["NVRM: Xid"] and found["count"] == 6
    assert found["at_s"] - found["lines"][0]["at_s"] == pytest.approx(5.0, abs=1.0) and found["boot"] == "a"
    assert [f.status for f in host_kernel_log.judge(found, None, NODE).findings] == [FAIL]


def test_of_a_flood_the_newest_lines_are_kept(tree: Tree) -> None:
    tree.file("dev/kmsg", "\n".join(record(f"I/O error, dev sda, sector {n}" + "x" * 500) for n in range(9000)))
    found = host_kernel_log.fetch(Context("n1", root=tree.root))
    # A real log gives a record at a time; of a file the borders of reads cut some.
    assert len(found["lines"]) == 200 and "sector 8999" in found["lines"][-1]["text"]
    assert max(len(line["text"]) for line in found["lines"]) == 300


def test_a_log_that_is_not_there_or_not_for_us_is_absent(tree: Tree) -> None:
    with pytest.raises(Absent, match=re.escape("the kernel's log is not readable here (No such file or directory)")):
        host_kernel_log.fetch(Context("n1", root=tree.root))
    (tree.path / "dev/kmsg").mkdir(parents=True)
    with pytest.raises(Absent, match="not readable here"):
        host_kernel_log.fetch(Context("n1", root=tree.root))


def test_the_real_log_is_read_without_waiting() -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg is not readable here")
    began = host_kernel_log.time.monotonic()
    found = host_kernel_log.fetch(NODE)
    assert host_kernel_log.time.monotonic() - began < 1.5
    assert found["count"] >= 0
