"""The end of a program's stderr as a witness of why it ended: pure, bounded, and linear in the length of the text.

A program that ends by an exit code, ``os._exit``, a signal or a nested launcher often has printed why before: by a
traceback, a logger's ERROR line, an assertion, a runtime's last message. It counts only at the end: after it come
nothing but the lines that interpreters, libraries, launchers and shells print when a program ends. What stands further
above was survived.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.abort_message import abort_message
from ftslurm.failures.exception_line import LINE_LIMIT, exception_in
from ftslurm.failures.foreign_reason import LINES as FOREIGN
from ftslurm.failures.foreign_reason import foreign_reason
from ftslurm.failures.logged_error import GLOG, RANK_PREFIX, json_exception, logged_error
from ftslurm.failures.reason import by_distributed, links
from ftslurm.failures.stated_lines import stated_in
from ftslurm.failures.traceback_text import Traceback, tracebacks
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.text import cut_middle

LIMIT = 256 * 1024  # characters of the text's end that are read
TEXT_LIMIT = 500  # characters of the line
CLOSING_LINES = 10  # after the reason, of the program's own end
FEW_LINES, COMPILER_LINES = 4, 12
DUMP_LINES = 200
LAST_LINES = 6
MESSAGE_LINES = 40  # of an exception's text, which need not be indented
TRACEBACK, RUNTIME, LOGGED, CHILD = "traceback", "runtime", "logged", "child"


@dataclass(frozen=True)
class Witness:
    """Why a program ended, by its own output.

    Attributes:
        kind: TRACEBACK, RUNTIME (a runtime's last message, an assertion), LOGGED (a line of level ERROR) or CHILD (a
            launcher's table of failed processes).
        text: one line, for use after "rank 3 on n2: ".
        exception: the exception that the text names; None: none.
        frames: where, of a crash.
        lines: the traceback as in the text; empty: none.
        thread: the thread that the exception ended; empty: the main thread, or unknown.
        rank: the rank that torch's prefix of the traceback names; None: there is none.
    """

    kind: str
    text: str
    exception: ExceptionRecord | None = None
    frames: tuple[Frame, ...] = ()
    lines: str = ""
    thread: str = ""
    rank: int | None = None


_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]")
_LAUNCHER = (
    r"[EWI]?\d{4} .{0,60}torch/distributed/(elastic|run|launch)|.{0,80}exits with return code = |"
    r"\[[\d :,-]{10,30}\] \[\w+\] \[(?:launch|runner)\.py:\d+:\w+\]|pdsh@\S+: |"
    r"ERROR:composer\.cli\.launcher|Global rank \d+ \(PID \d+\) exited|Waiting up to \d+ seconds for all training|"
    r".{0,80}Killing subprocess \d+|.{0,160}Sending process \d+ closing signal|"
    r".{0,160}Terminating process \d+ via signal"
)
# Of libraries and scripts at a program's end.
_AT_END = re.compile(r"wandb:(?: |$)|Exception ignored in|(?i:job|run|script) (?:finished|ended) at ")
# Lines that follow a program's reason: of interpreter, libraries, launchers, shells and schedulers.
_AFTERMATH = re.compile(
    r"\s*$|\s+\S|\[[WIV]\d{0,4}[ \d:.]|[WIV]\d{4} |sys:1: |\S+:\d+: \w*Warning: |Exception ignored |"
    r"--- Logging error ---|Call stack:|Message: |Arguments: |"
    r"Set the environment variable HYDRA_FULL|full_key: |"
    r"Error in (sys\.excepthook|atexit)|Original exception was:|srun: |slurmstepd: |slurm_load|"
    r"CUDA kernel errors might|For debugging consider passing|Compile with `TORCH|Search for `cuda|"
    r"\S{1,120} \[\d+\] .{0,80}NCCL INFO|"
    r"frame #\d|Exception raised from |Current thread |Thread 0x|Extension modules: |<no Python frame>|"
    r"# (?:Accounting|Ended|Started|Finished)\b|OMP: (?:Hint|Info) |wandb: |\S{0,40} ?\d{1,3}%\||.{0,200}\bit/s\]"
    r"|.{0,200}\bs/it\]|"
    r"(Killed|Aborted|Terminated|Segmentation fault|Bus error|Trace/breakpoint trap)\b.{0,40}$|"
    r".{0,200}\(core dumped\)|\S{1,80}: line \d+: +\d+ |make(\[\d+\])?: \*\*\* |Command exited with non-zero|"
    r"={3,}$|-{3,}$|\*{3,}$|\+-+|(Failures|Root Cause).{0,60}:$|\[\d+\]:$|\S{1,200} FAILED$|<NO_OTHER_FAILURES>|"
    rf"{_LAUNCHER}|"
    r"Please check the spelling or version|Also (try|make sure)|It is also possible your cache file|"
    r"note: run with `RUST_BACKTRACE|stack backtrace:$|"
    r"(concurrent\.futures\.process\._|multiprocessing\.pool\.)RemoteTraceback:|(\"\"\"|''')$"
)
_CLOSING = re.compile(
    r"(?i)\b(exit(s|ed|ing)?|quit(ting)?|shut(ting)?|clean(ing|ed|up)?|clos(e|es|ing|ed)|finaliz|terminat|stopp?(ed|ing)?"
    r"|abort|teardown|destroy|giving up|see the|leav(e|ing)|bye|fail(ed|ing|ure)?)"
)
_PROGRESS = re.compile(
    rf"{_LAUNCHER}|"
    r"Extension modules: |(?:NOTE: invoking )?MPI_ABORT\b|with errorcode |You may or may not see|"
    r"# (?:Accounting|Ended)\b|\[\d+\]:$|(?:Failures|Root Cause).{0,60}:$|\S{1,200} FAILED$|= +(?:EXIT|PID|RANK|BAD"
    r"|CLEANING|YOU CAN|KILLED)|"
    r"(?:the job to be term|mpirun detected|a non-zero exit code|Primary job)|"
    r"\S{0,40} ?\d{1,3}%\||[={}\-*+#╰╭│]{3,}$|\[[WIV]\d{0,4}[ \d:.]|srun: |slurmstepd: "
)
_STEP = re.compile(r"(?i)\b(step|epoch|iter(ation)?s?)\b\W{0,3}\d|\bloss\W{0,3}\d")
# Of a line on a step by which a program says why it goes no further.
_STOPS = re.compile(r"(?i)\b(?:stop(?:s|ped|ping)?|diverg\w+|giv(?:es?|ing) up|abort\w*|exit\w*|quit\w*|nan|too)\b")
# Lines that an exception's text does not have: of a log, of training, of a program that goes on.
_WENT_ON = re.compile(
    r"(?i)\W{0,3}(?:[IDWE] )?(\d{4}-\d\d|\d\d:\d\d|\d{1,9}[/%]|(debug|info|warn|warning|error|critical)\b"
    r"|(skipp|retry|retri|continu|ignor|resum|recover|fall(ing)? ?back|restor|re-?start))"
)
_GOES_ON = re.compile(
    r"(?i)\b(retrying|(will|to) retry|entering retry loop|continuing|skipping|ignoring|falling back|resuming)\b"
    r"|\busing (the )?defaults?\b"
    r"|\b\d+ (?:of \d+ )?\w+ (?:were |was )?(?:skipped|ignored)\b"
    # What a program does instead, after what failed: "cache not readable, rebuilding".
    r"|[,;] (?:now )?(?:re(?!ad|ce|po|nd|q|fus|ject|main|ly|sult|ferr|gard|j|al)\w{2,20}ing|using|switching|reverting"
    r"|defaulting|proceeding"
    r"|trying|downloading|creating|disabling)\b"
)
_SKIPS = re.compile(r"(?i)\b(?:skipping|ignoring|continuing)\b")
_ERRORS = ("error", "critical")
_ENDS = re.compile(
    r"(?i)\b(?:exit(?:ed|ing)?|terminat(?:ed|ing)|abort(?:ed|ing)?|shut(?:ting)? ?down|kill(?:ed|ing)|clean(?:ed"
    r"|ing)? ?up"
    r"|finaliz(?:ed|ing)|total \w{0,12} ?time|overall \w+ speed|child (?:process )?failed|sig(?:quit|term|kill"
    r"|abrt)|destroy(?:ed|ing)|giving up|crashed"
    r"|died)\b"
)
_TROUBLE = re.compile(
    r"(?i)\b(?:error|fail(?:ed|ure)|fatal|denied|refused|rejected|cannot|can't|could not|unable|invalid|not found"
    r"|no such|unknown|unreachable|timed out|exceeded)\b"
)
_COMPILER = re.compile(r"\S{1,300}:\d{1,7}(?::\d{1,5})?: (?:fatal )?error: \S|nvcc (?:fatal|error) *: \S")
# Of tools, behind the reason.
_SUMMARY = re.compile(
    r"Error is not recoverable: exiting now|tar: Child returned status \d"
    r"|Exiting with failure status due to previous errors"
    r"|^(?:compilation|linking) terminated\.|^make(?:\[\d+\])?: \*\*\*|^rsync error: |^ninja: build stopped"
    r"|^collect2: error: ld returned "
)
# Of a wrapper, which only repeats how the program ended.
_ONLY_CODE = re.compile(
    r"(?i)\b(?:ended|exited|finished|failed|returned) with (?:(?:exit )?(?:code|status) )?\d{1,3}\W*$"
)
_WARNING = re.compile(r"(?:\S{1,40} ){0,4}\W?WARN(?:ING)?\b")
_CODE_ONLY = re.compile(r"(?i)\b(?:code|status) \(?-?\d+\b")
_DIGITS = re.compile(r"\d+")
_RUNTIME = re.compile(
    r"terminate called|libc\+\+abi|(free|malloc|realloc|calloc|munmap_chunk|malloc_consolidate)\(\): |double free"
    r"|corrupted |\*\*\* "
)
_TIME_OVER = re.compile(r"Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!$")
_NATIVE_LINE = re.compile(
    r"\[\S{1,300}\.(?:h|hpp|cc|cpp|cu):\d+\] (?P<text>\S.{0,300})$"
)  # of torch's C++ code and gloo's
_FATAL = re.compile(r"Fatal Python error: (.{1,200})$")
_STACK = re.compile(r'\s+File "([^"\n]{1,4096})", line (\d{1,9}) in (\S{1,200})')
_OF_DUMP = re.compile(r"(?:Current thread|Thread) 0x\w+.{0,80}\(most recent call first\):| {2}File \"| {2}\.\.\.$")
_TABLE_ROW = re.compile(r"\s+rank +: (\d{1,6}) \(local_rank: \d{1,6}\)")
_TABLE_CODE = re.compile(r"\s+exitcode +: (-?\d{1,5}) ")
_OF_CHILD = re.compile(r"returned non-zero exit status|died with <Signals|exits with return code")


def witness(text: str, *, apart_from: Collection[str] = (), before: str = "") -> Witness | None:
    """Return what the end of an output says about the end of the program; None: nothing.

    Args:
        text: the end of stderr, decoded.
        apart_from: lines that are known already, and are passed over.
        before: the type of an exception that is known already: what its traceback follows is wanted.
    """
    lines = output_lines(text)
    found = tracebacks(lines)
    end = len(lines)
    if before:
        own = next((each for each in reversed(found) if _has(each.exception, before)), None)
        end = own.first if own is not None else end
    foreign = foreign_reason([RANK_PREFIX.sub("", line) for line in lines[max(0, end - FOREIGN) : end]])
    if foreign is not None and not before:
        begin = max(0, end - FOREIGN) + foreign.first
        # What comes below it is the reason, or shows that the program went on.
        if not any(each.end > begin for each in found) and not any(map(_STEP.search, lines[begin:end])):
            frames = () if foreign.frame is None else (foreign.frame,)
            return Witness(RUNTIME, cut_middle(foreign.text, TEXT_LIMIT), frames=frames)
    return _Search(lines, found, frozenset(line.strip() for line in apart_from if line.strip())).from_end(end)


def _has(exception: ExceptionRecord, name: str) -> bool:
    """Return whether an exception, one behind it, or one that its message passes on is of that type."""
    return any(each.type == name or f"{name}: " in each.message for each in links(exception))


def goes_on_without(line: str) -> bool:
    """Return whether a line on a failure says that its program goes on without what failed."""
    return _GOES_ON.search(line[:LINE_LIMIT]) is not None


def went_on(line: str) -> bool:
    """Return whether a program says by this line that it goes on after a failure."""
    line = line[:LINE_LIMIT]
    if goes_on_without(line):
        return True
    # A line with a time or a level may be the program's last.
    found = _WENT_ON.match(line)
    return found is not None and found[1].lower() not in _ERRORS and _ENDS.search(line) is None


def is_aftermath(text: str) -> bool:
    """Return whether an output has nothing but warnings and lines that are printed when a program ends."""
    return all(_AFTERMATH.match(RANK_PREFIX.sub("", line)) for line in output_lines(text))


def is_summary(line: str) -> bool:
    """Return whether a line is printed by a tool only behind the reason of its failure."""
    return _SUMMARY.search(line) is not None


def last_line(text: str) -> str:
    """Return the last line of an output that has a meaning, as far as that is certain; empty: none near the end."""
    for line in reversed(_above_dump(output_lines(text))[-LAST_LINES:]):
        bare = RANK_PREFIX.sub("", line)
        if not bare.strip() or bare[0].isspace() or _AT_END.match(bare) or _ONLY_CODE.search(bare):
            continue
        if "Warning: " not in bare and not _PROGRESS.match(bare):
            return "" if _STEP.search(bare) and not _STOPS.search(bare) else bare
    return ""


def without_last(text: str, line: str) -> str:
    """Return an output up to the last line that ends so."""
    return text[: text.rfind("\n", 0, max(0, text.rfind(line))) + 1]


def _above_dump(lines: list[str]) -> list[str]:
    """Return the lines without stacks of faulthandler at their end, which a program has printed of all threads."""
    end = len(lines)
    while end and (not lines[end - 1].strip() or _OF_DUMP.match(RANK_PREFIX.sub("", lines[end - 1]))):
        end -= 1
    return lines[:end]


def line_before(text: str, exception: str) -> str:
    """Return the last line above the traceback of an exception of that type; empty if it reports no trouble."""
    lines = output_lines(text)
    own = next((each for each in reversed(tracebacks(lines)) if _has(each.exception, exception)), None)
    above = lines[: own.first] if own is not None else []
    while above and (_SUMMARY.search(above[-1]) or not above[-1].strip()):
        above.pop()
    line = last_line("\n".join(above))
    return "" if _WENT_ON.match(line) or _GOES_ON.search(line) or _AFTERMATH.match(line) else line


def error_before(text: str, exception: str, *, mild: bool = False) -> str:
    """Return the first of the few lines right above such a traceback that are errors by their words; empty: none.

    What a chain of programs prints last is often only the exit code of the one before.

    Args:
        text: the end of an output.
        exception: the type of the exception.
        mild: whether a logger's warning counts, too.
    """
    lines = output_lines(text)
    own = next((each for each in reversed(tracebacks(lines)) if _has(each.exception, exception)), None)
    if own is None:
        return ""
    above = lines[max(0, own.first - COMPILER_LINES) : own.first]
    by_compiler = next((line for line in above if _COMPILER.match(line)), None)
    if by_compiler is not None:
        return by_compiler
    found: list[str] = []
    for line in reversed(lines[max(0, own.first - FEW_LINES) : own.first]):
        if not line.strip():
            continue
        known = _WENT_ON.match(line) and not (mild and _WARNING.match(line))
        if not _TROUBLE.search(line) or known or _GOES_ON.search(line) or _AFTERMATH.match(line):
            break
        found.insert(0, line)
    return next((line for line in found if not _CODE_ONLY.search(line)), found[0] if found else "")


def dead_threads(text: str) -> list[Witness]:
    """Return the threads that an exception ended, in their order: a rank that waits for one hangs."""
    lines = output_lines(text)
    return [_of_traceback(lines, each) for each in tracebacks(lines) if each.thread and not each.ignored]


def output_lines(text: str) -> list[str]:
    """Return the lines at the end of an output as a terminal shows them, also the overwritten ones of progress bars."""
    text = _ESCAPES.sub("", text[-LIMIT:]).replace("\x00", "")
    return [line.rstrip()[:LINE_LIMIT] for line in re.split(r"\r\n|\n|\r", text)]


def _is_of_peers(found: Traceback) -> bool:
    """Whether torch.distributed raised it."""
    raised = found.exception
    inner = raised.frames[-1].file if raised.frames else ""
    return by_distributed(raised.type, raised.module, raised.message, inner)


class _Search:
    def __init__(self, lines: Sequence[str], found: Sequence[Traceback], known: frozenset[str]) -> None:
        self.lines, self.found, self.known = lines, found, known

    def from_end(self, end: int) -> Witness | None:
        logged: Witness | None = None
        closing, at = 0, end
        forms: set[str] = set()
        remaining = [each for each in self.found if each.end <= end]
        while at > 0:
            if remaining and at <= remaining[-1].end:
                last = remaining.pop()
                if last.ignored:
                    at = last.first
                    continue
                if _is_launcher(last.exception):
                    return self._by_launcher(last, remaining)
                if self._was_skipped(last):
                    return None
                return self._of(self._first_of_ranks(last, remaining))
            line = self.lines[at - 1]
            runtime = None if logged else self._runtime(at)
            if runtime is not None:
                return runtime
            text = logged_error(line)
            inner = json_exception(line) if text is not None else None
            if inner is not None and logged is None:
                where = f"{inner.type}: {inner.message}" if inner.message else inner.type
                return Witness(TRACEBACK, cut_middle(where, TEXT_LIMIT), inner, inner.frames)
            if text is not None and (stated_in(line) is not None or not self._is_aftermath(line, even_if_logged=True)):
                if logged is None and _GOES_ON.search(text):
                    return None  # what it reports was survived
                logged = logged or _logged(text)
            elif not self._is_aftermath(line):
                form = _DIGITS.sub("0", line)
                # Of a loop that cleans up, each line names another number; what is closed may be opened again.
                closing += form not in forms or _ENDS.search(line) is None
                forms.add(form)
                if logged is not None or closing > CLOSING_LINES or not _CLOSING.search(line) or _STEP.search(line):
                    return logged or self._long_message(at, remaining)
            at -= 1
        return logged

    def _was_skipped(self, last: Traceback) -> bool:
        """Whether the logger's line above a traceback tells that its program goes on without what failed."""
        text = logged_error(self.lines[last.first - 1]) if last.first else None
        return text is not None and _SKIPS.search(text) is not None

    def _first_of_ranks(self, last: Traceback, earlier: Sequence[Traceback]) -> Traceback:
        """Return the failure that a rank's broken connection follows from, of ranks that wrote to the same output."""
        if last.rank is None or not _is_of_peers(last):
            return last
        begin = last.first
        for each in reversed(earlier):
            between = self.lines[each.end : begin]
            if each.rank in (None, last.rank) or each.ignored or not all(map(self._is_aftermath, between)):
                break
            if not _is_of_peers(each):
                return each
            begin = each.first
        return last

    def _long_message(self, end: int, earlier: Sequence[Traceback]) -> Witness | None:
        """Return the traceback above the line ``end`` if all lines between them may be its exception's text."""
        last = next((each for each in reversed(earlier) if each.end <= end), None)
        if last is None or last.ignored or end - last.end > MESSAGE_LINES or _is_launcher(last.exception):
            return None
        between = [RANK_PREFIX.sub("", line) for line in self.lines[last.end : end] if line.strip()]
        shapes = {_DIGITS.sub("0", line) for line in between}
        if len(between) >= FEW_LINES and len(shapes) <= len(between) / 2:
            return None  # work that goes on, item by item
        if any(_STEP.search(line) or _WENT_ON.match(line) for line in between):
            return None
        return self._of(self._first_of_ranks(last, [each for each in earlier if each.end <= last.first]))

    def _is_aftermath(self, line: str, *, even_if_logged: bool = False) -> bool:
        bare = RANK_PREFIX.sub("", line)
        if bare.strip() in self.known:
            return True
        if even_if_logged and bare.startswith(" "):
            return False
        return _AFTERMATH.match(bare) is not None or _SUMMARY.search(bare) is not None

    def _of(self, last: Traceback) -> Witness:
        return _of_traceback(self.lines, last)

    def _runtime(self, at: int) -> Witness | None:
        """Return a runtime's last message that begins at most three lines above the line before ``at``."""
        line = self.lines[at - 1]
        bare = RANK_PREFIX.sub("", line)
        fatal = _FATAL.search(bare)
        if fatal is not None:
            stack = _STACK.findall("\n".join(self.lines[at : at + 200]).split("\n\nThread 0x", 1)[0])
            frames = tuple(Frame(file, int(number), function) for file, number, function in reversed(stack))
            why = self._before_abort(at - 1) if fatal[1].startswith("Aborted") else ""
            return Witness(RUNTIME, why or f"Fatal Python error: {fatal[1]}", frames=frames)
        if _TIME_OVER.match(bare):
            frames, others = self._odd_dump()
            waiting = f"; {others} in torch.distributed" if others else ""
            return Witness(RUNTIME, f"faulthandler's time-out: {bare}{waiting}", frames=frames)
        if not (_RUNTIME.match(bare) or "Assertion `" in bare):
            return None
        message = abort_message("\n".join([bare, *self.lines[at : at + 1]]))
        if message.startswith(("terminate called without", "terminate called recursively")):
            return None  # a thread that was still running: what ended the program stands above
        return Witness(RUNTIME, cut_middle(message, TEXT_LIMIT), exception_in(message)) if message else None

    def _odd_dump(self) -> tuple[tuple[Frame, ...], str]:
        """Return the stack of the only process, of those whose time was over, that did not wait, and the others.

        Without such a one, the last stack, and nothing.
        """
        dumps: list[tuple[Frame, ...]] = []
        for at, line in enumerate(self.lines):
            if not _TIME_OVER.match(RANK_PREFIX.sub("", line)):
                continue
            end = next((i for i in range(at + 1, len(self.lines)) if _TIME_OVER.match(self.lines[i])), at + DUMP_LINES)
            stack = _STACK.findall("\n".join(self.lines[at:end][:DUMP_LINES]))
            dumps.append(tuple(Frame(file, int(number), function) for file, number, function in reversed(stack)))
        odd = [
            frames for frames in dumps if frames and not any("/torch/distributed/" in frame.file for frame in frames)
        ]
        if len(odd) == 1 and len(dumps) > 1:
            count = len(dumps) - 1
            return odd[0], f"{count} other process{'es' if count > 1 else ''}"
        return dumps[-1] if dumps else (), ""

    def _before_abort(self, end: int) -> str:
        """Return what a library stated directly above faulthandler's dump of an abort, which only it explains."""
        for at in range(end, max(0, end - FEW_LINES), -1):
            bare = RANK_PREFIX.sub("", self.lines[at - 1])
            glog = GLOG.match(bare) if bare.lstrip("[").startswith("F") else None
            if glog is not None and glog["text"]:
                return cut_middle(glog["text"].strip(), TEXT_LIMIT)
            native = _NATIVE_LINE.match(bare)
            if native is not None:
                return native["text"]
            message = abort_message("\n".join(self.lines[at - 1 : end]))
            if message:
                return message
        return ""

    def _by_launcher(self, last: Traceback, earlier: Sequence[Traceback]) -> Witness:
        """Return the failure of the process that a launcher's own exception reports."""
        rank, code = _root_row(self.lines[last.first :])
        own = [each for each in earlier if not each.ignored and not _is_launcher(each.exception)]
        named = [each for each in own if each.rank is not None and each.rank == rank]
        primary = [each for each in own if not _follows(each.exception)]
        for chosen in (named, primary, own):
            if chosen:
                found = _called_at(self._of(chosen[-1]), last.exception.frames)
                # The only traceback is that of the rank in the table.
                return replace(found, rank=rank) if len(own) == 1 and found.rank is None else found
        before = _Search(self.lines, [], self.known).from_end(last.first)
        if before is not None:
            return before
        if rank is None:
            return self._of(last)
        return Witness(CHILD, f"rank {rank} of a nested launcher: {code}")


def _called_at(inner: Witness, frames: tuple[Frame, ...]) -> Witness:
    """Return the failure of a child process; where that has no file (``python -c``), at the place of its start."""
    if inner.exception is None or any(not frame.file.startswith("<") for frame in inner.frames):
        return inner
    return replace(inner, exception=replace(inner.exception, frames=frames), frames=frames)


def _of_traceback(lines: Sequence[str], found: Traceback) -> Witness:
    exception = found.exception
    first = exception.message.split("\n", 1)[0]
    text = f"{exception.type}: {first}" if first else exception.type
    whole = "\n".join(lines[found.first : found.end]).rstrip() + "\n"
    return Witness(
        TRACEBACK, cut_middle(text, TEXT_LIMIT), exception, exception.frames, whole, found.thread, found.rank
    )


def _logged(text: str) -> Witness:
    return Witness(LOGGED, cut_middle(text, TEXT_LIMIT), exception_in(text))


def _is_launcher(exception: ExceptionRecord) -> bool:
    return exception.type == "ChildFailedError" or _OF_CHILD.search(exception.message) is not None


def _follows(exception: ExceptionRecord) -> bool:
    inner_file = exception.inner_file
    return by_distributed(exception.type, exception.module, exception.message, inner_file)


def _root_row(lines: Sequence[str]) -> tuple[int | None, str]:
    """Return rank and end of the first failure in a launcher's table."""
    begin = next((i for i, line in enumerate(lines) if line.strip().startswith("Root Cause")), None)
    rank, end = None, "failed"
    for line in lines[begin:] if begin is not None else ():
        row, code = _TABLE_ROW.match(line), _TABLE_CODE.match(line)
        if row is not None and rank is None:
            rank = int(row[1])
        if code is not None:
            number = int(code[1])
            return rank, f"exit code {number}" if number >= 0 else f"signal {-number}"
    return rank, end
