"""Lines of the kernel's log that a user wrote: none of their text is taken for the node's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftslurm.health.check import Context
from ftslurm.health.checks import host_kernel_log
from ftslurm.health.verdict import Json, Judgement
from ftslurm.records.health import FAIL
from tests.unit.health_trees import Tree
from tests.unit.test_health_kernel_log import FAULTS

NOW = 10_000.0
GENUINE = [str(line) for fault in FAULTS for line in dict.fromkeys(fault.values[0])]  # type: ignore[call-overload]
"""At least one line of each pattern."""


def in_kmsg(text: str) -> str:
    """Return text as /dev/kmsg writes it."""
    return "".join(chr(c) if 32 <= c < 127 and c != 92 else f"\\x{c:02x}" for c in text.encode())


def name(text: str) -> str:
    """Return the name that a task gets by prctl(PR_SET_NAME): 15 bytes."""
    return in_kmsg(text.encode()[:15].decode("utf-8", "ignore"))


def file(text: str) -> str:
    """Return the name of a file with that text: no slash, 255 bytes."""
    return in_kmsg(text.replace("/", "|")[:255])


Carrier = Callable[[str], str]

_AT = "at 0 ip 00007f6526385ad8 sp 00007ffe9aa8df68 error 4"
CARRIERS: dict[str, Carrier] = {
    "segfault-file": lambda text: f"python[42]: segfault {_AT} in {file(text)}[1000,7f6526300000+1000]",
    "segfault-task": lambda text: f"{name(text)}[42]: segfault {_AT} in libc.so.6[28000,7f6526300000+195000]",
    "segfault-both": lambda text: f"{name(text)}[42]: segfault {_AT} in {file(text[15:])}[1000,7f6526300000+1000]",
    "segfault-fragment": lambda text: f" in {file(text)}[7f6526300000+1000]",
    "unhandled-arm64": lambda text: (
        f"{name(text)}[42]: unhandled level 2 translation fault (11) at 0x0, esr 0x92000046, in {file(text)}[0+1000]"
    ),
    "traps-task": lambda text: f"traps: {name(text)}[42] general protection fault ip:55d0c7 sp:7ffd error:0 in python",
    "traps-file": lambda text: f"traps: python[42] trap invalid opcode ip:55d0c7 sp:7ffd error:0 in {file(text)}[1000]",
    "bad-frame": lambda text: (
        f"{name(text)}[42] bad frame in rt_sigreturn frame:7ffd ip:7f65 sp:7ffd orax:f in libc.so"
    ),
    "fatal-signal": lambda text: f"{name(text)}/42: potentially unexpected fatal signal 11.",
    "oom-invoked": lambda text: (
        f"{name(text)} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"
    ),
    "oom-line": lambda text: (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={file(text)},mems_allowed=0,"
        f"oom_memcg=/user.slice/{file(text)},task_memcg=/user.slice/{file(text)},task={name(text)},pid=42,uid=1000"
    ),
    "oom-table": lambda text: f"[     42]  1000    42    92160    80000   700416        0             0 {name(text)}",
    "oom-limit": lambda text: f"Memory cgroup out of memory: Killed process 42 ({name(text)}) total-vm:370336kB",
    "oom-group": lambda text: f"Memory cgroup stats for /user.slice/{file(text)}:",
    "pids-limit": lambda text: f"cgroup: fork rejected by pids controller in /user.slice/{file(text)}",
    "no-page": lambda text: (
        f"{name(text)}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), nodemask=(null),"
        f"cpuset={file(text)},mems_allowed=0"
    ),
    "drop-caches": lambda text: f"{name(text)} (42): drop_caches: 3",
    "stack-depth": lambda text: f"{name(text)} (42) used greatest stack depth: 11000 bytes left",
    "executable-stack": lambda text: f"process '{file(text)}' started with executable stack",
    "capabilities": lambda text: (
        f"warning: `{name(text)}' uses deprecated v2 capabilities in a way that may be insecure"
    ),
    "netlink": lambda text: f"netlink: 4 bytes leftover after parsing attributes in process `{name(text)}'.",
    "obsolete": lambda text: f"{name(text)} uses obsolete (PF_INET,SOCK_PACKET)",
    "audit": lambda text: (
        f'audit: type=1701 audit(1.2:3): uid=1000 pid=42 comm="{name(text)}" exe="/x/{file(text)}" sig=11'
    ),
    "stack-dump": lambda text: f"CPU: 0 PID: 42 Comm: {name(text)} Not tainted 6.1.0-18-amd64 #1",
    "umip": lambda text: f"umip: {name(text)}[42] ip:401000 sp:7ffd: SGDT instruction cannot be used by applications.",
    "split-lock": lambda text: (
        f"x86/split lock detection: #AC: {name(text)}/42 took a split_lock trap at address: 0x40"
    ),
    "xfs-memory": lambda text: f"XFS: {name(text)}(42) possible memory allocation deadlock size 65552 in kmem_alloc",
    "amdgpu-process": lambda text: (
        f"amdgpu 0000:c1:00.0: amdgpu:  Process {name(text)} pid 42 thread {name(text)} pid 42"
    ),
    "xid-name": lambda text: f"NVRM: Xid (PCI:0000:3b:00): 31, pid=42, name={name(text)}, Ch 00000010, intr 00000000.",
}
"""What the kernel writes of its own accord, with text that a user chooses."""

NAMED: dict[str, Carrier] = {
    "hung-task": lambda text: f"INFO: task {name(text)}:42 blocked for more than 120 seconds.",
    "soft-lockup": lambda text: f"watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [{name(text)}:42]",
    "out-of-memory": lambda text: f"Out of memory: Killed process 42 ({name(text)}) total-vm:90000kB",
    "ext4": lambda text: f"EXT4-fs error (device sda1): ext4_lookup:1855: inode #2: comm {name(text)}: checksumming",
    "btrfs": lambda text: f"BTRFS error (device sda1): parent transid verify failed, comm {name(text)}",
    "poisoned": lambda text: f"Memory failure: 0x1fc8a3: Sending SIGBUS to {name(text)}:42 due to hardware memory",
    "xid": lambda text: f"NVRM: Xid (PCI:0000:3b:00): 94, pid=42, name={name(text)}, Contained: SM (0x1).",
}
"""Genuine lines with a name that a user chooses."""


def judge(*texts: str) -> Judgement:
    lines = [{"at_s": NOW - 60.0, "text": text} for text in texts]
    facts: Json = {"lines": lines, "count": len(lines), "at_s": NOW, "boot": "a"}
    return host_kernel_log.judge(facts, None, Context("n1"))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_text_of_a_users_choice_is_taken_for_a_drivers(carrier: str) -> None:
    believed = [line for line in GENUINE if judge(*[CARRIERS[carrier](line)] * 30).findings]
    assert believed == []


@pytest.mark.parametrize("carrier", CARRIERS)
def test_no_part_of_a_drivers_line_is_believed_either(carrier: str) -> None:
    forged = [CARRIERS[carrier](line[begin:]) for line in GENUINE for begin in range(1, min(40, len(line)))]
    assert judge(*forged).findings == ()


@pytest.mark.parametrize("carrier", NAMED)
def test_a_name_in_a_genuine_line_does_not_change_its_meaning(carrier: str) -> None:
    expected = [(finding.status, finding.advice) for finding in judge(NAMED[carrier]("python")).findings]
    assert len(expected) == 1
    for line in GENUINE:
        for begin in range(min(40, len(line))):
            found = judge(NAMED[carrier](line[begin:])).findings
            assert [(finding.status, finding.advice) for finding in found] == expected, line[begin:]


def test_thousands_of_forged_lines_give_no_verdict_and_displace_none_that_is_real(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.boot("a")
    forged = [carrier(line) for line in GENUINE for carrier in CARRIERS.values()]
    assert len(forged) > 1000
    micros = int((host_kernel_log.time.monotonic() - 5.0) * 1e6)
    for first, expected in (("nothing of interest", []), (GENUINE[0], [FAIL])):
        tree.file("dev/kmsg", "".join(f"6,1,{micros},-;{text}\n" for text in (first, *forged)))
        facts = host_kernel_log.fetch(Context("n1", root=tree.root))
        judgement = host_kernel_log.judge(facts, None, Context("n1"))
        assert [finding.status for finding in judgement.findings] == expected
