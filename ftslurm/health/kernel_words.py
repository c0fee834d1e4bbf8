"""What lines of the kernel's log say of a node's health: rows of a pattern and what it means (pure).

A row gives the words for people; lines of one row and one subject are told once, with their number. What programs do to
themselves (a segmentation fault, a job that hits its own memory limit) is not the node's health.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.health.figures import one_line, span
from ftslurm.health.verdict import FAIL, OK, SEVERITY, WARN, Finding, Json
from ftslurm.health.xid_words import xids_in

HARDWARE = "Have the hardware looked at; drain the node when it comes again."


@dataclass(frozen=True)
class Row:
    """One kind of message.

    Attributes:
        name: what it is counted as.
        pattern: of the line; a group `subject`, where there is one, is what it is about. Compiled when first needed:
            most logs hold nothing of any row.
        text: in words; "{line}" is the line itself.
        least: fewer lines of it say nothing.
        over: a pattern of the line that says that it is over; group `subject` must be the same.
    """

    name: str
    pattern: str
    status: str
    text: str
    advice: str
    least: int = 1
    over: str | None = None


_PCI = r"(?P<subject>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): (?:AER|PCIe Bus Error): .*"

# Images of containers are on loop devices: theirs is not the node's health.
ROWS: tuple[Row, ...] = (
    Row(
        "memory-uncorrected",
        r"Memory failure: 0x|hardware memory corruption|EDAC (?P<subject>MC\d+): \d+ UE\b|Machine Check Exception"
        r"|\[Hardware Error\]:.*\b(?:[Uu]ncorrect(?:ed|able)|[Ff]atal)\b",
        FAIL,
        "uncorrected hardware error: {line}",
        "Have the node drained and its memory looked at.",
    ),
    Row(
        "memory-corrected",
        r"EDAC (?P<subject>MC\d+): \d+ CE\b|\[Hardware Error\]: (?:Corrected error|Machine check events logged)",
        WARN,
        "many corrected memory errors: {line}",
        "Have the memory module changed before it fails.",
        least=10,
    ),
    Row(
        "pcie-fatal",
        _PCI + r"[Uu]ncorrect(?:ed|able) \(Fatal\)",
        FAIL,
        "fatal error on the PCIe bus: {line}",
        HARDWARE,
    ),
    Row(
        "pcie-uncorrected",
        _PCI + r"[Uu]ncorrect(?:ed|able)",
        WARN,
        "error on the PCIe bus: {line}",
        HARDWARE,
    ),
    Row(
        "pcie-corrected",
        _PCI + r"[Cc]orrect(?:ed|able)",
        WARN,
        "many corrected errors on the PCIe bus: {line}",
        HARDWARE,
        least=20,
    ),
    Row(
        "nvswitch",
        r"nvidia-nvswitch(?P<subject>\d+): SXid \(PCI:[^)]*\): \d+, Fatal",
        FAIL,
        "fatal error of an NVSwitch: {line}",
        "Have the node drained and power-cycled.",
    ),
    Row(
        "amdgpu",
        r"amdgpu (?P<subject>[0-9a-f:.]+): .*(?:GPU reset(?:\(\d+\))? (?:begin|failed)|uncorrectable hardware errors"
        r"|[Ff]atal error)",
        WARN,
        "the AMD GPU's driver had to reset it: {line}",
        "Look at the GPU's RAS counters; have the node rebooted when it comes again.",
    ),
    Row(
        "nic-firmware",
        r"mlx5_core (?P<subject>[0-9a-f:.]+): .*(?:health compromised|[Ff]atal error|firmware internal error"
        r"|assert_exit_ptr)",
        WARN,
        "the network card's firmware has stopped: {line}",
        "Look at its ports; have the node rebooted.",
    ),
    Row(
        "hard-lockup",
        r"detected hard LOCKUP on (?P<subject>cpu \d+)",
        FAIL,
        "a CPU hangs with interrupts off: {line}",
        "Have the node rebooted.",
    ),
    Row(
        "soft-lockup",
        r"soft lockup - (?P<subject>CPU#\d+) stuck",
        WARN,
        "a CPU was stuck in the kernel: {line}",
        "Look at the lines after it in the kernel's log; have the node rebooted when it comes again.",
    ),
    Row(
        "stalled",
        r"rcu: INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall",
        WARN,
        "CPUs did not answer the kernel: {line}",
        "Look at the lines after it in the kernel's log.",
    ),
    Row(
        "hung-task",
        r"INFO: task (?P<subject>.+?:\d+) blocked for more than",
        WARN,
        "it hangs in the kernel: {line}",
        "A driver or filesystem does not answer: look at the lines after it in the kernel's log.",
    ),
    Row(
        "oops",
        r"\bOops: |kernel BUG at |BUG: unable to handle |general protection fault.*\[#\d+\]",
        WARN,
        "the kernel ran into a bug: {line}",
        "Have the node rebooted: what the kernel held then stays held.",
    ),
    Row(
        "out-of-memory",
        r"^Out of memory: Kill",
        WARN,
        "the node ran out of memory: {line}",
        "Look who takes the memory; the job's own limit was not the reason.",
    ),
    Row(
        "too-hot",
        r"critical temperature reached|(?:Core|Package) temperature(?:/speed)? (?:is )?above threshold",
        WARN,
        "too hot: {line}",
        "Look at fans, heat sinks and the room's temperature.",
    ),
    Row(
        "made-read-only",
        r"(?:EXT4-fs|XFS|BTRFS)[^(]*\((?:device )?(?P<subject>(?!loop\d)[\w-]+)\)"
        r".*(?:[Rr]emounting filesystem read-only|forced readonly|[Ss]hutting down filesystem"
        r"|Filesystem has been shut down)",
        WARN,
        "the filesystem was stopped after an error: {line}",
        "Have it checked and mounted again.",
    ),
    Row(
        "filesystem-error",
        r"(?=EXT4-fs error|BTRFS (?:error|critical)|XFS .*(?:error|[Cc]orrupt))"
        r"[^(]*\((?:device )?(?P<subject>(?!loop\d)[\w-]+)\)",
        WARN,
        "the filesystem found itself damaged: {line}",
        "Have it checked (fsck).",
    ),
    Row(
        "disk-error",
        # Floppy and CD drives that are not there are asked at each start of many virtual machines.
        r"(?:I/O error, dev |Buffer I/O error on dev(?:ice)? |critical (?:medium|target) error, dev )"
        r"(?P<subject>(?!fd\d|sr\d|loop\d)[\w-]+)",
        WARN,
        "the disk gives errors: {line}",
        "Look at `smartctl -a` or `nvme smart-log` of it.",
    ),
    Row(
        "nvme",
        r"nvme (?P<subject>nvme\d+): (?:controller is down|I/O .*timeout|Device not ready|Removing after probe)",
        WARN,
        "the disk did not answer: {line}",
        "Look at `nvme smart-log` of it.",
    ),
    Row(
        "nfs",
        r"nfs: server (?P<subject>\S+) not responding",
        WARN,
        "the NFS server does not answer: {line}",
        "Look at the server and the way to it.",
        over=r"nfs: server (?P<subject>\S+) OK",
    ),
    Row(
        "lustre-lost",
        r"Lustre: (?P<subject>\S+): Connection to \S+ \(at [^)]*\) was lost",
        WARN,
        "Lustre has lost a server: {line}",
        "Look at `lctl dl` and the server.",
        over=r"Lustre: (?P<subject>\S+): Connection restored to",
    ),
    Row(
        "lustre-evicted",
        r"(?P<subject>[\w-]+): This client was evicted by",
        WARN,
        "Lustre has thrown this node out, and what it had not written is lost: {line}",
        "Look at the network between node and server.",
    ),
)

_QUICK = (
    rb"NVRM: Xid|SXid|amdgpu|mlx5_core|Hardware Error|hardware memory|Memory failure|EDAC|AER:|Bus Error|LOCKUP"
    rb"|lockup|rcu: INFO|Machine Check|blocked for more|Oops|BUG|general protection|ut of memory: Kill|temperature"
    rb"|EXT4-fs|XFS|BTRFS|I/O error|critical |nvme|nfs: server|Connection |evicted"
)


def may_say(line: bytes) -> bool:
    """Return whether a line may be of a row: most are not, and are not kept."""
    return re.search(_QUICK, line) is not None


@dataclass(frozen=True)
class Line:
    """One line of the kernel's log: seconds since the start of the machine, and its text."""

    at_s: float
    text: str


def findings(lines: Sequence[Line], now_s: float) -> tuple[list[Finding], int]:
    """Return what the lines say, and how many jobs' processes were killed for their own limit."""
    found = _xids(lines, now_s)
    for (row, subject), those in _sorted(lines).items():
        if len(those) >= row.least:
            words = row.text.format(line=one_line(those[-1].text, 160))
            found.append(Finding(row.status, subject, f"{words}{_when(those, now_s)}", row.advice))
    limits = sum("Memory cgroup out of memory: Kill" in line.text for line in lines)
    return sorted(found, key=lambda one: -SEVERITY.index(one.status)), limits


def _sorted(lines: Iterable[Line]) -> dict[tuple[Row, str], list[Line]]:
    """Put each line to the first row that fits, and to its subject there."""
    found: dict[tuple[Row, str], list[Line]] = {}
    for line in lines:
        for row in ROWS:
            if match := re.search(row.pattern, line.text):
                found.setdefault((row, _subject(match)), []).append(line)
                break
            if row.over is not None and (match := re.search(row.over, line.text)):
                found.pop((row, _subject(match)), None)
                break
    return found


def _subject(match: re.Match[str]) -> str:
    return match.groupdict().get("subject") or ""


def _xids(lines: Iterable[Line], now_s: float) -> list[Finding]:
    by_kind: dict[tuple[str, int], list[tuple[Line, str, str, str]]] = {}
    for line in lines:
        for xid in xids_in(line.text):
            meaning = xid.meaning
            if meaning.status != OK:
                said = (line, meaning.status, meaning.text, meaning.advice)
                by_kind.setdefault((xid.bus_id, xid.xid), []).append(said)
    found: list[Finding] = []
    for (bus_id, number), those in by_kind.items():
        _, status, text, advice = max(those, key=lambda one: SEVERITY.index(one[1]))
        when = _when([line for line, *_ in those], now_s)
        found.append(Finding(status, f"GPU {bus_id}", f"Xid {number}: {text}{when}", advice))
    return found


def _when(lines: Sequence[Line], now_s: float) -> str:
    ago = f"{span(max(0.0, now_s - lines[-1].at_s))} ago"
    return f" ({ago})" if len(lines) == 1 else f" ({len(lines)} times, the last {ago})"


def to_json(lines: Iterable[Line]) -> list[Json]:
    """Return lines as JSON."""
    return [{"at_s": line.at_s, "text": line.text} for line in lines]
