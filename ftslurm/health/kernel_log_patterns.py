"""Kernel log lines relevant to a node's health: patterns and their meaning (pure).

A pattern has the displayed text; lines of one pattern and one subject are reported once, with their number. Failures of
programs (a segmentation fault, a job at its own memory limit) are not part of the node's health.

Users can place text in the kernel log: a task name (15 bytes) at the start of many lines, the name of a mapped file in
a line about a segmentation fault, the name of a cgroup in one about memory. So a pattern is matched from the line's
first character, where the driver's name is, and lines that begin with a task's name are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.health.verdict import Finding, Json
from ftslurm.health.xid_catalogue import XidLine, xid_in
from ftslurm.records.health import FAIL, OK, SEVERITY, WARN
from ftslurm.text import duration, one_line

HARDWARE = "Have the hardware inspected; drain the node if it recurs."


@dataclass(frozen=True)
class LinePattern:
    """One kind of message.

    Attributes:
        name: its key for counting.
        pattern: of the line from its start; an optional group `subject` is the device. Compiled on first use: most
            logs contain no match of any pattern.
        text: the displayed text; "{line}" is the line itself.
        least: fewer lines are ignored.
        over: pattern of the line that ends the condition; group `subject` must be the same.
        hardware: of the node itself. Other events count only since the start of the job: earlier ones belong to an
            earlier job.
    """

    name: str
    pattern: str
    status: str
    text: str
    advice: str
    least: int = 1
    over: str | None = None
    hardware: bool = True


_PCI = (
    r"[\w-]+ (?P<subject>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): (?:AER: )?(?:Multiple )?"
    r"(?:PCIe Bus Error: severity=)?"
)
_HARDWARE_ERROR = r"(?:mce: |BERT: |\{\d+\})?\[Hardware Error\]: "
# Loop devices are images of containers, not part of the node's health.
_DEVICE = r"\((?:device )?(?P<subject>(?!loop\d|device )[\w-]+)"
_BLOCK = r"(?:(?:blk_update_request|print_req_error|end_request): )?"

PATTERNS: tuple[LinePattern, ...] = (
    LinePattern(
        "memory-uncorrected",
        r"Memory failure: 0x[0-9a-f]+: |MCE: Killing .+:\d+ due to hardware memory corruption fault at "
        r"|EDAC (?P<subject>MC\d+): \d+ UE (?:.* )?on \S"
        rf"|{_HARDWARE_ERROR}(?:CPU \d+: Machine Check Exception: |.*\b(?:[Uu]ncorrect(?:ed|able)|[Ff]atal)\b)",
        FAIL,
        "uncorrected hardware error: {line}",
        "Have the node drained and its memory inspected.",
    ),
    LinePattern(
        "memory-corrected",
        r"EDAC (?P<subject>MC\d+): \d+ CE (?:.* )?on \S"
        rf"|{_HARDWARE_ERROR}(?:Corrected error|Machine check events logged)",
        WARN,
        "many corrected memory errors: {line}",
        "Have the memory module changed before it fails.",
        least=10,
    ),
    LinePattern(
        "pcie-fatal",
        _PCI + r"Uncorrect(?:ed|able) \(Fatal\)",
        FAIL,
        "fatal error on the PCIe bus: {line}",
        HARDWARE,
    ),
    LinePattern(
        "pcie-uncorrected",
        _PCI + r"Uncorrect(?:ed|able)\b",
        WARN,
        "error on the PCIe bus: {line}",
        HARDWARE,
    ),
    LinePattern(
        "pcie-corrected",
        _PCI + r"Correct(?:ed|able)\b",
        WARN,
        "many corrected errors on the PCIe bus: {line}",
        HARDWARE,
        least=20,
    ),
    LinePattern(
        "nvswitch",
        r"nvidia-nvswitch(?P<subject>\d+): SXid \(PCI:[0-9a-f:.]+\): \d+, Fatal",
        FAIL,
        "fatal error of an NVSwitch: {line}",
        "Have the node drained and power-cycled.",
    ),
    LinePattern(
        "amdgpu",
        # Further on in a line the driver prints the name of the task that uses the GPU.
        r"amdgpu (?P<subject>[0-9a-f:.]+): (?:amdgpu: )?(?:GPU reset(?:\(\d+\))? (?:begin|failed)"
        r"|[\w{}:, ]*\buncorrectable hardware errors? ?(?:detected|\()|Fatal error during GPU init)",
        WARN,
        "the AMD GPU's driver had to reset it: {line}",
        "Look at the GPU's RAS counters; have the node rebooted if it recurs.",
    ),
    LinePattern(
        "nic-firmware",
        r"mlx5_core (?P<subject>[0-9a-f:.]+): .*(?:health compromised|[Ff]atal error|firmware internal error"
        r"|assert_exit_ptr)",
        WARN,
        "the network card's firmware has stopped: {line}",
        "Look at its ports; have the node rebooted.",
    ),
    LinePattern(
        "hard-lockup",
        r"(?:NMI )?watchdog: (?:CPU\d+: )?Watchdog detected hard LOCKUP on (?P<subject>cpu \d+)",
        FAIL,
        "a CPU hangs with interrupts off: {line}",
        "Have the node rebooted.",
    ),
    LinePattern(
        "soft-lockup",
        r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - (?P<subject>CPU#\d+) stuck",
        WARN,
        "a CPU was stuck in the kernel: {line}",
        "Look at the lines after it in the kernel's log; have the node rebooted if it recurs.",
        hardware=False,
    ),
    LinePattern(
        "stalled",
        r"(?:rcu: )?INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall",
        WARN,
        "CPUs did not answer the kernel: {line}",
        "Look at the lines after it in the kernel's log.",
        hardware=False,
    ),
    LinePattern(
        "hung-task",
        r"INFO: task (?P<subject>.+?:\d+) blocked for more than",
        WARN,
        "it hangs in the kernel: {line}",
        "A driver or filesystem does not answer: look at the lines after it in the kernel's log.",
        hardware=False,
    ),
    LinePattern(
        "oops",
        r"(?:Internal error: |Oops: )?(?:Oops|general protection fault)\b.*: [0-9a-f]{4,16} \[#\d+\](?: [A-Z_]+\S*)*$"
        r"|kernel BUG at \S+:\d+!|BUG: (?:unable to handle|kernel NULL pointer dereference)",
        WARN,
        "the kernel hit a bug: {line}",
        "Have the node rebooted: what the kernel held then stays held.",
        hardware=False,
    ),
    LinePattern(
        "out-of-memory",
        r"Out of memory: Kill",
        WARN,
        "the node ran out of memory: {line}",
        "Find the processes that use the memory; the job's own limit was not the reason.",
        hardware=False,
    ),
    LinePattern(
        "too-hot",
        r"thermal thermal_zone\d+: (?:[\w-]+: )?critical temperature reached"
        r"|(?:mce: )?CPU\d+: (?:Core|Package) temperature(?:/speed)? (?:is )?above threshold",
        WARN,
        "too hot: {line}",
        "Look at fans, heat sinks and the room's temperature.",
    ),
    LinePattern(
        "made-read-only",
        rf"(?:EXT4-fs|XFS|BTRFS)(?: \w+|: \w+)? {_DEVICE}\b.*"
        r"(?:[Rr]emounting filesystem read-only|forced readonly|[Ss]hutting down filesystem"
        r"|Filesystem has been shut down)",
        WARN,
        "the filesystem was stopped after an error: {line}",
        "Have it checked and mounted again.",
    ),
    LinePattern(
        "filesystem-error",
        rf"(?:EXT4-fs error|BTRFS:? (?:error|critical)|XFS(?=.*(?:error|[Cc]orrupt))) {_DEVICE}\b",
        WARN,
        "the filesystem is damaged: {line}",
        "Have it checked (fsck).",
    ),
    LinePattern(
        "disk-error",
        # Many virtual machines probe missing floppy and CD drives at each start.
        rf"{_BLOCK}(?:I/O error, dev |Buffer I/O error on dev(?:ice)? |critical (?:medium|target) error, dev )"
        r"(?P<subject>(?!fd\d|sr\d|loop\d)[\w-]+), (?:sector|logical block) \d",
        WARN,
        "the disk gives errors: {line}",
        "Look at `smartctl -a` or `nvme smart-log` of it.",
    ),
    LinePattern(
        "nvme",
        r"nvme (?P<subject>nvme\d+): (?:controller is down|I/O .*timeout|Device not ready|Removing after probe)",
        WARN,
        "the disk did not answer: {line}",
        "Look at `nvme smart-log` of it.",
    ),
    LinePattern(
        "nfs",
        r"nfs: server (?P<subject>\S+) not responding",
        WARN,
        "the NFS server does not answer: {line}",
        "Look at the server and the way to it.",
        over=r"nfs: server (?P<subject>\S+) OK",
        hardware=False,
    ),
    LinePattern(
        "lustre-lost",
        r"Lustre: (?P<subject>\S+): Connection to \S+ \(at [^)]*\) was lost",
        WARN,
        "Lustre has lost a server: {line}",
        "Look at `lctl dl` and the server.",
        over=r"Lustre: (?P<subject>\S+): Connection restored to",
        hardware=False,
    ),
    LinePattern(
        "lustre-evicted",
        r"LustreError: (?:[\w-]+: )?(?P<subject>[\w-]+): This client was evicted by",
        WARN,
        "Lustre evicted this node; its unwritten data is lost: {line}",
        "Look at the network between node and server.",
        hardware=False,
    ),
)

_QUICK = (
    rb"NVRM: Xid|SXid|amdgpu|mlx5_core|Hardware Error|hardware memory|Memory failure|EDAC|AER:|Bus Error|LOCKUP"
    rb"|lockup|rcu: INFO|Machine Check|blocked for more|Oops|BUG|general protection|ut of memory: Kill|temperature"
    rb"|EXT4-fs|XFS|BTRFS|I/O error|critical |nvme|nfs: server|Connection |evicted"
)


_TASK_FIRST = re.compile(
    # /dev/kmsg writes a byte outside printable ASCII as \\xNN.
    r"(?:\\x[0-9a-f]{2}|.){0,15}?"
    r"(?:\[\d+\]|/\d+\b|:? ?\(\d+\)|: \d+: | invoked oom-killer|: [\w ]*(?:allocation|table at address)| uses? )"
)
"""A task's name, which its user chooses, followed by the kernel's text after a task name at a line's start:
"name[pid]: segfault", "name (pid): drop_caches", "name invoked oom-killer", "name: page allocation failure"."""

_LIMIT_REACHED = "Memory cgroup out of memory: Kill"


@dataclass(frozen=True)
class Line:
    """One line of the kernel's log: seconds since the start of the machine, and its text."""

    at_s: float
    text: str


def is_relevant(line: bytes) -> bool:
    """Return whether a line matches a pattern, an Xid, or a reached memory limit: others are dropped."""
    # Most lines contain none of these words, and cost one search.
    if re.search(_QUICK, line) is None:
        return False
    text = line.decode("utf-8", "replace")
    return text.startswith(_LIMIT_REACHED) or xid_in(text) is not None or _match_of(text) is not None


def findings(lines: Sequence[Line], now_s: float, job_since_s: float | None = None) -> tuple[list[Finding], int]:
    """Return the findings of the lines, and the number of processes killed at their job's own limit.

    Args:
        now_s: seconds since the start of the machine.
        job_since_s: start of the job here, likewise; None: the checks run outside a job.
    """
    found = _xids(lines, now_s)
    for (pattern, subject), matched in _by_pattern(lines).items():
        since_s = 0.0 if pattern.hardware or job_since_s is None else job_since_s
        those = [line for line in matched if line.at_s >= since_s]
        if len(those) >= pattern.least:
            text = pattern.text.format(line=one_line(those[-1].text, 160))
            found.append(Finding(pattern.status, subject, f"{text}{_when(those, now_s)}", pattern.advice))
    limits = sum(line.text.startswith(_LIMIT_REACHED) for line in lines)
    return sorted(found, key=lambda one: -SEVERITY.index(one.status)), limits


def _by_pattern(lines: Iterable[Line]) -> dict[tuple[LinePattern, str], list[Line]]:
    """Group the lines by the first matching pattern, and by subject."""
    found: dict[tuple[LinePattern, str], list[Line]] = {}
    for line in lines:
        if (matched := _match_of(line.text)) is None:
            continue
        pattern, subject, over = matched
        if over:
            found.pop((pattern, subject), None)
        else:
            found.setdefault((pattern, subject), []).append(line)
    return found


def _match_of(text: str) -> tuple[LinePattern, str, bool] | None:
    """Return the first pattern that matches a line, its subject, and whether the line ends the condition."""
    if _TASK_FIRST.match(text):
        return None
    for pattern in PATTERNS:
        if match := re.match(pattern.pattern, text):
            return pattern, _subject(match), False
        if pattern.over is not None and (match := re.match(pattern.over, text)):
            return pattern, _subject(match), True
    return None


def _subject(match: re.Match[str]) -> str:
    return match.groupdict().get("subject") or ""


def _xids(lines: Iterable[Line], now_s: float) -> list[Finding]:
    by_kind: dict[tuple[str, int], list[tuple[Line, XidLine]]] = {}
    for line in lines:
        xid = xid_in(line.text)
        if xid is not None and xid.meaning.status != OK:
            by_kind.setdefault((xid.bus_id, xid.xid), []).append((line, xid))
    found: list[Finding] = []
    for (bus_id, number), those in by_kind.items():
        worst = max((xid.meaning for _, xid in those), key=lambda one: SEVERITY.index(one.status))
        when = _when([line for line, _ in those], now_s)
        found.append(Finding(worst.status, f"GPU {bus_id}", f"Xid {number}: {worst.text}{when}", worst.advice))
    return found


def _when(lines: Sequence[Line], now_s: float) -> str:
    ago = f"{duration(max(0.0, now_s - lines[-1].at_s))} ago"
    return f" ({ago})" if len(lines) == 1 else f" ({len(lines)} times, the last {ago})"


def to_json(lines: Iterable[Line]) -> list[Json]:
    """Return lines as JSON."""
    return [{"at_s": line.at_s, "text": line.text} for line in lines]
