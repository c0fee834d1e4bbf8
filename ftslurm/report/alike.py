"""The ranks that failed as the first one did: all of them, all of one node, or most (pure).

Where all ranks fail in the same way, the one that was noticed first is arbitrary. ftslurm stops the others as soon as
it notices one, so that some ranks may not have come to the failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.reason import EXIT, is_code
from ftslurm.pattern import pattern
from ftslurm.report.collective_timeouts import BY_WATCHDOG
from ftslurm.report.facts import UNNAMED, RoundFiles, Worker
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.first_failure import signature
from ftslurm.report.named_ranks import named_ranks
from ftslurm.text import clip, names, ranges, short_host

ALL, NODES, EVERY_NODE, MOST, KNOWN = "all", "nodes", "every-node", "most", "known"
RANKS_SHOWN, SUBSET_SHOWN, NODES_NAMED = 24, 12, 2
UNNAMED_NODES = ("?", UNNAMED)
_NUMBER = pattern(r"\d+")
_END = pattern(r"^exit code -?\d+: ")
REASON = 40
"""Characters of a reason by which an output has it."""
_PASSED_S = 1.0
"""A rank that ran longer than a failed one by this had passed the place of the failure."""


@dataclass(frozen=True)
class Alike:
    """The ranks with the same failure.

    Attributes:
        scope: ALL ranks; all of some NODES; some of EVERY_NODE, while the others were stopped; MOST ranks; all that are
            KNOWN to have failed, of an unknown number.
        ranks: these.
        world: the number of all ranks.
        nodes: where they ran, in order.
        only: of NODES: whether the ranks of the other nodes are known not to fail so.
        differ: whether their messages differ in numbers.
        ordered: whether it is known which of them failed first: a log may have one reason for several ends.
    """

    scope: str
    ranks: tuple[int, ...]
    world: int
    nodes: tuple[str, ...]
    only: bool = True
    differ: bool = False
    ordered: bool = True

    @property
    def subject(self) -> str:
        """``all 4 ranks``, ``all ranks of n2, and only these``, ``ranks 0, 2 of 4, on both nodes``."""
        if self.scope == KNOWN:
            where = (
                f" on {short_host(self.nodes[0])}"
                if len(self.nodes) == 1 and self.nodes[0] not in UNNAMED_NODES
                else ""
            )
            if not self.ordered and 1 < len(self.nodes) <= NODES_NAMED and not set(UNNAMED_NODES) & {*self.nodes}:
                where = f" on {names(self.nodes)}"  # no other line names one
            noun = "rank" if len(self.ranks) == 1 else "ranks"
            return f"{noun} {clip(ranges(self.ranks), RANKS_SHOWN)}{where}"
        those = ranges(self.ranks)
        short = len(those) <= SUBSET_SHOWN
        some = f"ranks {those} of {self.world}" if short else f"{len(self.ranks)} of {self.world} ranks"
        if self.scope == ALL:
            return "both ranks" if self.world == 2 else f"all {self.world} ranks"
        if self.scope == NODES:
            return f"all ranks of {names(self.nodes)}{', and only these' if self.only else ''}"
        every = "both" if len(self.nodes) == 2 else f"all {len(self.nodes)}"
        return f"{some}, on {every} nodes" if self.scope == EVERY_NODE else some

    def as_dict(self) -> dict[str, object]:
        """Return the report's ``alike``."""
        return {
            "scope": self.scope,
            "ranks": ranges(self.ranks),
            "count": len(self.ranks),
            "nodes": list(self.nodes[:8]),
            "subject": self.subject,
            "text": self.text,
            "ordered": self.ordered,
        }

    @property
    def text(self) -> str:
        """What the subject does not say; empty: nothing."""
        left = self.world - len(self.ranks)
        parts = ["their messages differ in numbers"] if self.differ else []
        if self.scope == EVERY_NODE:
            other, it = ("the other one", "it") if left == 1 else (f"the other {left}", "them")
            parts.append(f"{other} had not failed so when ftslurm stopped {it}")
        if self.scope == NODES and not self.only:
            parts.append("whether the other nodes' ranks would have failed so is not known")
        return "; ".join(parts)


def alike(
    files: RoundFiles, first: FailedWorker, others: Sequence[FailedWorker], followers: Sequence[int], world: int | None
) -> Alike | None:
    """Return the ranks that failed as the first one; None: it failed alone, or as a few of many.

    Args:
        files: the round.
        first: the first failure.
        others: further failures of the round.
        followers: ranks of which only the summaries of equal failures were read.
        world: the number of ranks, if known.
    """
    same = [first, *(each for each in others if is_same(first, each))]
    ranks = {each.rank for each in same} | set(followers) | _ended_alike(files, first)
    named = named_ranks(first)
    if named and ranks.isdisjoint(named) and min(ranks) >= 0:
        # Their own output is not in a log.
        return Alike(KNOWN, tuple(sorted(named)), len(named), ()) if world is None else None
    if named:
        # The others only raise what happened there.
        same, ranks = [each for each in same if each.rank in named], ranks & named
    if len(ranks) < 2 or min(ranks) < 0 or (world is not None and len(ranks) > world):
        return None
    if world is None:
        # A log of another launcher: of ranks that it does not mention, nothing is known.
        watched = first.cause.name in BY_WATCHDOG
        parted = (
            first.cause.cascade
            and not watched
            and (not first.frames or any(_place(each) != _place(first) for each in same))
        )
        alone = parted or any(0 <= each.rank not in ranks and not _may_be_same(first, each) for each in others)
        nodes = tuple(dict.fromkeys(each.node for each in same))
        if alone or not all(worker.failed for worker in _workers(files)):
            return None
        ordered = first.order == 0 or sum(each.order == first.order for each in same) == 1
        return replace(_known(same, ranks, nodes), ordered=ordered)
    on = {worker.rank: node.node for node in files.nodes for worker in node.workers}
    on |= {each.rank: each.node for each in same}
    nodes = tuple(dict.fromkeys(on[rank] for rank in sorted(ranks) if rank in on))
    differ = not first.cause.cascade and _differ(same)
    if len(ranks) == world:
        return Alike(ALL, tuple(sorted(ranks)), world, nodes, differ=differ)
    if named:
        return _known(same, ranks, nodes)
    workers = [worker for node in files.nodes for worker in node.workers]
    rest = [worker for worker in workers if worker.rank not in ranks]
    stopped = bool(rest) and all(worker.stopped_by_ftslurm for worker in rest)
    every = {node.node for node in files.nodes}
    whole = all({w.rank for w in node.workers} <= ranks for node in files.nodes if node.node in nodes)
    if whole and len(ranks) >= 2 * len(nodes) and set(nodes) < every:
        only = len(ranks) + len(rest) == world and _is_only(first, rest)
        return Alike(NODES, tuple(sorted(ranks)), world, nodes, only, differ)
    if stopped and len(nodes) > 1 and set(nodes) == every and not first.cause.cascade:
        return Alike(EVERY_NODE, tuple(sorted(ranks)), world, nodes, differ=differ)
    if len(ranks) * 2 > world:
        return Alike(MOST, tuple(sorted(ranks)), world, nodes, differ=differ)
    # A few, if all others were stopped, or failed because of them.
    following = {each.rank for each in others if each.cause.cascade}
    few = not first.cause.cascade and all(each.stopped_by_ftslurm or each.rank in following for each in rest)
    return _known(same, ranks, nodes) if few else None


def _ended_alike(files: RoundFiles, first: FailedWorker) -> set[int]:
    """Return the ranks that ended by themselves as the first one did, just when ftslurm stopped them.

    The exit code alone is no proof, as a handler of SIGTERM may have given it: they also ended with the same lines.
    Where their output has the reason, too, SIGTERM may have come before the process had ended.
    """
    last_lines = _last_lines(files, first.rank)
    exits = first.exception is not None and first.exception.type == EXIT
    bare = first.kind == "exit" and (first.exception is None or "stderr" in first.evidence)
    if not (exits or bare) or not any(last_lines):
        return set()
    # Python prints the message of `sys.exit`.
    stated = exits and bool(last_lines[0]) and last_lines[0] in _NUMBER.sub("#", first.what)
    by_output = first.cause.name == "wrong-usage" or "stderr" in first.evidence or stated
    stopped = (worker for worker in _workers(files) if worker.stopped_by_ftslurm and worker.error is None)
    ended = {
        worker.rank
        for worker in stopped
        if (worker.signal is None and worker.exit_code == first.exit_code)
        or (by_output and worker.signal == "SIGTERM" and _has_reason(files, worker.rank, first))
    }
    return {rank for rank in ended if _last_lines(files, rank) == last_lines}


def _has_reason(files: RoundFiles, rank: int, first: FailedWorker) -> bool:
    """Whether the output of a rank has the beginning of the reason that the first one's output has."""
    reason = _NUMBER.sub("#", _END.sub("", first.what).split(" (from ", 1)[0])[:REASON]
    texts = (_NUMBER.sub("#", tail.text) for tail in files.tails.get(rank, ()))
    return first.cause.name == "wrong-usage" or any(reason in text for text in texts)


def _last_lines(files: RoundFiles, rank: int) -> list[str]:
    """Return the last line of each output, but for its numbers; empty: it is empty, or was not read."""
    texts = {tail.stream: tail.text for tail in files.tails.get(rank, ())}
    lines = [texts.get(stream, "").rstrip().rpartition("\n")[2] for stream in ("stderr", "stdout")]
    return [_NUMBER.sub("#", line) for line in lines]


def _may_be_same(first: FailedWorker, other: FailedWorker) -> bool:
    """Whether a failure in a log may be a consequence, or that of a rank of which no output is in it."""
    bare = other.kind == "exit" and other.exception is None and other.exit_code == first.exit_code == 1
    return other.cause.cascade or (bare and other.what.startswith("exit code"))


def _differ(same: Sequence[FailedWorker]) -> bool:
    """Return whether messages of equal failures differ in numbers."""
    # How a process was ended after its exception is not its message.
    lines = {each.what.split("\n", 1)[0].partition("; then ")[0] for each in same}
    return len(lines) > len({_NUMBER.sub("#", line) for line in lines})


def _workers(files: RoundFiles) -> list[Worker]:
    return [worker for node in files.nodes for worker in node.workers if worker.rank >= 0]


def _known(same: Sequence[FailedWorker], ranks: set[int], nodes: tuple[str, ...]) -> Alike:
    return Alike(KNOWN, tuple(sorted(ranks)), len(ranks), nodes, differ=_differ(same))


def is_same(first: FailedWorker, other: FailedWorker) -> bool:
    """Return whether two failures are equal but for numbers in their messages."""
    if (first.alone is None) != (other.alone is None):
        # The output of a child process is known of one of them only.
        first, other = first.alone or first, other.alone or other
    if signature(first) != signature(other) or _end(first) != _end(other):
        return False
    if first.cause.cascade != other.cause.cascade:
        return False  # what a framework raises may hide a reason or a consequence
    return first.cause.cascade or _place(first) == _place(other)


def _end(worker: FailedWorker) -> tuple[object, ...]:
    """Return how it ended: after an exception, its process may have been stopped while it ended."""
    if worker.exception is not None:
        exits = worker.exception.type == EXIT and is_code(worker.exception.message)
        # Codes differ for a reason, unlike the numbers in messages.
        return (worker.exception.type, worker.exception.message if exits else "")
    return worker.kind, worker.exit_code, worker.signal


def _place(worker: FailedWorker) -> tuple[str, int] | None:
    return (worker.frames[-1].file, worker.frames[-1].line) if worker.frames else None


def _is_only(first: FailedWorker, rest: Sequence[Worker]) -> bool:
    """Whether the other ranks are known to have passed the place of the failure: ftslurm stops them soon after it."""
    return all(_has_passed(first, worker) for worker in rest)


def _has_passed(first: FailedWorker, worker: Worker) -> bool:
    if worker.ended_ns is None:
        return False
    if not worker.stopped_by_ftslurm:
        return True
    if first.step is not None and worker.progress is not None and worker.progress.last_step > first.step:
        return True
    return first.life_s is not None and _life_s(worker) > first.life_s + _PASSED_S


def _life_s(worker: Worker) -> float:
    if worker.started_ns is None or worker.ended_ns is None:
        return 0.0
    return (worker.ended_ns - worker.started_ns) / 1e9
