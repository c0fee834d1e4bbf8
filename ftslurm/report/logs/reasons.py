"""Reasons for an end that are no traceback: what shells, interpreters, loaders, containers and Slurm print (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.nccl_timeout import rank_in, timeout_in
from ftslurm.pattern import pattern
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.mpi_abort import NOTICE, abort_called, notice
from ftslurm.report.logs.native import STACK, Native, native_end
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.logs.pods import not_started
from ftslurm.report.logs.success import works
from ftslurm.report.logs.tracebacks import HEADER, TAGGED_RANK

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True)
class Reason:
    """A reason in a line; ``kind`` and ``code`` as of a worker's end.

    Attributes:
        number: of the line.
        message: for the report.
        strength: STRONG: the process cannot have gone on; WEAK: it may have.
        final: whether only aftermath follows in its stream.
        rank: that the line names; None: none.
    """

    number: int
    kind: str
    code: int | None
    signal: str | None
    message: str
    strength: str
    line: Line
    final: bool = False
    rank: int | None = None


_ABORT = pattern(
    r"terminate called (?:after throwing|without an active|recursively)|libc\+\+abi.{0,20}: terminating"
    r"|[^\n:]{1,200}: [^\n]{1,300}: Assertion `[^\n]{1,300}' failed\.|double free or corruption"
    r"|(?:free|malloc|realloc|munmap_chunk|malloc_consolidate)\(\): [a-z]|corrupted (?:size vs|double-linked)"
    r"|\*\*\* (?:stack smashing|buffer overflow) detected \*\*\*"
)
# Also where the rest of the line was cut off.
_WATCHDOG = pattern(
    r"(?:ProcessGroupNCCL\.cpp:\d+\]|what\(\): ).{0,160}?"
    r"(?:watchdog thread terminated with exception|Watchdog caught c|Terminating the process after attempting to dump)"
    r"|\[F\d{4} [^\]]{1,60}ProcessGroupNCCL\.cpp:\d+\].{0,160}?watchdog got stuck for"  # until torch 2.5
)
_CONTAINER = pattern(
    r"(?:error: )?pyxis: (?P<pyxis>(?!import|creating|starting|removing|skipping|printing|if the image|container "
    r"start failed|child \d+ failed|\s*\[(?:INFO|WARN)).{3,400})"
    r"|(?:error: )?(?P<start>pyxis: container start failed.{0,100})"
    r"|^(?P<enroot>enroot-\w+: .{3,300}|\[ERROR\] .{0,40}(?:enroot|image|/hooks\.d/).{0,300})"
    r"|^FATAL: {3,4}(?P<fatal>\S.{3,400})"  # of apptainer, with the blanks of its own format
    r"|^docker: (?P<docker>Error response from daemon.{0,300})"
    r"|^nvidia-container-cli: (?:initialization error: )?(?P<toolkit>.{3,300}?)(?:: unknown\.?)?$"  # of NVIDIA's hook
    r"|error: (?P<spank>spank: required plugin .{0,200})"
)
_OF_SHELL = pattern(
    r"\S{1,300}: line \d+: .{1,400}: (?:command not found|No such file or directory|Permission denied)$"
)
_REQUEST = pattern(r': (?:Get|Post|Head) "https?://.*$')  # of Docker's client
_MOUNTED = pattern(r"(failed to mount: \S{1,300}) at \S{1,300}(?=:)")  # where to is a directory of the runtime's
_PERHAPS = pattern(r", possible causes are .*$|, see https?://\S+$")
_LMOD = pattern(r"Lmod has detected the following error: +(?P<text>\S.{0,300})$")
MISSING_DIRECTORY = pattern(
    r"error: couldn't chdir to [`'](?P<dir>[^`']{1,400})': (?P<why>[^:]{1,80})(?:: going to (?P<to>\S+))?"
)
_CONTAINER_WHY = pattern(
    r"(?i)no space|no such|denied|not found|unauthorized|forbidden|\b40[134]\b|input/output|cannot allocate|timed? ?out"
    r"|nvidia-container-cli|nvml error|no loop devices|bad superblock"
    r"|manifest|quota|exceeded|read-only|refused|unreachable|not permitted"
)
_RULES: tuple[tuple[re.Pattern[str], str, int | None, str, str], ...] = (
    (pattern(r"(?:error: |^)execve\(\): (?P<m>.{1,400})"), "spawn", None, "could not be started: {m}", STRONG),
    (pattern(r"srun: error: (?P<m>(?:task .{0,40}launch failed|Task launch for .{0,60} failed).{0,200})"),
     "spawn", None, "{m}", STRONG),
    (pattern(r"srun: error: (?P<m>Unable to (?:create step|confirm allocation|allocate).{0,300})"),
     "spawn", None, "srun: {m}", WEAK),
    (pattern(r"srun: (?:error|fatal): (?P<m>(?:Only allocated|Invalid|Requested|More |No |Step |Job )"
                r"(?!.*\bon hold).{3,300})"), "spawn", None, "srun: {m}", STRONG),
    (pattern(r"^\S{0,300}slurm_script: line \d+: (?P<m>\$'\\r'): command not found$"), "exit", 127,
     "the batch script has DOS line ends: {m}", STRONG),
    (pattern(r"^(?P<m>(?:srun|sbatch|salloc|mpirun|mpiexec): (?:unrecognized|unknown|invalid|illegal) option "
                r".{1,300})"),
     "spawn", None, "{m}", STRONG),
    (pattern(r"^\S*python[\d.]*: (?P<m>can't (?:open file|find '__main__' module in) .{1,400})"),
     "exit", 2, "{m}", STRONG),
    (pattern(r"^\S*python[\d.]*: Error while finding module specification for \S{1,200} \((?P<m>.{1,300})\)$"),
     "exit", 1, "{m}", STRONG),
    (pattern(r"^\S*python[\d.]*: (?P<m>No module named \S{1,200})$"), "exit", 1,
     "ModuleNotFoundError: {m}", STRONG),
    (pattern(r"(?:\S{0,300}/)?(?P<m>[^/\s]{1,80}): error while loading shared libraries: (?P<library>.{1,300})"),
     "exit", 127, "cannot start {m}: {library}", STRONG),
    (pattern(r"(?P<m>\S{1,200}: symbol lookup error: .{1,300})"), "exit", 127, "cannot start {m}", STRONG),
    (pattern(r"^(?P<m>(?:\S{0,200}/)?(?:env|nohup|timeout|nice|stdbuf|setsid|taskset|numactl|ionice): "
                r"(?:failed to (?:run command|execute) )?[\u2018'\"].{1,300}[\u2019'\"]: "
                r"(?:No such file or directory|Permission denied))$"),
     "exit", None, "cannot start {m}", STRONG),
    (pattern(r"^\S{1,300}: line (?P<line>\d+): (?P<m>syntax error.{1,300})$"), "exit", 2,
     "{m} (line {line} of the batch script)", STRONG),
    (pattern(r"^\S{1,300}: line \d+: (?P<m>cd: .{1,300}: (?:No such file or directory|Permission denied))$"),
     "exit", 1, "{m}", WEAK),
    (pattern(r"^\S{0,300}slurm_script: line (?P<line>\d+): (?P<m>.{1,300}: command not found)$"), "exit", 127,
     "cannot start {m} (line {line} of the batch script)", WEAK),
    (pattern(r"^\S{0,300}slurm_script: line (?P<line>\d+): "
                r"(?P<m>.{1,300}: (?:No such file or directory|Permission denied))$"),
     "exit", 126, "cannot start {m} (line {line} of the batch script)", WEAK),
    (pattern(r"^\S{1,300}: line \d+: (?P<m>.{1,300}: command not found)$"), "exit", 127, "cannot start {m}", WEAK),
    (pattern(r"^\S{1,300}: line \d+: (?P<m>.{1,300}: (?:No such file or directory|Permission denied))$"),
     "exit", 126, "cannot start {m}", WEAK),
    (pattern(r"^\S{0,300}slurm_script: line (?P<line>\d+): (?P<m>\S{1,200}: unbound variable)$"), "exit", 1,
     "{m} (line {line} of the batch script)", STRONG),
    (pattern(r"^\S{1,300}: line \d+: (?P<m>\S{1,200}: unbound variable)$"), "exit", 1, "{m} in the batch script",
     STRONG),
    (pattern(r"^(?P<m>(?:cp|mv|tar|rsync|mkdir|ln|scp|dd|unzip|wget|curl|git|cd|source): .{1,400}: "
                r"(?:No space left on device|No such file or directory|Permission denied|Disk quota exceeded"
                r"|Read-only file system|Input/output error|Stale file handle))$"),
     "exit", None, "{m}", WEAK),
    (pattern(r"^(?P<m>(?:\S{1,200}: )?(?:Permission denied \((?:publickey|password|gssapi|keyboard)[\w,-]{0,100}\)"
                r"|Host key verification failed)\.?)$"),
     "exit", 255, "ssh: {m}", WEAK),
    (pattern(r"^(?P<m>ssh: (?:connect to host|Could not resolve hostname) .{1,300})$"), "exit", 255, "{m}", WEAK),
    (pattern(r"^(?P<m>(?:ERROR|Error): (?:Could not consume arg|The function received|Cannot find key|No such option"
                r"|No such command|Missing (?:option|argument|command)|Invalid value for|Got unexpected extra argument)"
                r".{0,400})$"), "exit", 2, "{m}", WEAK),
    (pattern(r"^but OMPI was not built with (?P<m>SLURM's PMI support)"), "exit", 1,
     "Open MPI was not built with {m}, by which srun starts processes", STRONG),
    (pattern(r"^(?P<m>Could not override '[^']{1,200}'|In '[^']{1,200}': Could not find '[^']{1,200}')"), "exit", 1,
     "Hydra: {m}", STRONG),
    (pattern(r"(?P<m>Scheduler watchdog timeout \(.{1,200})"), "exit", None, "SGLang: {m}", STRONG),
    (pattern(r"failed to load '(?P<model>[^']{1,100})' version \d+: (?P<m>[^\"]{1,400})"), "exit", 1,
     "the model {model} could not be loaded: {m}", STRONG),
    (pattern(r":\d+: \[GPU \d+\] (?P<m>Peer GPU \d+ is not accessible)"), "exit", 255, "NVSHMEM: {m}", STRONG),
    (pattern(r"^(?:slurm_script|bash|\S*/slurm_script): (?P<m>.{1,300}: command not found)$"), "exit", 127,
     "cannot start {m}", WEAK),
)  # fmt: skip
# Nearly all lines are none: one search for each.
_MAYBE = pattern(
    r"rror|ERROR: |Lmod has|sage: |pyxis|enroot-|execve|FATAL|failed|terminat|free\(\)|alloc|corrupt|\*\*\* |Unable to"
    r"|can't |No module| option "
    r"|syntax error|Caught signal|Signal: |Fatal: |Assertion `"
    r"|atchdog caught|atchdog timeout|not accessible|: F |^F\d"
    r"|No s|Disk q|Read-only|Input/|Stale|not found|enied|ssh: |Host key|unbound|docker: |couldn't|OMPI"
    r"|got stuck for|nvidia-container-cli: "
    r"|Could not |MPI_A|^-----|signal \(?\d|Terminating the p|\]F\d{4} |nhandled ex"
)
_LAUNCH_FAILED = pattern(r"srun: error: Application launch failed: (.{1,200})$")
_USAGE = pattern(r"^(?!srun: |slurm|sbatch: )(?P<m>[\w./-]{1,200}: error: .{1,600})$")


def reasons_of(lines: Sequence[Line]) -> list[Reason]:
    """Return the reasons in the lines of one stream, in order."""
    found: list[Reason] = []
    usage = -1000
    missing: re.Match[str] | None = None
    for i, line in enumerate(lines):
        text = line.text
        if text == GAP or _MAYBE.search(text) is None:
            continue
        if "couldn't chdir" in text and (match := MISSING_DIRECTORY.search(text)) is not None:
            missing = match
            continue
        if text.startswith(("usage: ", "Usage: ")):
            usage = i
            continue
        if (match := _LMOD.match(text)) is not None:
            more = lines[i + 1].text.strip() if i + 1 < len(lines) else ""
            later = any(
                works(line.text) or HEADER in line.text or _OF_SHELL.match(line.text) for line in lines[i + 1 :]
            )
            message = f"{match['text']} {more}"
            found.append(Reason(line.number, "exit", 1, None, message, WEAK, line, final=not later))
            continue
        by_signal = _by_signal(lines, i, found)
        if by_signal is not None:
            found += by_signal
            continue
        if (match := _CONTAINER.search(text)) is not None:
            detail = next(each for each in match.groups() if each)
            message = f"the container could not be started: {_tidy(detail.removeprefix('error: '))}"
            found.append(Reason(line.number, "spawn", None, None, message, STRONG, line))
            continue
        if (by_mpi := _by_mpi(lines, i, found)) is not None:
            found.append(by_mpi)
            continue
        if i - usage <= 60 and (match := _USAGE.match(text)) is not None:
            found.append(Reason(line.number, "exit", 2, None, match["m"], STRONG, line, final=_final(lines, i)))
            continue
        for line_form, kind, code, form, strength in _RULES:
            match = line_form.search(text)
            if match is not None:
                message = form.format(**match.groupdict())
                one = Reason(line.number, kind, code, None, message, strength, line, final=_final(lines, i))
                found.append(_without_directory(one, missing))
                break
    if (pod := not_started(lines)) is not None:
        message = f"the container could not be started: {_tidy(pod[1])}"
        found.append(Reason(pod[0].number, "spawn", None, None, message, STRONG, pod[0]))
    ended = [line.number for line in lines if "Exited with exit code" in line.text]
    return _without_repeats(_of_launch(lines, found), ended)


def _of_launch(lines: Sequence[Line], found: list[Reason]) -> list[Reason]:
    """Leave out of the failed launches of a step those that srun does not give as the reason of the whole."""
    whole = next((match[1] for line in lines if (match := _LAUNCH_FAILED.search(line.text)) is not None), "")
    launches = [each for each in found if each.message.startswith("Task launch")]
    kept = [each for each in launches if each.message.endswith(whole)]
    return [each for each in found if each not in launches or each in kept] if kept else found


def _by_signal(lines: Sequence[Line], i: int, known: Sequence[Reason]) -> list[Reason] | None:
    """Return the reason in line ``i`` for an end by a signal, by a watchdog or a native library; None: it is no such.

    A line that only repeats a known one gives an empty list.
    """
    line, text = lines[i], lines[i].text
    by_watchdog, rank = _watchdog(text)
    if by_watchdog:
        # Of one watchdog the first line says most.
        repeats = any(each.signal == "SIGABRT" and each.rank == rank for each in known) and timeout_in(text) is None
        further = "\n".join(each.text for each in lines[i + 1 : i + 4])
        message = f"{text[:600]}\n{further}" if "Last error:" in further else text[:600]
        one = Reason(line.number, "signal", None, "SIGABRT", message, STRONG, line, rank=rank)
        return [] if repeats else [one]
    end = native_end([each.text for each in lines[i : i + (NOTICE if text.startswith("-----") else STACK)]])
    if end is not None:
        return [_of_native(line, end)]
    if not _ABORT.match(text):
        return None
    follows = i + 1 < len(lines) and _watchdog(lines[i + 1].text)[0]
    tagged = TAGGED_RANK.search("\n".join(each.text for each in lines[i : i + 3]))
    rank = int(tagged[1]) if tagged is not None else None
    further = lines[i + 1].text[:300] if i + 1 < len(lines) and "what():" in lines[i + 1].text else ""
    message = f"{text[:300]}\n{further}" if further else text[:300]
    return [] if follows else [Reason(line.number, "signal", None, "SIGABRT", message, STRONG, line, rank=rank)]


def _by_mpi(lines: Sequence[Line], i: int, known: Sequence[Reason]) -> Reason | None:
    """Return the reason of a rank that called MPI_Abort in line ``i``, or what MPI's launcher states from there on."""
    line = lines[i]
    explained = any(each.strength == STRONG and line.number - each.number < NOTICE for each in known)
    begin = max(0, i - 2 * NOTICE)
    near = [each.text for each in lines[begin : i + STACK]] if "MPI_A" in line.text and not explained else []
    called = abort_called(near, i - begin) if near else None
    if called is not None:
        return Reason(line.number, "exit", None, None, called.text, STRONG, line, rank=called.rank)
    stated = notice([each.text for each in lines[i : i + NOTICE]]) if line.text.startswith("-----") else ""
    kind = "spawn" if " unable to " in stated else "exit"
    return Reason(line.number, kind, None, None, stated, STRONG, line) if stated else None


def _of_native(line: Line, found: Native) -> Reason:
    """Return the reason that a native library states in a line by which it ends its process."""
    line = line._replace(node=found.node) if found.node and not line.node else line
    kind = "exit" if found.signal is None else "signal"
    return Reason(line.number, kind, None, found.signal, found.text, STRONG, line, rank=found.rank)


def _watchdog(text: str) -> tuple[bool, int | None]:
    """Return whether torch's watchdog of NCCL ends its rank by this line, and the rank that it names."""
    timeout = timeout_in(text)
    if timeout is not None:
        return True, timeout.rank
    found = _WATCHDOG.search(text) if "atchdog" in text else None
    return found is not None, rank_in(text[: found.end()]) if found is not None else None


def watchdog_lines(lines: Sequence[Line]) -> set[int]:
    """Return the numbers of the lines in which NCCL's watchdog ends its own rank."""
    found: set[int] = set()
    for before, line in pairwise([Line("", -1), *lines]):
        if timeout_in(line.text) is not None:
            found |= {before.number, line.number} if _ABORT.match(before.text) else {line.number}
    return found


def _without_directory(one: Reason, missing: re.Match[str] | None) -> Reason:
    """Return a reason, or the working directory's if what is missing was sought in the place of that."""
    if missing is None or (missing["to"] or "/nowhere") not in one.message or "No such file" not in one.message:
        return one
    message = f"the working directory could not be entered: {missing['dir']}: {missing['why']}"
    return replace(one, kind="spawn", code=None, message=message)


def _tidy(text: str) -> str:
    text = _MOUNTED.sub(r"\1", _PERHAPS.sub("", _REQUEST.sub("", text)))
    return " ".join(text.split())[:400]


def _final(lines: Sequence[Line], i: int) -> bool:
    rest = lines[i + 1 : i + 200]
    return all(line.text != GAP and (is_aftermath(line.text) or _OF_SHELL.match(line.text)) for line in rest)


def _without_repeats(found: list[Reason], ended: Sequence[int]) -> list[Reason]:
    """One reason for each of the lines of one container's failure: the line with the detail.

    Args:
        found: the reasons.
        ended: the numbers of lines by which srun reports an end.
    """
    kept: list[Reason] = []
    last = 0
    for each in found:
        both = kept and each.kind == kept[-1].kind == "spawn" and each.message.startswith("the container")
        apart = any(last < number < each.number for number in ended)
        if both and not apart and each.number - last <= 12 and kept[-1].message.startswith("the container"):
            last = each.number
            if _detail(each.message) > _detail(kept[-1].message):
                kept[-1] = each
            continue
        last = each.number
        kept.append(each)
    return kept


def _detail(message: str) -> int:
    """How much a line about a container says: a tool's own error more than that there was one."""
    if "spank:" in message or "start failed with" in message or "couldn't start container" in message:
        return 0
    if _CONTAINER_WHY.search(message):
        return 3
    return 1 if "couldn't" in message or "failed to" not in message else 2
