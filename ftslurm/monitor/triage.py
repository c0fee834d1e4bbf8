"""Which rank hung: the stacks of all ranks, grouped by place, and the odd one (pure).

A hang looks the same on every rank that waits; what tells is the rank that waits elsewhere, or not at all. What this
can see is Python's side of it: ranks that all wait in the same collective may do so because of one rank's device or
network, and then the verdict is `NONE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor.faulthandler_text import Frame, Reader
from ftslurm.monitor.stack_classifier import MAY_WAIT, WAITS, Activity, classify, telling_thread
from ftslurm.monitor.stacksfile import RankStacks

ODD, ELSEWHERE, MISMATCH, NO_ANSWER, NONE = "odd", "elsewhere", "mismatch", "no-answer", "none"
OVERDUE = "overdue"
SUSPECTS_NAMED = 3
_SILENT = "no-stacks"


@dataclass(frozen=True)
class Group:
    """Ranks that are at the same place.

    Attributes:
        ranks: sorted.
        nodes: theirs, in the order of the ranks, each once.
        activity: their activity; None without stacks.
        frames: the stack of the first of them, outermost first; those of the others may differ inside of libraries.
        problem: why there are no stacks, or what else keeps these ranks; None if nothing does.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    activity: Activity | None
    frames: tuple[Frame, ...]
    problem: str | None


@dataclass(frozen=True)
class Branch:
    """A part of the tree of stacks: frames that all its ranks share, outermost first, and where they part."""

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    children: tuple[Branch, ...]


@dataclass(frozen=True)
class Triage:
    """The verdict.

    Attributes:
        verdict: `NO_ANSWER` (the suspects cannot run: stopped, in D state, gone), `ODD` (others wait in a collective,
            they do not), `MISMATCH` (they wait in another collective than most), `ELSEWHERE` (they are elsewhere than
            most), `OVERDUE` (places do not tell, but the time-out was theirs), or `NONE` (nobody stands out).
        suspects: the groups meant by it, the smallest first.
        groups: all groups, the largest first.
        expired: ranks whose own time-out it was.
        words: all that in one line.
    """

    verdict: str
    suspects: tuple[Group, ...]
    groups: tuple[Group, ...]
    expired: tuple[int, ...]
    words: str


def triage(found: Iterable[RankStacks]) -> Triage:
    """Judge the stacks of the ranks of one round, as far as they were collected."""
    everything = sorted(found, key=lambda each: each.rank)
    groups = _groups(everything)
    expired = tuple(each.rank for each in everything if each.why)
    verdict, suspects = _suspects(groups)
    if verdict == ELSEWHERE:
        late = {each.rank: each.node for each in everything if each.why}
        parted, overdue = _part_the_late(groups, [*suspects, *(g for g in groups if g.activity is None)], late)
        if overdue:
            verdict, groups, suspects = OVERDUE, parted, overdue
    return Triage(verdict, suspects, groups, expired, _words(verdict, suspects, groups, expired))


def tree(groups: Iterable[Group]) -> tuple[Branch, ...]:
    """Return the stacks of groups as a tree, outermost frames first, the larger part first."""
    return _branches([(group.ranks, group.frames) for group in groups if group.frames], 0)


def ranges(ranks: Iterable[int]) -> str:
    """``0-411, 413-1023``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def describe(group: Group) -> str:
    """Say where a group is: ``in DataLoader at data.py:40``, ``stopped (SIGSTOP)``."""
    at = ""
    if group.activity is not None and group.activity.place is not None:
        activity, place = group.activity.activity, group.activity.place
        name = place.file.rpartition("/")[2]
        inside = "" if activity in ("", "<module>") else f"in {activity} "
        at = f"{inside}at {name}:{place.line}"
    elif group.activity is not None:
        at = "in no Python code"
    return ", ".join(part for part in (group.problem or "", at) if part)


def who(group: Group) -> str:
    """``rank 412 (node n17)``, ``2 ranks (3, 7)``, ``1,023 ranks``."""
    if len(group.ranks) == 1:
        return f"rank {group.ranks[0]} (node {group.nodes[0]})"
    text = ranges(group.ranks)
    return f"{len(group.ranks):,} ranks" + (f" ({text})" if len(text) <= 24 else "")


def count(group: Group) -> str:
    """``1,023 ranks``; a single one is named."""
    return f"{len(group.ranks):,} ranks" if len(group.ranks) > 1 else who(group)


def _groups(everything: Sequence[RankStacks]) -> tuple[Group, ...]:
    reader = Reader()
    judged: dict[tuple[Frame, ...], Activity] = {}
    members: dict[tuple[object, ...], list[RankStacks]] = {}
    frames_of: dict[tuple[object, ...], tuple[Frame, ...]] = {}
    for each in everything:
        frames: tuple[Frame, ...] = ()
        does = None
        threads = reader.threads(each.stacks.text) if each.stacks.text else ()
        if threads:
            thread = telling_thread(threads)
            frames = thread.frames if thread is not None else ()
            does = judged.get(frames)
            if does is None:
                does = judged[frames] = classify(frames)
        problem = each.stacks.problem
        if does is not None and problem is not None and not _held(problem):
            problem = None  # Stacks that are not complete are stacks all the same.
        key = (does, problem)
        members.setdefault(key, []).append(each)
        frames_of.setdefault(key, frames)
    groups = [
        Group(
            tuple(each.rank for each in group),
            tuple(dict.fromkeys(each.node for each in group)),
            key[0] if isinstance(key[0], Activity) else None,
            frames_of[key],
            key[1] if isinstance(key[1], str) else None,
        )
        for key, group in members.items()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks)))


def _held(problem: str) -> bool:
    """Whether what is wrong with a rank itself keeps all others waiting, and not only its stacks from us."""
    return problem.startswith(("stopped", "in uninterruptible sleep", "had ended", "ended while"))


def _suspects(groups: Sequence[Group]) -> tuple[str, tuple[Group, ...]]:
    small_first = sorted(groups, key=lambda group: (len(group.ranks), group.ranks))
    total = sum(len(group.ranks) for group in groups)
    held = [group for group in small_first if group.problem is not None and _held(group.problem)]
    if held and sum(len(group.ranks) for group in held) < total:
        return NO_ANSWER, tuple(held)
    free = [group for group in small_first if group not in held]
    waiting = [group for group in free if group.activity is not None and group.activity.kind == WAITS]
    maybe = [group for group in free if group.activity is not None and group.activity.kind == MAY_WAIT]
    working = [group for group in free if group.activity is not None and group not in waiting and group not in maybe]
    silent = [group for group in free if group.activity is None and (group.problem or "").startswith("no answer")]
    odd = working or silent or (maybe if waiting else [])
    # More ranks at work than waiting: it is not one odd rank that the others wait for.
    if odd and (waiting or maybe) and 2 * sum(len(group.ranks) for group in odd) <= total:
        return ODD, tuple(odd)
    same_kind = waiting if not (working or maybe) else [group for group in free if group.activity is not None]
    if len(same_kind) > 1 and 2 * len(same_kind[-1].ranks) > sum(len(group.ranks) for group in same_kind):
        return (MISMATCH if same_kind is waiting else ELSEWHERE), tuple(same_kind[:-1])
    return (MISMATCH, ()) if len(waiting) > 1 and not (working or maybe) else (NONE, ())


def _part_the_late(
    groups: Sequence[Group], suspects: Sequence[Group], late: Mapping[int, str]
) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Return all groups and, of those, the ranks whose own time-out expired and whose place does not excuse them.

    A rank that is where most are, or waits in a collective, is late because of another one.

    Args:
        late: the node of each rank whose time-out expired.
    """
    parted: list[Group] = []
    found: list[Group] = []
    for group in groups:
        excused = group not in suspects or (group.activity is not None and group.activity.kind == WAITS)
        own = () if excused else tuple(rank for rank in group.ranks if rank in late)
        rest = tuple(rank for rank in group.ranks if rank not in own)
        if own:
            found.append(replace(group, ranks=own, nodes=tuple(dict.fromkeys(late[rank] for rank in own))))
        if rest:
            parted.append(replace(group, ranks=rest))
    found.sort(key=lambda group: (len(group.ranks), group.ranks))
    return tuple(sorted([*parted, *found], key=lambda group: (-len(group.ranks), group.ranks))), tuple(found)


def _words(verdict: str, suspects: Sequence[Group], groups: Sequence[Group], expired: Sequence[int]) -> str:
    if not groups:
        return "no stacks were collected"
    if not suspects:
        return _without_suspect(verdict, groups, expired)
    others = [group for group in groups if group not in suspects]
    named = [f"{count(group)} {describe(group)}" for group in others[:1]]
    named += [f"{who(group)} {describe(group)}" for group in suspects[:SUSPECTS_NAMED]]
    rest = len(suspects) - SUSPECTS_NAMED
    named += [f"{sum(len(group.ranks) for group in suspects[SUSPECTS_NAMED:]):,} more elsewhere"] if rest > 0 else []
    text = "; ".join(named)
    return f"{text}: not the same collective" if verdict == MISMATCH else text


def _without_suspect(verdict: str, groups: Sequence[Group], expired: Sequence[int]) -> str:
    named = "; ".join(f"{who(group)} {describe(group)}" for group in groups[:SUSPECTS_NAMED])
    more = "; ..." if len(groups) > SUSPECTS_NAMED else ""
    own = f" (the time-out was that of rank {ranges(expired)})" if expired else ""
    if verdict == MISMATCH:
        return f"{named}{more}: different collectives, none of them the odd one{own}"
    if all(group.activity is None for group in groups):
        return f"{named}{more}: no rank gave its stacks{own}"
    if len(groups) == 1:
        alone = len(groups[0].ranks) == 1
        return named if alone else f"{named}: all at the same place, none of them the odd one{own}"
    return f"{named}{more}: none of them the odd one{own}"


def _branches(parts: list[tuple[tuple[int, ...], tuple[Frame, ...]]], depth: int) -> tuple[Branch, ...]:
    by_frame: dict[Frame, list[tuple[tuple[int, ...], tuple[Frame, ...]]]] = {}
    for ranks, frames in parts:
        if depth < len(frames):
            by_frame.setdefault(frames[depth], []).append((ranks, frames))
    branches = [_branch(group, depth) for group in by_frame.values()]
    return tuple(sorted(branches, key=lambda branch: (-len(branch.ranks), branch.ranks)))


def _branch(parts: list[tuple[tuple[int, ...], tuple[Frame, ...]]], depth: int) -> Branch:
    first = parts[0][1]
    end = depth + 1
    while end < len(first) and all(end < len(frames) and frames[end] == first[end] for _, frames in parts):
        end += 1
    ranks = tuple(sorted(rank for ranks, _ in parts for rank in ranks))
    return Branch(ranks, first[depth:end], _branches(parts, end))


__all__ = ["ELSEWHERE", "MISMATCH", "NONE", "NO_ANSWER", "ODD", "OVERDUE", "Branch", "Group", "Triage"]
__all__ += ["count", "describe", "ranges", "tree", "triage", "who"]
