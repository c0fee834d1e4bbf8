"""Which rank hung: the stacks of all ranks, grouped by place, and the odd one (pure).

A hang is the same on every rank that waits; the rank that waits elsewhere, or not at all, is the evidence. What this
can observe is Python's side of it: ranks that all wait in the same collective may do so because of one rank's device or
network, and then the verdict is `NONE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.monitor.faulthandler_text import Frame, Reader, Thread
from ftslurm.monitor.stack_classifier import (
    ENDS,
    JOINS_CHILD,
    MAY_WAIT,
    NO_CALLS,
    WAITS,
    WORKS,
    Activity,
    classify,
    ending,
    telling_thread,
    user_frames,
)
from ftslurm.monitor.stacks_file import RankStacks, Stacks
from ftslurm.text import ranges

ODD, ELSEWHERE, MISMATCH, NO_ANSWER, NONE = "odd", "elsewhere", "mismatch", "no-answer", "none"
OVERDUE, COLLECTIVES = "overdue", "collectives"
FINISHED = "had finished"
SUSPECTS_NAMED = 3
MOVED = 2
"""Times as long as the others without a sign of life is a rank whose time-out expired, if they still move."""
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
        stacks: all different stacks of the group, with their ranks.
        homes: each rank and its node.
        parts_at: the frame at which its path through the script parts from that of ranks which end at the same place.
        main_at: where the main thread waits for the thread whose stack this is; None: it is the main thread's.
    """

    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    activity: Activity | None
    frames: tuple[Frame, ...]
    problem: str | None
    stacks: tuple[tuple[tuple[int, ...], tuple[Frame, ...]], ...] = ()
    parts_at: Frame | None = None
    homes: tuple[tuple[int, str], ...] = ()
    main_at: Frame | None = None


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
        verdict: `NO_ANSWER` (the suspects cannot run: stopped, in D state, gone, finished), `ODD` (others wait in a
            collective, they do not), `MISMATCH` (they wait in another collective than most), `ELSEWHERE` (they are
            elsewhere than most), `OVERDUE` (places prove nothing, but the time-out was theirs), `COLLECTIVES` (the
            records of their collectives name them, or show that none is to be named), or `NONE` (no rank stands out).
        suspects: the groups meant by it, the smallest first.
        groups: all groups, the largest first.
        expired: ranks whose own time-out it was.
        summary: all that in one line.
    """

    verdict: str
    suspects: tuple[Group, ...]
    groups: tuple[Group, ...]
    expired: tuple[int, ...]
    summary: str


def triage(found: Iterable[RankStacks], calls: Mapping[tuple[str, int], str] = NO_CALLS) -> Triage:
    """Judge the stacks of the ranks of one round, as far as they were collected.

    Args:
        found: of each rank; of one that had finished, a `finished`.
        calls: see `ftslurm.monitor.stack_classifier.classify`.
    """
    everything = sorted(found, key=lambda each: each.rank)
    groups = _groups(everything, calls)
    expired = tuple(each.rank for each in everything if each.why)
    verdict, suspects = _suspects(groups)
    if verdict == ELSEWHERE:
        late = {each.rank: each.node for each in everything if each.why}
        parted, overdue = _part_the_late(groups, [*suspects, *(g for g in groups if g.activity is None)], late)
        if overdue:
            verdict, groups, suspects = OVERDUE, parted, overdue
    if verdict == NONE and (still := _only_still(everything)):
        named = with_suspects(Triage(NONE, (), groups, expired, ""), still, OVERDUE, "")
        verdict, groups, suspects = OVERDUE, named.groups, named.suspects
    return Triage(verdict, suspects, groups, expired, _summary(verdict, suspects, groups, expired))


def _only_still(found: Sequence[RankStacks]) -> list[int]:
    """Return the ranks whose own time-outs expired while all others still moved; else nothing.

    At the same place, as a program's loop over messages, a rank waits for good and the others do not.
    """
    late = [each for each in found if each.why]
    others = [each for each in found if not each.why]
    longest = min((each.still[0] for each in late if each.still is not None), default=0.0)
    moved = bool(others) and all(each.still is not None and MOVED * each.still[0] < longest for each in others)
    return [each.rank for each in late] if moved else []


def with_suspects(found: Triage, ranks: Sequence[int], verdict: str, summary: str) -> Triage:
    """Return a verdict that names other ranks, in groups of their own; empty: none.

    Args:
        found: the verdict by the stacks.
        ranks: the suspects.
        verdict, summary: see `Triage`.
    """
    named = frozenset(ranks)
    groups: list[Group] = []
    suspects: list[Group] = []
    for group in found.groups:
        nodes = dict(group.homes)
        for those, into in ((named.intersection(group.ranks), suspects), (set(group.ranks) - named, groups)):
            if those:
                own = tuple(sorted(those))
                places = tuple(dict.fromkeys(nodes[rank] for rank in own if rank in nodes)) or group.nodes
                into.append(replace(group, ranks=own, nodes=places, stacks=_stacks_of(group, own)))
    suspects.sort(key=lambda group: (len(group.ranks), group.ranks))
    ordered = sorted([*groups, *suspects], key=lambda group: (-len(group.ranks), group.ranks))
    return Triage(verdict, tuple(suspects), tuple(ordered), found.expired, summary)


def finished(rank: int, local_rank: int, node: str, step: int | None) -> RankStacks:
    """Return what stands for the stacks of a rank that had ended with success when those of others were collected."""
    at = "" if step is None else f" at step {step}"
    return RankStacks(rank, node, 0, Stacks(local_rank, problem=f"{FINISHED} with exit code 0{at}"))


def tree(groups: Iterable[Group]) -> tuple[Branch, ...]:
    """Return the stacks of groups as a tree, outermost frames first, the larger part first."""
    return _branches([stack for group in groups for stack in group.stacks or ((group.ranks, group.frames),)], 0)


def describe(group: Group) -> str:
    """Return where a group is: ``in DataLoader at data.py:40``, ``stopped (SIGSTOP)``."""
    at = ""
    if group.activity is not None and group.activity.kind == ENDS:
        at = _describe_end(group.activity)
    elif group.activity is not None and group.activity.place is not None:
        activity, place = group.activity.activity, group.activity.place
        name = place.file.rpartition("/")[2]
        inside = "" if activity in ("", "<module>") else f"in {activity} "
        at = f"{inside}at {name}:{place.line}"
        parted = group.parts_at
        at += f" (from {parted.file.rpartition('/')[2]}:{parted.line})" if parted is not None else ""
        main = group.main_at
        at += f" in a thread (the main one waits at {main.file.rpartition('/')[2]}:{main.line})" if main else ""
    elif group.activity is not None:
        at = "in no Python code"
    return ", ".join(part for part in (group.problem or "", at) if part)


def _describe_end(activity: Activity) -> str:
    at = f" at {activity.place.file.rpartition('/')[2]}:{activity.place.line}" if activity.place is not None else ""
    if activity.raised:
        return f"ending after {activity.raised}{at}"
    if activity.activity == JOINS_CHILD:
        return "at the end of Python, waiting for a child process"
    return (
        f"at the end of Python, which waits for a thread{at}" if at else "at the end of Python (the script had ended)"
    )


def name_group(group: Group) -> str:
    """``rank 412 (node n17)``, ``2 ranks (3, 7)``, ``1,023 ranks``."""
    if len(group.ranks) == 1:
        return f"rank {group.ranks[0]} (node {group.nodes[0]})"
    text = ranges(group.ranks)
    return f"{len(group.ranks):,} ranks" + (f" ({text})" if len(text) <= 24 else "")


def count(group: Group) -> str:
    """``1,023 ranks``; a single one is named."""
    return f"{len(group.ranks):,} ranks" if len(group.ranks) > 1 else name_group(group)


def _groups(everything: Sequence[RankStacks], calls: Mapping[tuple[str, int], str]) -> tuple[Group, ...]:
    """Return the groups of ranks with the same path through the user's code, to the same place, the largest first."""
    reader = Reader()
    judged: dict[tuple[Frame, ...], tuple[Activity, tuple[Frame, ...]]] = {}
    members: dict[tuple[object, ...], list[RankStacks]] = {}
    stacks: dict[tuple[object, ...], dict[tuple[Frame, ...], list[int]]] = {}
    main_at: dict[tuple[object, ...], Frame | None] = {}
    for each in everything:
        frames: tuple[Frame, ...] = ()
        does: Activity | None = None
        path: tuple[Frame, ...] = ()
        others: list[Thread] = []
        threads = reader.threads(each.stacks.text) if each.stacks.text else ()
        if threads:
            thread = telling_thread(threads, calls)
            frames = thread.frames if thread is not None else ()
            others = [one for one in threads if one.main and one is not thread]
            if frames not in judged:
                judged[frames] = classify(frames, calls), user_frames(frames)
            does, path = judged[frames]
        problem = each.stacks.problem
        over = ending(threads)
        if over is not None and over.place is not None:
            # The thread that it waits for says more than Python's own end.
            frames = next((one.frames for one in threads if classify(one.frames).place == over.place), frames)
        if over is not None or (each.raised is not None and not threads):
            does, frames, path, others = _with_error(over, each), () if over is None or over.raised else frames, (), []
        if does is not None and problem is not None and not _held(problem):
            problem = None  # Stacks that are not complete are stacks all the same.
        key = (does, problem, path)
        members.setdefault(key, []).append(each)
        main_at.setdefault(key, classify(others[0].frames).place if threads and others else None)
        stacks.setdefault(key, {}).setdefault(frames, []).append(each.rank)
    groups = [
        Group(
            tuple(each.rank for each in group),
            tuple(dict.fromkeys(each.node for each in group)),
            key[0] if isinstance(key[0], Activity) else None,
            next(iter(stacks[key])),
            key[1] if isinstance(key[1], str) else None,
            tuple((tuple(ranks), frames) for frames, ranks in stacks[key].items()),
            homes=tuple((each.rank, each.node) for each in group),
            main_at=main_at[key],
        )
        for key, group in members.items()
    ]
    return tuple(sorted(_with_parting_frames(groups), key=lambda group: (-len(group.ranks), group.ranks)))


def _with_parting_frames(groups: list[Group]) -> list[Group]:
    """Add to groups that end at the same place where their paths part, from the outside in."""
    by_place: dict[Activity | None, list[tuple[Frame, ...]]] = {}
    for group in groups:
        by_place.setdefault(group.activity, []).append(user_frames(group.frames))
    found = []
    for group in groups:
        paths = by_place[group.activity]
        if group.activity is not None and len(paths) > 1:
            own = user_frames(group.frames)
            common = next((i for i, frame in enumerate(own) if any(p[i : i + 1] != (frame,) for p in paths)), None)
            found.append(group if common is None else replace(group, parts_at=own[common]))
        else:
            found.append(group)
    return found


def _held(problem: str) -> bool:
    """Whether what is wrong with a rank itself keeps all others waiting, and not only its stacks from us."""
    return problem.startswith(("stopped", "in uninterruptible sleep", "had ended", "ended while", FINISHED))


def is_held(group: Group) -> bool:
    """Whether its ranks could not run when the stacks were collected: stopped, or in their node's kernel."""
    return is_stopped(group) or (group.problem or "").startswith("in uninterruptible sleep")


def is_stopped(group: Group) -> bool:
    """Whether its ranks had been stopped by a signal, or a debugger, when the stacks were collected."""
    return (group.problem or "").startswith("stopped")


def _with_error(over: Activity | None, rank: RankStacks) -> Activity | None:
    """Return the activity of a rank whose script is over, with the exception that ended it."""
    if rank.raised is None:
        return over
    kind, place = rank.raised
    return Activity(ENDS, "", place, raised=kind)


def is_ending(group: Group) -> bool:
    """Whether its ranks' scripts were over, by themselves or by an exception, and their processes were not."""
    return group.activity is not None and group.activity.kind == ENDS


def has_finished(group: Group) -> bool:
    """Whether its ranks had ended with success."""
    return group.problem is not None and group.problem.startswith(FINISHED)


def _suspects(groups: Sequence[Group]) -> tuple[str, tuple[Group, ...]]:
    over = (group for group in groups if has_finished(group) or is_ending(group))
    done = tuple(sorted(over, key=lambda group: (len(group.ranks), group.ranks)))
    groups = [group for group in groups if group not in done]
    verdict, suspects = _suspects_of_those_left(groups)
    # Ranks that wait for others and not for each other: the one that has finished will never arrive.
    kinds = {group.activity.kind for group in groups if group.activity is not None}
    if done and not suspects and kinds and WORKS not in kinds:
        return NO_ANSWER, done
    # Ranks that still work when most are done keep the job, as a thread that is no daemon does.
    left = sum(len(group.ranks) for group in groups)
    if done and not suspects and kinds == {WORKS} and left < sum(len(group.ranks) for group in done):
        return ELSEWHERE, tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))
    return verdict, suspects


def _suspects_of_those_left(groups: Sequence[Group]) -> tuple[str, tuple[Group, ...]]:
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
        # A rank that waits for others is not the one that they are to wait for.
        named = same_kind[:-1] if same_kind is waiting else [group for group in same_kind[:-1] if group not in waiting]
        return (MISMATCH if same_kind is waiting else ELSEWHERE if named else NONE), tuple(named)
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
            nodes = tuple(dict.fromkeys(late[rank] for rank in own))
            found.append(replace(group, ranks=own, nodes=nodes, stacks=_stacks_of(group, own)))
        if rest:
            parted.append(replace(group, ranks=rest, stacks=_stacks_of(group, rest)))
    found.sort(key=lambda group: (len(group.ranks), group.ranks))
    return tuple(sorted([*parted, *found], key=lambda group: (-len(group.ranks), group.ranks))), tuple(found)


def _stacks_of(group: Group, ranks: Sequence[int]) -> tuple[tuple[tuple[int, ...], tuple[Frame, ...]], ...]:
    kept = frozenset(ranks)
    left = ((tuple(rank for rank in those if rank in kept), frames) for those, frames in group.stacks)
    return tuple((those, frames) for those, frames in left if those)


def _summary(verdict: str, suspects: Sequence[Group], groups: Sequence[Group], expired: Sequence[int]) -> str:
    if not groups:
        return "no stacks were collected"
    if not suspects:
        return _without_suspect(verdict, groups, expired)
    others = [group for group in groups if group not in suspects]
    named = [f"{count(group)} {describe(group)}" for group in others[:1]]
    named += [f"{name_group(group)} {describe(group)}" for group in suspects[:SUSPECTS_NAMED]]
    rest = len(suspects) - SUSPECTS_NAMED
    named += [f"{sum(len(group.ranks) for group in suspects[SUSPECTS_NAMED:]):,} more elsewhere"] if rest > 0 else []
    text = "; ".join(named)
    return f"{text}: not the same collective" if verdict == MISMATCH else text


def _without_suspect(verdict: str, groups: Sequence[Group], expired: Sequence[int]) -> str:
    named = "; ".join(f"{name_group(group)} {describe(group)}" for group in groups[:SUSPECTS_NAMED])
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
