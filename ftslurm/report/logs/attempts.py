"""Several attempts in one log: a requeued job that appends to its output, restarts by torchrun, loops of srun (pure).

A process that ends twice has been started twice. Slurm's lines, and the log's first lines when they appear again,
show where the next attempt begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from ftslurm.pattern import pattern
from ftslurm.report.logs.attempt_log import of_launcher
from ftslurm.report.logs.end import End, Ends, JobEnd
from ftslurm.report.logs.ends import ends_of
from ftslurm.report.logs.lines import GAP, Line
from ftslurm.report.logs.noise import is_aftermath, is_by_slurm
from ftslurm.report.logs.success import ends_well, says_again, says_completed, works
from ftslurm.report.logs.table import OF_TABLE, seconds_between
from ftslurm.report.logs.tracebacks import names_rank
from ftslurm.report.logs.untangle import HEADER

HEAD = 6
LIMIT = 64
MOVED_ON = 30
"""Lines of output after Slurm's line by which the job has begun again; a job that is being stopped prints fewer."""
_MAY_GO_ON = ("REQUEUED", "PREEMPTED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY")
"""States of a job after which Slurm, or its user, may let it begin again in the same log."""
LATER_LINES, NEIGHBOURS = 2000, 8
KILL_WAIT = timedelta(minutes=5)
"""Time after Slurm's line after which no process of the attempt lives: more than the usual KillWait."""
ONCE_S = 3
"""Less than a restart takes."""
AT_ONCE = timedelta(minutes=1)
_SUBMITIT = pattern(r"submitit INFO \(.{1,40}\) - Starting with JobEnvironment\(")
_CLOSING = pattern(r"\[launch\.py:\d+:sigkill_handler\]|\bpdsh@\S{1,80}: |ssh exited with exit code")
_DIGITS = pattern(r"\d+")
# Of a script; a program that tries something again has no banner.
_BANNER = pattern(r"(?i)(?:[=\-#*]{3,} ?|\+ (?:echo )?)(?:re-?try|(?:re)?start|attempt|try)\b.{0,80}$")
_RETRY = pattern(r"(?i)\b(?:re-?try(?:ing)?|restarting|trying again|(?:attempt|try) #?\d{1,4}\b)")
_REST_OF_TABLE = pattern(rf"{OF_TABLE.pattern}|={{10,}}$|\S{{1,300}} FAILED$|Root Cause \(first")
# Of torchrun's agent, at a level of logging that is off by default.
_ATTEMPTS_LEFT = pattern(r"Worker group \w{4,20}\. \d{1,9}/\d{1,9} attempts left; +will restart worker group")
_TIME = pattern(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)")
_OF_WORKER = pattern(r"\S{1,400}\.py:\d+: \w*Warning: ")
_SCRIPT = pattern(r' {2}File "([^"\n]{1,400})", line \d{1,9}, in <module>')
_LAUNCHER_ENDS = pattern(
    r"/torchrun\"|torch/distributed/(?:run|launch)\.py\"|ChildFailedError|SignalException|death signal"
)


def split_parts(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """Return the lines of each attempt, oldest first; of several files, the last attempts of all are the same one."""
    parts: dict[int, list[Line]] = {}
    for line in lines:
        parts.setdefault(line.part, []).append(line)
    each = [split(own, ends_of(own)) for own in parts.values()]
    count = max(map(len, each), default=1)
    of_attempt = [[own[i - count] for own in each if len(own) >= count - i] for i in range(count)]
    return [[line for own in those for line in own] for those in of_attempt]


def split(lines: Sequence[Line], ends: Ends) -> list[Sequence[Line]]:
    """Return the lines of each attempt, oldest first."""
    borders = sorted(
        {
            *_repeated(ends.processes),
            *_requeued(lines, ends),
            *_restarted(lines, ends),
            *_next_step(lines, ends),
            *_tried_again(lines, ends),
        }
    )
    evidence = sorted([*(end.number for end in ends.processes if not end.stopped), *(e.number for e in ends.job)])
    borders = sorted({*borders, *_begins(lines, evidence)})
    announced = _announced(lines)
    if announced:
        borders = sorted({*borders, *announced})
        evidence = sorted([*evidence, *(line.number for line in lines if HEADER in line.text)])
    kept: list[int] = []
    previous = -1
    borders = [border for border in borders if border in announced or not _another_program(lines, border)]
    for border in borders:
        # An attempt ends with something; else the first lines appear again for another reason.
        if any(previous < number < border for number in evidence):
            kept.append(border)
            previous = border - 1
    kept = [border for i, border in enumerate(kept) if _has_output(lines, border, [*kept[i + 1 :], None][0])]
    parts: list[Sequence[Line]] = []
    at = 0
    for border in kept[-LIMIT:]:
        end = next((i for i in range(at, len(lines)) if lines[i].number >= border), len(lines))
        while end < len(lines) and _REST_OF_TABLE.match(lines[end].text):
            end += 1
        parts.append(lines[at:end])
        at = end
    parts.append(lines[at:])
    return [part for part in parts if any(line.text.strip() for line in part)] or [lines]


def _has_output(lines: Sequence[Line], begin: int, end: int | None) -> bool:
    """Whether more than a launcher's closing lines, as of another node, are between two lines."""
    own = (line for line in lines if line.number >= begin and (end is None or line.number < end))
    return any(not is_aftermath(line.text) and not _CLOSING.search(line.text) for line in own)


def _repeated(ends: Iterable[End]) -> Iterable[int]:
    """The lines at which a new attempt has begun at the latest, because a process ends for the second time."""
    known: dict[tuple[object, ...], End] = {}
    last = last_but_workers = -1
    for end in sorted(ends, key=lambda end: end.number):
        for name in _names(end):
            before = known.get(name)
            if before is not None and end.number > before.number + 1 and not _is_same(before, end):
                # An agent tells of the end of a worker, and then prints its table.
                yield (last_but_workers if end.by == "table" else last) + 1
                known.clear()
        for name in _names(end):
            known[name] = end
        last = end.number
        last_but_workers = last_but_workers if end.by == "torchrun" else last


def _is_same(one: End, other: End) -> bool:
    """Whether two statements may be on one end: of one process, or in tables of torchrun of one time.

    These are of two agents, as those of two nodes on one machine.
    """
    if one.by == "composer" and (one.pid == other.pid or None in (one.pid, other.pid)):
        return True
    return bool(one.at and other.at) and abs(seconds_between(one.at, other.at)) <= ONCE_S


def _names(end: End) -> list[tuple[object, ...]]:
    if end.by == "torchrun":
        # An agent names the first worker that failed, and stops the others.
        return [("agent", end.agent)] if end.agent else []
    if end.by == "table":
        # An agent prints one table, at its end.
        # Two agents on one machine have different first ranks.
        first = None if end.rank is None or end.local is None else end.rank - end.local
        return [("row", end.rank), ("table", end.node, first)] if end.root else []
    if end.by == "srun":
        return [("task", end.node, task) for task in end.tasks]
    if end.by == "deepspeed":
        return [("launcher", end.node)]
    return [(end.by, end.rank, end.local)] if end.rank is not None or end.local is not None else []


def _requeued(lines: Sequence[Line], ends: Ends) -> Iterable[int]:
    """The lines after Slurm's statements that the job was requeued, if it began again."""
    masked = [_mask(line.text) for line in lines]
    for i, end in enumerate(ends.job):
        after = ends.job[i + 1].number if i + 1 < len(ends.job) else None
        if not end.whole:
            continue
        rest = [line for line in lines if line.number > end.number and (after is None or line.number < after)]
        began = _began_again(rest, end)
        if began is not None:
            yield began
            continue
        if after is not None and after - end.number <= NEIGHBOURS:
            continue  # two statements on one end
        ordinary = sum(
            1 for line in rest[:2000] if line.text != GAP and not is_aftermath(line.text) and not _is_at(line, end)
        )
        enough = 1 if end.state == "REQUEUED" else MOVED_ON if end.state in ("PREEMPTED", "NODE_FAIL") else None
        again = end.state in _MAY_GO_ON and _goes_on(rest, end)
        if (enough is not None and ordinary >= enough) or again or _known_begin(rest, masked, len(ends.job)):
            yield _after_slurm(rest, end.number)


def _began_again(rest: Sequence[Line], end: JobEnd) -> int | None:
    """Return the line by which a job that Slurm starts again says that it began again; None: there is none."""
    if end.state not in ("REQUEUED", "PREEMPTED", "NODE_FAIL"):
        return None
    return next((line.number for line in rest[:LATER_LINES] if line.rank is None and says_again(line.text)), None)


def _after_slurm(rest: Sequence[Line], number: int) -> int:
    """Return the number after Slurm's lines that directly follow one: they tell of the same attempt's processes."""
    for line in rest:
        if line.text.strip() and not is_by_slurm(line.text):
            break
        number = line.number
    return number + 1


def _goes_on(lines: Sequence[Line], end: JobEnd) -> bool:
    """Whether lines after Slurm's are of another attempt: by what they say, or by their times."""
    own = [line for line in lines[:LATER_LINES] if line.text.strip() and not is_by_slurm(line.text)]
    if any(says_again(line.text) for line in own) and any(works(line.text) for line in own):
        return True
    began = _time(end.at or "")
    found = (_TIME.search(line.text[:60]) for line in own)
    times = (_time(each[0]) for each in found if each is not None)
    return began is not None and any(time is not None and time - began > KILL_WAIT for time in times)


def _is_at(line: Line, end: JobEnd) -> bool:
    """Whether a line has the time of Slurm's line in it: no job starts again within a minute."""
    then = _TIME.search(line.text[:80])
    began, time = _time(end.at or ""), _time(then[0]) if then is not None else None
    return began is not None and time is not None and abs(time - began) <= AT_ONCE


def _time(text: str) -> datetime | None:
    found = _TIME.match(text.lstrip("[("))
    try:
        return datetime.fromisoformat(f"{found[1]} {found[2]}") if found is not None else None
    except ValueError:
        return None


def _restarted(lines: Sequence[Line], ends: Ends) -> Iterable[int]:
    """The line after the failure of a worker that torchrun's only agent survived: it started the workers again.

    It says so only at a level of logging that is off by default; but it ends with a traceback of its own otherwise.
    """
    own = [end for end in ends.processes if end.by == "torchrun"]
    others = any(end.by == "srun" or (end.by == "table" and not end.stopped) for end in ends.processes)
    if others or ends.job or len({end.agent for end in own}) != 1:
        return
    rest = [line for line in lines if line.number > own[-1].number and line.text.strip()]
    if any(_LAUNCHER_ENDS.search(line.text) for line in rest):
        return
    if not any(
        _OF_WORKER.match(line.text)
        or works(line.text)
        or line.rank is not None
        or (names_rank(line.text) is not None and says_completed(line.text))
        for line in rest
    ):
        return  # a batch script's own lines
    began = next((line.number for line in rest if not line.text.startswith((" ", "srun", "slurm"))), None)
    if began is not None:
        yield began


def _next_step(lines: Sequence[Line], ends: Ends) -> Iterable[int]:
    """The line after the last end of a process, if then a program worked and says that it has done its work."""
    known = [end.number for end in ends.processes if end.by != "script" and not end.stopped]
    known = sorted([*known, *(end.number for end in ends.job if not end.whole)])
    if known and ends_well(lines, sole=False) and any(works(line.text) for line in lines if line.number > known[-1]):
        yield known[-1] + 1


def _tried_again(lines: Sequence[Line], ends: Ends) -> Iterable[int]:
    """The line by which a batch script says that it tries again, after the last end by torchrun's table or srun.

    If a program works after it, or completes: a script says also that it tries no more.
    """
    over = [end.number for end in ends.processes if (end.by == "table" and end.root) or end.by == "srun"]
    rest = [line for line in lines if over and line.number > over[-1] and not _REST_OF_TABLE.match(line.text)]
    done = [i for i, line in enumerate(rest) if works(line.text) or says_completed(line.text)]
    own = [i for i, line in enumerate(rest[: done[-1]] if done else ()) if line.rank is None]
    yield from [rest[i].number for i in own if _RETRY.search(rest[i].text) is not None][-1:]


def _known_begin(rest: Sequence[Line], masked: Sequence[str], most: int) -> bool:
    """Whether lines begin as few places before them: as the attempts of a job, not as its steps."""
    first = [_mask(line.text) for line in rest if line.text.strip() and not is_aftermath(line.text)][:3]
    if len(set(first)) < len(first) or len(first) < 2:
        return False
    places = [i for i, text in enumerate(masked) if text == first[0] and list(masked[i : i + len(first)]) == first]
    return 1 < len(places) <= most + 2


def _another_program(lines: Sequence[Line], border: int) -> bool:
    """Whether the tracebacks after a line are of other scripts than those before: the batch script's next step."""
    before = _scripts(line for line in lines if line.number < border)
    after = _scripts(line for line in lines if line.number >= border)
    return bool(before and after) and not before & after


def _scripts(lines: Iterable[Line]) -> set[str]:
    """Return the scripts that failed, by the outermost frames of tracebacks, without launchers."""
    found = (_SCRIPT.match(line.text) for line in lines)
    return {match[1] for match in found if match is not None and not of_launcher(match[1])}


def _announced(lines: Sequence[Line]) -> list[int]:
    """Return the lines by which a batch script or a launcher states that it starts its program again."""
    banners = [line.number for line in lines if _BANNER.match(line.text) and line.rank is None]
    banners += [line.number + 1 for line in lines if _ATTEMPTS_LEFT.search(line.text)]
    return [*banners, *(line.number for line in lines if _SUBMITIT.match(line.text))]


def _begins(lines: Sequence[Line], evidence: Sequence[int]) -> list[int]:
    """Return the lines at which the log's first lines appear again, in each attempt equally often.

    Args:
        lines: of the log.
        evidence: the numbers of the lines on ends.
    """
    full = [line for line in lines if line.text.strip() and OF_TABLE.match(line.text) is None]
    masked = [(line.number, _mask(line.text)) for line in full]
    head = [text for _, text in masked[:HEAD]]
    if len(set(head)) < 3 or HEADER in full[0].text:
        return []  # a log that was cut, or one of tracebacks only
    places = [masked[i][0] for i in range(len(masked) - 2) if [text for _, text in masked[i : i + 3]] == head[:3]]
    # What ranks print when one has ended appears again, too, but not as regularly as what each prints at its start.
    counts = Counter(bisect_left(evidence, place) for place in places)
    firsts = {bisect_left(evidence, place): place for place in reversed(places)}
    return sorted(firsts.values())[1:] if len(set(counts.values())) == 1 else []


def _mask(text: str) -> str:
    return _DIGITS.sub("#", text[:200])
