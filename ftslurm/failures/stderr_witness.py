"""The end of a program's stderr as a witness of why it ended: pure, bounded, and linear in the length of the text.

A program that ends by an exit code, ``os._exit``, a signal or a nested launcher often has printed why before: by a
traceback, a logger's ERROR line, an assertion, a runtime's last message. It counts only at the end: after it come
nothing but the lines that interpreters, libraries, launchers and shells print when a program ends. What stands further
above was survived.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.abort_message import abort_message
from ftslurm.failures.closing_lines import (
    AFTERMATH,
    ENDS,
    OF_LOG,
    STEP,
    STOPS,
    goes_on_without,
    is_summary,
    output_lines,
)
from ftslurm.failures.exception_line import exception_in
from ftslurm.failures.foreign_reason import LINES as FOREIGN
from ftslurm.failures.foreign_reason import foreign_reason
from ftslurm.failures.lines_above import COMPILER_LINES, FEW_LINES, WARNING, has_type
from ftslurm.failures.logged_error import GLOG, RANK_PREFIX, json_exception, logged_error
from ftslurm.failures.reason import EXIT, by_distributed, is_code, reason
from ftslurm.failures.stated_lines import stated_in
from ftslurm.failures.traceback_text import Traceback, tracebacks
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.text import cut_middle

TEXT_LIMIT = 500  # characters of the line
CLOSING_LINES = 10  # after the reason, of the program's own end
DUMP_LINES = 200
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
        thread: what the exception ended instead, "thread prefetch" or "process Process-1"; empty: none, or unknown.
        rank: the rank that torch's prefix of the traceback names; None: there is none.
    """

    kind: str
    text: str
    exception: ExceptionRecord | None = None
    frames: tuple[Frame, ...] = ()
    lines: str = ""
    thread: str = ""
    rank: int | None = None


_CLOSING = pattern(
    r"(?i)\b(exit(s|ed|ing)?|quit(ting)?|shut(ting)?|clean(ing|ed|up)?|clos(e|es|ing|ed)|finaliz|terminat|stopp?(ed|ing)?"
    r"|abort|teardown|destroy|giving up|see the|leav(e|ing)|bye|fail(ed|ing|ure)?|ended with)"
)
# Of a logger, below its level ERROR.
_INFORMS = pattern(r".{0,60}?\b(?:INFO|DEBUG)\b")
_SKIPS = pattern(r"(?i)\b(?:skipping|ignoring|continuing)\b")
_CONTINUES = pattern(r"[^a-z]")  # a message's further lines are sentences, or indented
_DIGITS = pattern(r"\d+")
_RUNTIME = pattern(
    r"terminate called|libc\+\+abi|(free|malloc|realloc|calloc|munmap_chunk|malloc_consolidate)\(\): |double free"
    r"|corrupted |\*\*\* "
)
_TIME_OVER = pattern(r"Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!$")
_NATIVE_LINE = pattern(
    r"\[\S{1,300}\.(?:h|hpp|cc|cpp|cu):\d+\] (?P<text>\S.{0,300})$"
)  # of torch's C++ code and gloo's
_FATAL = pattern(r"Fatal Python error: (.{1,200})$")
_STACK = pattern(r'\s+File "([^"\n]{1,4096})", line (\d{1,9}) in (\S{1,200})')
_FRAME = pattern(r'(?m)^ {2}File "([^"\n]{1,4096})", line (\d{1,9}), in (\S{1,200})')
_OF_THREAD = pattern(r"(?m)^.{0,40}(?:Current thread|Thread) 0x\w+.{0,80}\(most recent call first\):$")
_TABLE_ROW = pattern(r"\s+rank +: (\d{1,6}) \(local_rank: \d{1,6}\)")
_TABLE_CODE = pattern(r"\s+exitcode +: (-?\d{1,5}) ")
_OF_CHILD = pattern(r"returned non-zero exit status|died with <Signals|exits with return code")


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
        own = next((each for each in reversed(found) if has_type(each.exception, before)), None)
        end = own.first if own is not None else end
    foreign = foreign_reason([RANK_PREFIX.sub("", line) for line in lines[max(0, end - FOREIGN) : end]])
    if foreign is not None and not before:
        begin = max(0, end - FOREIGN) + foreign.first
        # What comes below it is the reason, or shows that the program went on.
        if not any(each.end > begin for each in found) and not any(map(STEP.search, lines[begin:end])):
            frames = () if foreign.frame is None else (foreign.frame,)
            return Witness(RUNTIME, cut_middle(foreign.text, TEXT_LIMIT), frames=frames)
    search = _Search(lines, found, frozenset(line.strip() for line in apart_from if line.strip()))
    last = search.from_end(end)
    return (search.by_hook(end) if last is None or last.kind == LOGGED else None) or last


def dead_threads(text: str) -> list[Witness]:
    """Return the threads that an exception ended, in their order: a rank that waits for one hangs."""
    lines = output_lines(text)
    found = (each for each in tracebacks(lines) if each.thread and not each.ignored)
    return [_of_traceback(lines, replace(each, exception=reason(each.exception))) for each in found]


def frames_at_end(text: str) -> Witness | None:
    """Return the exception that a line names below which an output ends with frames, as of `traceback.print_tb`."""
    lines = [line for line in output_lines(text) if line.strip()]
    at = len(lines)
    while at and lines[at - 1].startswith("  "):
        at -= 1
    found = _FRAME.findall("\n".join(lines[at:]))
    named = exception_in(lines[at - 1]) if at and found else None
    if named is None:
        return None
    frames = tuple(Frame(file, int(number), function) for file, number, function in found)
    where = f"{named.type}: {named.message}" if named.message else named.type
    return Witness(TRACEBACK, cut_middle(where, TEXT_LIMIT), replace(named, frames=frames), frames)


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
                if last.ignored or _is_exit(last.exception):
                    at = last.first
                    continue
                if _is_launcher(last.exception):
                    return self._by_launcher(last, remaining)
                if self._was_survived(last, closing):
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
                if logged is None and goes_on_without(text):
                    return None  # what it reports was survived
                logged = logged or _logged(text)
            elif not self._is_aftermath(line):
                form = _DIGITS.sub("0", line)
                if logged is None and goes_on_without(line):
                    return None
                # Of a loop that cleans up, each line names another number; what is closed may be opened again.
                informs = _INFORMS.match(line) is not None
                closing += form not in forms or not (informs or ENDS.search(line))
                forms.add(form)
                known = _CLOSING.search(line) is not None or (informs and not goes_on_without(line))
                works = STEP.search(line) is not None and STOPS.search(line) is None
                if logged is not None or closing > CLOSING_LINES or not known or works:
                    return logged or self._long_message(at, remaining)
            at -= 1
        return logged

    def by_hook(self, end: int) -> Witness | None:
        """Return the traceback by torch's hook, which ended its process, below which only a wrapper prints."""
        found = [each for each in self.found if each.rank is not None and not each.ignored and each.end <= end]
        found = [each for each in found if not _is_exit(each.exception)]
        if not found or any(map(STEP.search, self.lines[found[-1].end : end])):
            return None
        return self._of(self._first_of_ranks(found[-1], found[:-1]))

    def _was_survived(self, last: Traceback, closing: int) -> bool:
        """Whether the line above a traceback tells that its program goes on after what failed.

        Args:
            closing: the number of lines below it that only a program at its end prints; a warning has others, too.
        """
        above = self.lines[last.first - 1] if last.first else ""
        if logged_error(above) is not None and _SKIPS.search(above):
            return True
        return closing > 0 and (goes_on_without(above) or WARNING.match(above) is not None)

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
        if between and _CONTINUES.match(between[0]) is None:
            return None
        if len(between) >= FEW_LINES and len(shapes) <= len(between) / 2:
            return None  # work that goes on, item by item
        if any(STEP.search(line) or OF_LOG.match(line) for line in between):
            return None
        return self._of(self._first_of_ranks(last, [each for each in earlier if each.end <= last.first]))

    def _is_aftermath(self, line: str, *, even_if_logged: bool = False) -> bool:
        bare = RANK_PREFIX.sub("", line)
        if bare.strip() in self.known:
            return True
        if even_if_logged and bare.startswith(" "):
            return False
        return AFTERMATH.match(bare) is not None or is_summary(bare)

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
            dumps.append(_main_stack(self.lines[at:end][:DUMP_LINES]))
        odd = [
            frames for frames in dumps if frames and not any("/torch/distributed/" in frame.file for frame in frames)
        ]
        if len(odd) == 1 and len(dumps) > 1:
            count = len(dumps) - 1
            return odd[0], f"{count} other process{'es' if count > 1 else ''}"
        return dumps[-1] if dumps else (), ""

    def _before_abort(self, end: int) -> str:
        """Return what a library stated directly above faulthandler's dump of an abort, which only it explains."""
        for at in range(end, max(0, end - COMPILER_LINES), -1):
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


def _main_stack(dump: Sequence[str]) -> tuple[Frame, ...]:
    """Return the stack of the main thread in faulthandler's dump of all threads, which does not mark it."""
    texts = _OF_THREAD.split("\n".join(dump))
    stacks = [_STACK.findall(text) for text in texts]
    kept = [stack for stack in stacks if stack]
    main = next((stack for stack in kept if stack[-1][2] == "<module>"), kept[-1] if kept else [])
    return tuple(Frame(file, int(number), function) for file, number, function in reversed(main))


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


def _is_exit(exception: ExceptionRecord) -> bool:
    """Whether a program only ended itself by it: why is above."""
    return exception.type == EXIT and is_code(exception.message)


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
