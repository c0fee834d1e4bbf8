"""Where ranks were by the stacks in a log: those of their own faulthandler, or of py-spy (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ftslurm.failures.own_code import is_library
from ftslurm.pattern import pattern
from ftslurm.report.logs.attempt_log import AttemptLog
from ftslurm.report.logs.lines import Line
from ftslurm.report.logs.noise import is_aftermath
from ftslurm.report.wording import STACKS
from ftslurm.text import plural, ranges

MOST = 4
"""Places that are shown."""
_THREAD = pattern(r"(?:Current thread|Thread) 0x\w+.{0,80}\(most recent call first\):")
_MAIN = pattern(r' +File "[^"]{1,400}", line \d{1,9} in <module>')
_FRAME = pattern(r' +File "([^"]{1,400})", line (\d{1,9}) in (\S{1,200})')
# Of py-spy: the innermost frame comes first.
_PY_SPYS_MAIN = pattern(r'\s*Thread \S{1,20} \([^)]{1,40}\): "MainThread"')
_PY_SPYS_FRAME = pattern(r"\s+(?P<function>\S{1,200}) \((?P<place>[^()]{1,300}:\d{1,9})\)$")
_A_RANK = pattern(r"(?i)\brank[ _:=]{0,2}(\d{1,6})\b")
ABOVE = 8
"""Lines between what names the rank whose stack py-spy prints, and the stack."""


def places(log: AttemptLog) -> str:
    """Describe where each rank was by faulthandler, if the stacks show more than one place; empty: they do not."""
    by_place: dict[str, list[int]] = {}
    for own in log.streams.values():
        rank = log.rank_of(own[0])
        where = _where(own) if rank is not None else ""
        if rank is not None and where:
            by_place.setdefault(where, []).append(rank)
    if not by_place:
        return _of_processes([line for own in log.streams.values() if log.rank_of(own[0]) is None for line in own])
    if not 2 <= len(by_place) <= MOST:
        return ""
    # Most ranks wait in the same call: the others are named first.
    ordered = sorted(by_place.items(), key=lambda each: (len(each[1]), "torch.distributed" in each[0]))
    parts = (f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)} {where}" for where, ranks in ordered)
    return STACKS + ", ".join(parts)


def place_of(log: AttemptLog, rank: int) -> str:
    """Return where a rank's main thread was, by py-spy's stack or its own faulthandler's; empty: there is none."""
    own = log.lines_of(rank)
    return _by_py_spy(log, rank) or ("" if _goes_on_after(own) else _where(own))


def _goes_on_after(own: Sequence[Line]) -> bool:
    """Whether a rank prints something else below the last stacks of its faulthandler."""
    begins = [i for i, line in enumerate(own) if _THREAD.search(line.text)]
    rest = own[begins[-1] + 1 :] if begins else ()
    return any(line.text.strip() and not line.text.startswith("  ") and not is_aftermath(line.text) for line in rest)


def _by_py_spy(log: AttemptLog, rank: int) -> str:
    """Return the innermost frame of a rank's main thread, of which py-spy printed the stack; empty: there is none."""
    found = ""
    for i, line in enumerate(log.lines):
        if _PY_SPYS_MAIN.match(line.text) is None or i + 1 == len(log.lines):
            continue
        above = log.lines[max(i - ABOVE, 0) : i]
        named = [int(number) for each in above for number in _A_RANK.findall(each.text)]
        if line.rank == rank or (line.rank is None and named[-1:] == [rank]):
            frame = _PY_SPYS_FRAME.match(log.lines[i + 1].text)
            found = found if frame is None else f"in {frame['function']} at {frame['place'].rpartition('/')[2]}"
    return found


def _of_processes(lines: Sequence[Line]) -> str:
    """Describe where processes without labels were, by the stacks of their main threads; empty: at one place."""
    begins = [i for i, line in enumerate(lines) if _THREAD.search(line.text)]
    stacks = (lines[begin:end] for begin, end in pairwise([*begins, len(lines)]))
    found = Counter(_where(own) for own in stacks if any(_MAIN.match(line.text) for line in own))
    del found[""]
    if not 2 <= len(found) <= MOST:
        return ""
    ordered = sorted(found.items(), key=lambda each: (each[1], "torch.distributed" in each[0]))
    return STACKS + ", ".join(f"{plural(count, 'process')} {where}" for where, count in ordered)


def _where(own: Sequence[Line]) -> str:
    """Return where a rank's main thread was by the last stacks in its lines, which end with that; empty: unknown."""
    begins = [i for i, line in enumerate(own) if _THREAD.search(line.text)]
    if not begins:
        return ""
    frames = []
    for line in own[begins[-1] + 1 :]:
        found = _FRAME.match(line.text)
        if found is None:
            break
        frames.append((found[1], found[2], found[3]))
    at = next((i for i, frame in enumerate(frames) if not is_library(frame[0])), None)
    if at is None:
        return ""
    mine, (file, _, name) = frames[at], frames[max(0, at - 1)]
    called = f"{file.rpartition('/')[2].removesuffix('.py')}.{name}" if at else name
    collective = next((each for file, _, each in frames if file.endswith("/distributed_c10d.py")), "")
    call = f"in torch.distributed's {collective}" if collective else f"in {called}"
    return f"{call} at {mine[0].rpartition('/')[2]}:{mine[1]}"
