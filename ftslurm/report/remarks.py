"""What qualifies the headline of a rank's failure: threads, handlers, earlier reports, what it follows from (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ftslurm.failures.exception_line import HEADER
from ftslurm.failures.message_line import message_line
from ftslurm.failures.own_code import is_library, own_frame
from ftslurm.failures.reason import handled, links
from ftslurm.failures.retryability import OTHER_FAILED, other_ranks
from ftslurm.pattern import pattern
from ftslurm.records.error import ExceptionRecord, Frame
from ftslurm.report import consequence
from ftslurm.report.alike import Alike, is_same
from ftslurm.report.facts import LogTail, RoundFiles
from ftslurm.report.failed_worker import FailedWorker, beside_crash
from ftslurm.report.layout import shortened
from ftslurm.report.reported_before import (
    FOLLOWING,
    collected_before,
    dead_thread,
    is_adjacent,
    one_reported_first,
    reported_before,
    traceback_at_end,
)
from ftslurm.report.wording import those_ranks
from ftslurm.text import cut_middle, ranges

_ABOVE = pattern(r"(?i)\b(?:errors?|messages?|logs?) (?:printed )?above\b")
_STAMP = pattern(r"^\[?\d[\d:.,T -]{6,30}\]?[ |]*")
_KILLS = pattern(
    r"(?i)(?<!was )(?<!were )(?<!got )\b(?:kill(?:s|ed|ing)?|terminat(?:es|ed|ing)|reap(?:s|ed|ing)?"
    r"|shoot(?:s|ing)?|send(?:s|ing)? SIG\w+)\b"
)
_SENT = ("SIGTERM", "SIGKILL", "SIGINT")
UNKNOWN_SENDER = ", sender unknown"
"""In the title of a signal's cause."""
LINES_OF_SENDER = 40
"""Lines at the end of an output among which a rank says which process it ends."""
_SHORT_OF = pattern(r"\bOOM\b|(?i:out of memory|\bnan\b|\bunsupported\b)")
JUST_BEFORE_NS = 2 * 10**9
QUOTED = 40
"""Characters by which a line that was printed has a message."""
CAUGHT_LIMIT, PLACES_SHOWN, RANKS_NAMED = 120, 3, 2
# Of torch's TCPStore.
_TRIED = pattern(
    r"client socket has timed out after \d+ ?m?s while trying to connect to"
    r" \((?P<host>[^,()\s]{1,200}), (?P<port>\d{1,5})\)"
)
_ERRNO = pattern(r"failed to connect to .{1,200}?\(errno: \d{1,4} - ([A-Z][\w ]{3,60})\)")
_OF_CLIENT = pattern(r"Remote|Connect|HTTP|URL|Timeout|Fault|R[pP][cC]|EOFError|BrokenPipe")
"""Of types of exceptions by which a program notices that its server failed."""
SWALLOWED = "it ended with exit code 0: a pipe or || hides exit codes (set -o pipefail), or a background process failed"
RECURSION = 40
"""Equal calls on the stack of a crash; faulthandler prints no more than 100."""
_FORWARD = "Traceback of forward call that caused the error:"
_FRAME = pattern(r'(?m)^ {2}File "([^"\n]{1,4096})", line (\d{1,9}), in (\S{1,200})$')
SURVIVED_TYPES = frozenset(
    ("KeyError", "IndexError", "AttributeError", "StopIteration", "ImportError", "ModuleNotFoundError", "Empty", "Full")
)


def of_rank(
    files: RoundFiles, failed: Sequence[FailedWorker], worker: FailedWorker, tails: Sequence[LogTail]
) -> tuple[str, ...]:
    """Return what its stacks and the output of ranks add to the failure of a rank.

    Args:
        files: the round.
        failed: the judged failures, that of the rank first.
        worker: the latter, perhaps judged anew.
        tails: the ends of its output.
    """
    dead, reported = _dead_thread_of(worker, tails), _reported(files, failed, tails)
    # The headline, or what is known of another thread, has it.
    known = (worker.what, *dead)
    if any(text.partition(": ")[2].rpartition(" at ")[0] in each for text in reported for each in known):
        reported = []
    return (
        *dead,
        *([SWALLOWED] if worker.exit_code == 0 else []),
        *_native_thread(worker),
        *_recursion(worker),
        *_forward_call(worker, tails),
        *_connecting_elsewhere(files, worker),
        *_not_connected(worker, tails),
        *_others_named(files, worker),
        *sender(files, worker),
        *_others_reported(files, failed, worker),
        *(reported or ([] if dead else _right_above(worker, tails))),
    )


def sender(files: RoundFiles, worker: FailedWorker) -> list[str]:
    """Return the line in which another rank of its node states that it ends the process of this one, as a leftover."""
    own = next((node.workers for node in files.nodes for one in node.workers if one.rank == worker.rank), ())
    pid = next((one.pid for one in own if one.rank == worker.rank), None)
    if worker.signal not in _SENT or not pid:
        return []
    # A watchdog of its own comes first.
    for rank in sorted((one.rank for one in own), key=lambda rank: rank != worker.rank):
        tails = files.tails.get(rank, ())
        for line in (line for tail in tails for line in tail.text.splitlines()[-LINES_OF_SENDER:]):
            if _KILLS.search(line) and re.search(rf"(?<!\d){pid}(?!\d)", line):
                text = cut_middle(line.strip(), CAUGHT_LIMIT)
                whose = "its own" if rank == worker.rank else "this rank's"
                return [f'rank {rank} had printed "{text}", of {whose} process']
    return []


def _dead_thread_of(worker: FailedWorker, tails: Sequence[LogTail]) -> list[str]:
    """Return which thread of a rank an exception had ended before: the rank may have waited for it, or its result."""
    if worker.exception is None or worker.cause.cascade:
        return []
    text = next((text for tail in tails if (text := dead_thread(worker.rank, tail))), "")
    own = f"{worker.exception.type}: {message_line(worker.exception.message)}"
    # Of that itself, a log shows the end of the thread only.
    return [f"{text.partition(' died')[0]} raised it" if own in text else text] if text else []


def _native_thread(worker: FailedWorker) -> list[str]:
    """Return where the main thread was while a thread of a library crashed, by which its process ended."""
    frame = beside_crash(worker)
    if frame is None:
        return []
    return [f"a thread of a library crashed; the main thread was at {frame.place.rpartition('/')[2]}"]


def _not_connected(worker: FailedWorker, tails: Sequence[LogTail]) -> list[str]:
    """Return the system's reason why a rank's socket could not connect, which torch's message leaves out."""
    if worker.cause.name != "master-unreachable":
        return []
    found = [each[1] for tail in tails for each in _ERRNO.finditer(tail.text)]
    return [f"its socket could not connect: {found[-1]}"] if found and found[-1] not in worker.what else []


def _connecting_elsewhere(files: RoundFiles, worker: FailedWorker) -> list[str]:
    """Return to which address a rank tried to connect that did not come to the store of the one that waited for it."""
    if worker.exception is None or "clients joined" not in worker.exception.message:
        return []
    found: dict[str, list[int]] = {}
    for rank, tails in files.tails.items():
        tried = [each for tail in tails for each in _TRIED.finditer(tail.text)] if rank != worker.rank else []
        if tried:
            found.setdefault(f"{tried[-1]['host']}:{tried[-1]['port']}", []).append(rank)
    masters = {f"{node.master.address}:{node.master.port}" for node in files.nodes if node.master is not None}
    ranks = sorted(found.items(), key=lambda pair: min(pair[1]))[:PLACES_SHOWN]
    own = f", and not to the run's {min(masters)}: its script sets another one" if len(masters) == 1 else ""
    return [
        f"{those_ranks(ranges(each))} tried to connect to {where} in vain{'' if where in masters else own}"
        for where, each in ranks
    ]


def _others_named(files: RoundFiles, worker: FailedWorker) -> list[str]:
    """Return where those ranks were that a failure names, but that had not failed when ftslurm stopped them."""
    if worker.exception is None or worker.cause.cascade:
        return []
    texts = [link.message for link in links(worker.exception)]
    named = {rank for text in texts for rank in other_ranks(text, worker.rank)}
    done = sorted(named.intersection(consequence.finished(files)))[:RANKS_NAMED]
    if done:
        return [f"{those_ranks(ranges(done))} had finished with exit code 0"]
    stopped = {one.rank for node in files.nodes for one in node.workers if one.stopped_by_ftslurm and one.error is None}
    if not named and len(stopped) <= RANKS_NAMED and any(re.search(OTHER_FAILED, text) for text in texts):
        named = stopped
    found = [(rank, consequence.stack_place(files, rank)) for rank in sorted(named & stopped)[:RANKS_NAMED]]
    return [f"rank {rank} had not failed: it was {place}" for rank, place in found if place]


def _others_reported(files: RoundFiles, failed: Sequence[FailedWorker], worker: FailedWorker) -> list[str]:
    """Return the tracebacks that ranks had printed that ran on, or lost the failed one: one may have served that."""
    if worker.exception is None or worker.cause.cascade:
        return []
    ran = [one.rank for node in files.nodes for one in node.workers if one.stopped_by_ftslurm and one.error is None]
    found = [line for rank in ran for line in traceback_at_end(files, rank, worker.time_ns)]
    found = [line for line in found if f": {worker.exception.type}: " not in line]
    if _OF_CLIENT.search(worker.exception.type):
        lost = [each for each in failed if each.rank != worker.rank and each.cause.cascade]
        printed = ((each.rank, reported_before(each, files.tails.get(each.rank, ()))) for each in lost)
        found += [f"rank {rank} had printed before: {_short(why)}" for rank, why in printed if why is not None]
    return found[:RANKS_NAMED]


def _recursion(worker: FailedWorker) -> list[str]:
    """Return the call that fills the stack of a crash: its thread had no room left for one more."""
    frame, count = Counter(worker.frames).most_common(1)[0] if worker.signal and worker.frames else (None, 0)
    if frame is None or count < RECURSION:
        return []
    return [f"its stack is full of calls of {frame.place.rpartition('/')[2]}: an endless recursion"]


def _forward_call(worker: FailedWorker, tails: Sequence[LogTail]) -> list[str]:
    """Return which call of the forward pass gave what torch's anomaly detection found wrong with its gradient."""
    text = next((tail.text for tail in tails if tail.stream == "stderr"), "")
    wrong = ("returned nan values", "modified by an inplace operation")
    message = worker.exception.message if worker.exception is not None else ""
    if _FORWARD not in text or not any(each in message for each in wrong):
        return []
    # The error's own traceback follows.
    forward = text.rpartition(_FORWARD)[2].partition(HEADER)[0]
    frames = [Frame(file, int(line), function) for file, line, function in _FRAME.findall(forward)]
    own = [frame for frame in frames if not is_library(frame.file)]
    return [f"its forward call: {own[-1].place.rpartition('/')[2]}"] if own else []


def _reported(files: RoundFiles, failed: Sequence[FailedWorker], tails: Sequence[LogTail]) -> list[str]:
    """Return what a rank's stderr has before its own traceback, where that only follows from something else."""
    first = failed[0]
    if first.exception is None or first.cause.cascade:
        return []
    same = [first, *(each for each in failed[1:] if is_same(first, each))]
    one = one_reported_first(same, files.tails)
    why = one[1] if one is not None else None
    if one is None and (first.exception.type in FOLLOWING or is_adjacent(first, tails)):
        why = reported_before(first, tails)
    why = why or collected_before(first, tails)
    if why is None:
        return []
    rank = f"rank {one[0].rank} alone" if one is not None else "it"
    return [f"{rank} had printed before: {_short(why)}"]


def _short(raised: ExceptionRecord) -> str:
    """Return an exception's type, text and place: ``ValueError: bad row at data.py:13 in read``."""
    place = f" at {_place(raised)}" if raised.frames else ""
    return shortened(f"{raised.type}: {message_line(raised.message)}".rstrip(": "), CAUGHT_LIMIT) + place


def _right_above(worker: FailedWorker, tails: Sequence[LogTail]) -> list[str]:
    """Return the line that reports trouble right above a rank's traceback: of a library, or of the program's logger."""
    text = next((tail.text for tail in tails if tail.stream == "stderr"), "")
    judged = worker.cause.cascade or {"stderr", "output"} & set(worker.evidence)
    if worker.exception is None or judged or HEADER not in text:
        return []
    from ftslurm.failures.lines_above import error_before, native_error_before

    above = error_before(text, worker.exception.type, mild=True)
    if _ABOVE.search(worker.exception.message):
        above = native_error_before(text, worker.exception.type) or above
    line = _STAMP.sub("", above.strip())
    messages = [message_line(each.message) for each in links(worker.exception)]
    repeats = any(message and (message[:QUOTED] in line or line in message) for message in messages)
    if line and not line.endswith(":") and not repeats:
        return [f'right above: "{cut_middle(line, CAUGHT_LIMIT)}"']
    return [] if line else _last_of_stdout(worker, tails)


def _last_of_stdout(worker: FailedWorker, tails: Sequence[LogTail]) -> list[str]:
    """Return the last line of a rank's stdout, if it reports trouble just before the failure."""
    from ftslurm.failures.closing_lines import GOES_ON, last_line
    from ftslurm.failures.lines_above import NO_TROUBLE, TROUBLE

    own = next((tail for tail in tails if tail.stream == "stdout" and tail.text.strip()), None)
    if own is None or not own.written_ns or not worker.time_ns or worker.time_ns - own.written_ns > JUST_BEFORE_NS:
        return []
    line = last_line(own.text)
    of_trouble = TROUBLE.search(line) or GOES_ON.search(line) or _SHORT_OF.search(line)
    of_trouble = None if NO_TROUBLE.search(line) else of_trouble
    known = worker.exception is not None and any(line in each.message for each in links(worker.exception))
    return [f'its stdout ends with "{cut_middle(line, CAUGHT_LIMIT)}"'] if line and of_trouble and not known else []


def _place(exception: ExceptionRecord) -> str:
    return own_frame(exception.frames).place.rpartition("/")[2]


def while_handling(worker: FailedWorker) -> list[str]:
    """Return the failure whose handler called what failed then, where the handler did not raise that itself.

    A program that goes on without what it looked up or imported has handled that.
    """
    exception = worker.exception
    caught = None if exception is None or exception.cause is not None else exception.context
    if exception is None or caught is None or not caught.frames or worker.cause.cascade or exception.raised_again:
        return []
    # Of a lookup, the handler is where it failed.
    if (caught.type in SURVIVED_TYPES and len(caught.frames) == 1) or handled(exception) is not None:
        return []
    message = message_line(caught.message)
    if message and message in worker.what:
        return []  # the headline has it
    text = shortened(f"{caught.type}: {message}".rstrip(": "), CAUGHT_LIMIT)
    return [f"raised while handling {text} ({_place(caught)})"]


def on_source(
    files: RoundFiles, source: consequence.Origin | None, same: Alike | None, places: consequence.Places
) -> tuple[str, ...]:
    """Return what a failure follows from, which ranks failed alike, and the places at which ranks parted."""
    found = [] if source is None else [source.text]
    if source is not None:
        found += consequence.whereabouts(files, source)
    found += [same.text] if same is not None and same.text else []
    return (*found, consequence.parted(places)) if len(places) > 1 else tuple(found)
