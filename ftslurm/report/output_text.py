"""Evidence of a program's end in its output: tracebacks, faulthandler's dumps, torchrun's last table (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.report.facts import Exc, Frame

HEADER = "Traceback (most recent call last):"
MAX_LINKS = 10
MESSAGE_LINES = 40

_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_FRAME = re.compile(r'  File "([^"\n]{1,4096})", line (\d{1,9})(?:, in (.{1,200}))?')
_LAST = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?", re.DOTALL)
# torch's hook for uncaught exceptions prefixes each line with this, except blank lines of the traceback.
_RANK = re.compile(r"\[rank(\d{1,6})\]: ?(.*)", re.DOTALL)
# srun --label and the usual runners of pods.
_LABEL = re.compile(r" {0,6}(\d{1,6}): (.*)", re.DOTALL)
# Lines that libraries and the interpreter print after an uncaught exception.
_AFTERMATH = re.compile(
    r"\s*$|\s+\S|\[[WEF]\d{0,4}[ \d:.]|[WEF]\d{4} |\S+:\d+: \w*Warning: |Exception ignored |terminate called|Aborted|"
    r"Error in sys\.excepthook|srun: |slurmstepd: |\[rank\d+\]:|"
    r"CUDA kernel errors might|For debugging consider passing|Compile with `TORCH|Search for `cuda"
)
_FATAL = re.compile(r"^Fatal Python error: (.{1,100})$", re.MULTILINE)
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
}
_TABLE_ROW = re.compile(
    r"^ +time +: .{0,40}\n +host +: (?P<host>.{0,255})\n"
    r" +rank +: (?P<rank>\d{1,6}) \(local_rank: (?P<local>\d{1,6})\)\n"
    r" +exitcode +: (?P<code>-?\d{1,5}) \(pid: (?P<pid>\d{1,10})\)",
    re.MULTILINE,
)
_STOPPED = re.compile(r"Sending process (\d{1,10}) closing signal")


@dataclass(frozen=True)
class Raised:
    """An uncaught exception in the output."""

    exception: Exc
    traceback: str

    @property
    def headline(self) -> str:
        """``ValueError: boom``."""
        name = self.exception.type
        return f"{name}: {self.exception.message}" if self.exception.message else name


@dataclass(frozen=True)
class Crash:
    """A fatal signal in faulthandler's report."""

    signal: str
    stacks: str


@dataclass(frozen=True)
class Row:
    """A worker in torchrun's final table; ``code`` is negative for a signal."""

    rank: int
    local_rank: int
    host: str
    code: int
    pid: int
    stopped: bool


def by_rank(text: str) -> tuple[dict[int, str], str]:
    """Split the output of many ranks into that of each named rank, without its prefix, and the rest.

    A line is a rank's if torch's ``[rank3]:`` precedes it, or if nearly all lines have srun's label (``3: ``).
    """
    lines = text.split("\n")
    full = [line for line in lines if line.strip()]
    labelled = sum(1 for line in full if _LABEL.fullmatch(line))
    labels = len(full) >= 3 and labelled >= 0.9 * len(full)
    ranks: dict[int, list[str]] = {}
    rest: list[str] = []
    for line in lines:
        found = _LABEL.fullmatch(line) if labels else _RANK.fullmatch(line)
        if found is None:
            rest.append(line)
        else:
            ranks.setdefault(int(found[1]), []).append(_without_prefix(found[2]))
    return {rank: "\n".join(own) + "\n" for rank, own in ranks.items()}, "\n".join(rest)


def without_prefix(text: str) -> tuple[str, int | None]:
    """Return one rank's output without torch's prefixes, and the rank in them."""
    found = _RANK.search(text)
    if found is None:
        return text, None
    return "\n".join(_without_prefix(line) for line in text.split("\n")), int(found[1])


def _without_prefix(line: str) -> str:
    found = _RANK.fullmatch(line)
    return found[2] if found is not None else line


def uncaught(text: str, *, sure: bool = False) -> Raised | None:
    """Return the exception that ended a program, from its output without prefixes.

    A traceback in the middle of the output was caught and logged: it counts only if nothing but the usual final
    lines of libraries follows.

    Args:
        text: the output.
        sure: that these lines are of uncaught exceptions only, so that the following lines do not matter.
    """
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if line.strip() == HEADER]
    if not starts:
        return None
    first = _chain_start(lines, starts)
    blocks = [start for start in starts if start >= first][-MAX_LINKS:]
    exception: Exc | None = None
    end = blocks[0]
    for i, start in enumerate(blocks):
        stop = blocks[i + 1] if i + 1 < len(blocks) else len(lines)
        parsed = _block(lines, start, stop, several=sure or i + 1 < len(blocks))
        if parsed is None:
            return None
        link, end = parsed
        explicit = any(line.strip() == _CAUSE for line in lines[max(0, start - 3) : start])
        exception = replace(link, link=exception, explicit=explicit and exception is not None)
    rest = lines[end:]
    if exception is None or not (sure or all(_AFTERMATH.match(line) for line in rest)):
        return None
    return Raised(exception, "\n".join(lines[blocks[0] : end]).rstrip() + "\n")


def _chain_start(lines: Sequence[str], starts: Sequence[int]) -> int:
    """The first traceback of the chain that ends with the last traceback."""
    first = starts[-1]
    for start in reversed(starts[:-1]):
        between = [line.strip() for line in lines[max(start, first - 3) : first]]
        if _CAUSE not in between and _CONTEXT not in between:
            break
        first = start
    return first


def _block(lines: Sequence[str], start: int, stop: int, *, several: bool) -> tuple[Exc, int] | None:
    frames: list[Frame] = []
    i = start + 1
    while i < stop and (lines[i].startswith("  ") or not lines[i].strip()):
        found = _FRAME.match(lines[i])
        if found is not None:
            source = lines[i + 1].strip() if i + 1 < stop and lines[i + 1].startswith("    ") else None
            frames.append(Frame(found[1], int(found[2]), found[3] or "<module>", source))
        i += 1
    if i >= stop:
        return None  # Cut off before its type.
    message = [lines[i]]
    i += 1
    # A second line of a message cannot be distinguished from output after a caught traceback.
    while several and i < stop and len(message) < MESSAGE_LINES and not _ends_message(lines[i]):
        message.append(lines[i])
        i += 1
    found_last = _LAST.fullmatch("\n".join(message).rstrip())
    if found_last is None:
        return None
    module, _, name = found_last[1].rpartition(".")
    return Exc(name, module, (found_last[2] or "").strip(), tuple(frames[-100:]), None), i


def _ends_message(line: str) -> bool:
    return not line.strip() or line.strip() in (_CAUSE, _CONTEXT, HEADER) or _AFTERMATH.match(line) is not None


def crash(text: str) -> Crash | None:
    """Return the fatal signal in faulthandler's report at the end of an output."""
    found = list(_FATAL.finditer(text))
    if not found or found[-1][1].strip() not in _SIGNALS:
        return None
    return Crash(_SIGNALS[found[-1][1].strip()], text[found[-1].start() :][:65536])


def table(text: str) -> list[Row]:
    """Return the workers in torchrun's last table (its ChildFailedError), root cause or not."""
    _, marker, tail = text.rpartition("ChildFailedError:")
    if not marker:
        return []
    stopped = {int(pid) for pid in _STOPPED.findall(text)}
    return [
        Row(
            int(found["rank"]),
            int(found["local"]),
            found["host"].strip(),
            int(found["code"]),
            int(found["pid"]),
            stopped=int(found["pid"]) in stopped,
        )
        for found in _TABLE_ROW.finditer(tail)
    ]


__all__ = ["Crash", "Raised", "Row", "by_rank", "crash", "table", "uncaught", "without_prefix"]
