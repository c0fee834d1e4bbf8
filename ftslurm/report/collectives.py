"""What the ranks' records of their collectives add to a round: the rank that the others wait for, and the call (pure).

Imported only for rounds with such records. Where they decide, they take the place of what the stacks suggest, so that a
report names one rank; the stacks then show where that rank was. A rank that is stopped or in its node's kernel cannot
be asked, and is known by its stacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from ftslurm.collectives import phrases
from ftslurm.collectives.calls import RankCalls, as_of
from ftslurm.collectives.finding import ABORTED, ABSENT, LEFT, Aborted, Finding, Party
from ftslurm.collectives.judgement import APART, CYCLE, NOTHING, Judgement, judge
from ftslurm.dataclasses import dataclass, replace
from ftslurm.failures.causes import CASCADE
from ftslurm.monitor.stack_classifier import ENDS, WAITS, WORKS
from ftslurm.monitor.triage import COLLECTIVES, Group, Triage, describe, is_held, with_suspects
from ftslurm.pattern import pattern
from ftslurm.records.error import Frame
from ftslurm.report.facts import RoundFiles, Worker
from ftslurm.report.failed_worker import FailedWorker
from ftslurm.report.layout import Style
from ftslurm.report.wording import Json, ranks_of
from ftslurm.text import clip, ranges, safe

NODES_KEPT, RANKS_KEPT = 8, 2000
CALLS_WIDTH = 30
MISMATCH = "collective-mismatch"
"""Cause of ranks that were ended because calls do not match."""
TIME_OUT = "collective-timeout"
CLOCK_MARGIN_NS = 5 * 10**9
"""A call so long after a time-out came later for certain: clocks of nodes differ by less."""
_NO_MEMBER = pattern(r"Running (\w+) on global rank \d+ which does not belong to the given group")
PARTIES_NAMED = 2
_WAITED = pattern(r"Timed out waiting (\d{1,9})ms")
RECORDING_NS = 3 * 10**9
"""Time from the end of a call until its exception is recorded."""
_RECEIVED = pattern(r"\b(\d{1,15}) vs (\d{1,15})\. Received data size doesn't match expected size")
NO_MEMBER = "Leave the call to the members of the group, or pass the group of which the rank is one."
"""Advice on a rank that called a collective of a group of others."""
_CAME_LATER = (
    "It came when the others had given up: see what kept it until then, as a lock or a file that these held, or slow"
    " work."
)
_IN_TORCH = pattern(r'/torch/distributed/distributed_c10d\.py", line \d+ in (\w+)')
_TRANSFERS = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
_UNRECORDED = (*_TRANSFERS, "monitored_barrier")
"""Functions of ``torch.distributed`` whose operations gloo does not record."""

Dict = dict[str, Any]


def judge_collectives(
    files: RoundFiles, triage: Triage | None, failed_by_others: Collection[int], failed: Sequence[FailedWorker] = ()
) -> Judgement | None:
    """Judge the records of a round; None: there are none.

    Args:
        files: the round.
        triage: of the stacks that were collected with the records.
        failed_by_others: ranks whose failures are cascades, so that they may have been in the call like all others.
        failed: the judged failures.
    """
    if not any(one.problem is None for one in files.collectives.values()):
        return None
    by_stack = triage.groups if triage is not None else ()
    # A script that has ended without an exception had left its newest call, whatever ended the rank while it was asked.
    scripts_ended = [each for each in by_stack if each.activity is not None and not each.activity.raised]
    elsewhere = _failed_in_unrecorded(files) | _ranks_that(scripts_ended, ENDS)
    gave_up = _gave_up(files, failed)
    known = files.collectives.values()
    asked = [one if gave_up is None else as_of(one, gave_up.limit_ns(one.node)) for one in known]
    unchanged = {one.rank for one in asked if one == files.collectives[one.rank]}
    late = _asked_after_failure(files, failed_by_others) & unchanged
    mismatched = {each.rank for each in failed if each.cause.name == MISMATCH}
    return judge(
        (replace(one, broken=one.rank not in elsewhere) if one.rank in elsewhere | late else one for one in asked),
        gone=set(_ended(files)) - set(failed_by_others) - mismatched,
        busy=_ranks_that(by_stack, WORKS),
        blocked=_ranks_that(by_stack, WAITS),
        aborted=[one for one in map(_aborted, failed) if one is not None],
    )


@dataclass(frozen=True)
class _GaveUp:
    """When a rank gave up waiting, by its node's clock."""

    node: str
    time_ns: int

    def limit_ns(self, node: str) -> int:
        """Return the time until which what a rank of a node called was perhaps in time."""
        return self.time_ns + (0 if node == self.node else CLOCK_MARGIN_NS)


def _gave_up(files: RoundFiles, failed: Sequence[FailedWorker]) -> _GaveUp | None:
    """Return when the first rank gave up waiting, if that was the first failure: what was called later came too late.

    Its process may have ended, and the records been taken, only when the late rank had come.
    """
    timed = [each for each in failed if each.time_ns is not None]
    first = min(timed, key=lambda each: each.time_ns or 0, default=None)
    if first is None or first.time_ns is None or first.cause.name != TIME_OUT:
        return None
    waited = _WAITED.search(first.what)
    own = files.collectives.get(first.rank)
    created = [call.created_ns for group in own.groups for call in group.calls.values()] if own is not None else []
    # When its exception was recorded, its script's `finally` may have let the late rank go on.
    over_ns = max(created) + int(waited[1]) * 10**6 if waited is not None and created else first.time_ns
    # Long before, it was another call, of which there is no record.
    its_own = first.time_ns - RECORDING_NS <= over_ns <= first.time_ns
    return _GaveUp(first.node or "", over_ns if its_own else first.time_ns)


def _asked_after_failure(files: RoundFiles, failed_by_others: Collection[int]) -> set[int]:
    """Return the ranks whose call had failed when they were asked for their record, so that gloo counts it as done."""
    workers = [worker for node in files.nodes for worker in node.workers if worker.rank in failed_by_others]
    # In short from the node's file, else from the error record.
    ends = {worker.rank: worker.error or files.errors.get(worker.rank) for worker in workers}
    failed = {rank: end.time_ns for rank, end in ends.items() if end is not None}
    found = ((rank, files.collectives.get(rank), at_ns) for rank, at_ns in failed.items() if at_ns is not None)
    return {rank for rank, one, at_ns in found if one is not None and at_ns <= one.time_ns}


def _aborted(failed: FailedWorker) -> Aborted | None:
    """Return how gloo aborted a rank because of what came from another one; None: it did not."""
    sizes = _RECEIVED.search(failed.what) if failed.cause.name == MISMATCH and failed.signal == "SIGABRT" else None
    if sizes is None:
        return None
    called = _IN_TORCH.search(failed.stacks or "")
    return Aborted(failed.rank, called[1] if called is not None else "", int(sizes[1]), int(sizes[2]))


def _failed_in_unrecorded(files: RoundFiles) -> set[int]:
    """Return the ranks that, by their tracebacks, have failed in no recorded call, so that the newest one is done."""
    of = {rank: error.exception.frames for rank, error in files.errors.items() if error.exception is not None}
    ranks = {rank for rank, frames in of.items() if _called(frames) in _UNRECORDED}
    workers = [worker for node in files.nodes for worker in node.workers if worker.error is not None]
    # Of many equal error records one is read.
    alike = {worker.error.signature for worker in workers if worker.error is not None and worker.rank in ranks}
    return ranks | {worker.rank for worker in workers if worker.error is not None and worker.error.signature in alike}


def _called(frames: Sequence[Frame]) -> str:
    """Return the innermost function of ``torch.distributed`` in a traceback; empty: none."""
    inner = (frame for frame in reversed(frames) if frame.file.endswith("/torch/distributed/distributed_c10d.py"))
    return next((frame.function.rpartition(".")[2] for frame in inner), "")


def decides(found: Judgement | None, triage: Triage | None) -> bool:
    """Whether the records, and not the stacks, say which rank the others wait for."""
    if found is None or not found.decides:
        return False
    held = {rank for group in (triage.groups if triage is not None else ()) if is_held(group) for rank in group.ranks}
    if not held:
        return True
    # A process that is stopped, or in the kernel, gave no record: it may be the one that the others wait for.
    assert found.root is not None
    return bool(found.culprits) and held.isdisjoint({*found.culprits, *found.root.unknown, *found.missing_ranks})


def triage_by(found: Judgement, triage: Triage, text: str) -> Triage:
    """Return the ranks' locations with the culprits of the records as the suspects."""
    return with_suspects(triage, found.culprits, COLLECTIVES, text)


def ends_of(files: RoundFiles) -> dict[int, str]:
    """Return how ranks had ended that were not stopped by ftslurm: ``exit code 0``, ``SIGKILL``."""
    return {worker.rank: _end(worker) for node in files.nodes for worker in node.workers if _has_left(worker)}


def nodes_of(files: RoundFiles) -> dict[int, str]:
    """Return the ranks' nodes."""
    known = {one.rank: one.node for one in files.collectives.values()}
    return known | {worker.rank: node.node for node in files.nodes for worker in node.workers}


def statement(found: Judgement, files: RoundFiles) -> str:
    """Return what the culprits did, for use after their names."""
    if _came_later(found, files):
        root = found.root
        assert root is not None
        assert root.operation is not None
        what, waited = phrases.call(root.operation, root.seq), phrases.those(sorted(root.waiting))
        return f"came to {what} only when the time of {waited} was over ({phrases.group_name(root)})"
    return phrases.statement(found, ends_of(files))


def _came_later(found: Judgement, files: RoundFiles) -> bool:
    """Whether the culprits made the call in the end, but had not when the others gave up."""
    root = found.root
    if root is None or root.kind != ABSENT or not found.culprits:
        return False
    own = (files.collectives.get(rank) for rank in found.culprits)
    return all(one is not None and _has_called(one, root) for one in own)


def _has_called(one: RankCalls, root: Finding) -> bool:
    return any(group.name == root.name and root.seq in group.calls for group in one.groups)


def no_members(files: RoundFiles) -> list[str]:
    """Return which ranks called a collective of a group of which they are no members, as torch warned."""
    found = ((rank, _NO_MEMBER.search(tail.text)) for rank, tails in sorted(files.tails.items()) for tail in tails)
    return [
        f"rank {rank} called {warned[1]} of a group of which it is no member: torch warned, and it went on"
        for rank, warned in found
        if warned is not None
    ][:PARTIES_NAMED]


def advice_of(found: Judgement, files: RoundFiles) -> str:
    """Return what to do about it."""
    return _CAME_LATER if _came_later(found, files) else phrases.advice(found)


def place_of(triage: Triage) -> str | None:
    """Return where the suspects are, by their stacks: ``in DataLoader at data.py:40``; None: unknown."""
    first = next(iter(triage.suspects), None)
    if first is not None and first.activity is not None and first.activity.raised:
        # The line of the script that raised, as of any other call.
        place = first.activity.place
        return f"at {place.file.rpartition('/')[2]}:{place.line}" if place is not None else None
    known = first is not None and (first.problem or (first.activity is not None and first.activity.place is not None))
    return describe(first) if first is not None and known else None


def text_of(found: Judgement, files: RoundFiles) -> str:
    """Return the judgement as a sentence; empty: no call was waited in."""
    if _came_later(found, files):
        nodes = nodes_of(files)
        where = f" on {safe(nodes[found.culprits[0]])}" if len(found.culprits) == 1 else ""
        return f"{phrases.those(found.culprits)}{where} {statement(found, files)}"
    return phrases.sentence(found, nodes_of(files), ends_of(files))


def involved(found: Judgement) -> list[int]:
    """Return the ranks that the judgement is about, where it names none."""
    root = found.root
    assert root is not None
    if found.kind in (APART, CYCLE):
        return sorted({rank for each in found.chain for rank in each.waiting})
    return sorted({*root.waiting, *root.awaited, *(rank for party in root.parties for rank in party.ranks)})


def as_dict(found: Judgement, files: RoundFiles, *, used: bool) -> Dict:
    """Return the report's ``collectives`` of a round; see `docs/report-schema.md` for the keys."""
    root, nodes = found.root, nodes_of(files)
    broken = {rank for rank, one in files.collectives.items() if one.broken}
    missing = sorted(found.missing_ranks)
    in_cycle = found.kind == CYCLE and len(found.chain) > phrases.PAIR
    shown = found.chain if found.kind == APART or in_cycle else () if root is None else (root,)
    # In a cycle, the ranks that have not joined one group are those that wait in the next one.
    parties = [(each, party) for each in shown for party in each.parties if party.operations or not in_cycle]
    return {
        "verdict": found.kind,
        "certain": found.certain,
        "used": used,
        "text": text_of(found, files),
        "advice": advice_of(found, files),
        "remarks": phrases.remarks(found),
        "culprits": _ranks(found.culprits, nodes) if found.culprits else None,
        "group": None if root is None else root.name,
        "group_description": None if root is None else root.description,
        "group_size": None if root is None else root.size,
        "number": None if root is None else root.seq or None,
        "operation": None if root is None or root.operation is None else root.operation.name,
        "waited_s": None if root is None else root.waited_ns / 1e9,
        "parties": [_party(each, party, found, nodes, broken) for each, party in parties],
        "chain": [_link(each, nodes) for each in found.chain],
        "records": found.ranks,
        "missing": {**_ranks(missing, nodes), "reason": (found.missing or {})[missing[0]]} if missing else None,
    }


def _ranks(ranks: Sequence[int], nodes: Mapping[int, str]) -> Dict:
    places = list(dict.fromkeys(nodes[rank] for rank in ranks if rank in nodes))
    return {
        "ranks": clip(ranges(ranks), RANKS_KEPT),
        "count": len(ranks),
        "nodes": places[:NODES_KEPT],
        "node_count": len(places),
    }


def _party(root: Finding, party: Party, found: Judgement, nodes: Mapping[int, str], broken: Set[int]) -> Dict:
    first = party.operations[0] if party.operations else None
    last = (root.last or {}).get(party.ranks[0]) if first is None else None
    state = {True: "done", False: "waits", None: "partly done"}[party.done]
    if party.done is True and not broken.isdisjoint(party.ranks):
        state = "over"  # by an error, perhaps: gloo counts that as done
    if first is None:
        state = (
            "aborted"
            if root.kind == ABORTED
            else "ended"
            if root.kind == LEFT and party.ranks[0] in root.awaited
            else "not called"
        )
    return {
        **_ranks(party.ranks, nodes),
        "suspect": set(party.ranks) <= set(found.culprits),
        "operation": None if first is None else first.name,
        "data": None if first is None else first.data,
        "calls": None if first is None else phrases.calls(party.operations, root.seq),
        "state": state,
        "last": None if last is None else phrases.named(last.operations[0], last.seq),
    }


def _link(finding: Finding, nodes: Mapping[int, str]) -> Dict:
    operation = finding.operation
    return {
        "group": finding.name,
        "group_description": finding.description,
        "number": finding.seq,
        "operation": None if operation is None else operation.name,
        "waiting": _ranks(sorted(finding.waiting), nodes),
        "awaited": _ranks(sorted(finding.awaited), nodes),
    }


def _ranks_that(groups: Sequence[Group], kind: str) -> set[int]:
    return {rank for each in groups if each.activity is not None and each.activity.kind == kind for rank in each.ranks}


def _ended(files: RoundFiles) -> list[int]:
    """Return the ranks that had ended with success, or by themselves without a record."""
    seen = {rank for rank, one in files.collectives.items() if one.problem is None}
    left = [worker for node in files.nodes for worker in node.workers if _has_left(worker)]
    return [worker.rank for worker in left if not worker.failed or worker.rank not in seen]


def _has_left(worker: Worker) -> bool:
    return worker.ended_ns is not None and not worker.stopped_by_ftslurm


def _end(worker: Worker) -> str:
    return worker.signal or f"exit code {worker.exit_code}"


def collectives_text(entry: Json, style: Style) -> list[str]:
    """What the ranks called, one line for each party, and what else the records show."""
    found = entry["collectives"]
    if found is None or found["verdict"] == NOTHING:
        return []
    lines = [style.section(f"the collectives of round {entry['round']}")]
    lines += style.wrapped(safe(found["text"])) if not found["used"] else []
    parties = sorted(found["parties"], key=lambda each: not each["suspect"])
    rows = [(ranks_of(each["ranks"], each["count"], each["nodes"], each["node_count"]), each) for each in parties]
    width = min(max((len(name) for name, _ in rows), default=0), CALLS_WIDTH)
    for name, each in rows:
        mark = "*" if each["suspect"] else " "
        lines.append(clip(f" {mark}{clip(name, width):<{width}}  {safe(did(each))}", style.width))
    lines += [line for text in found["remarks"] for line in style.wrapped(safe(text))]
    first = entry["first_failure"]
    # Beside an exception with a reason of its own, what the others waited for needs no advice.
    asks = first is None or first["hang"] is not None or first["role"] == CASCADE
    lines += style.wrapped(f"hint: {found['advice']}") if found["advice"] and asks and not found["used"] else []
    missing = found["missing"]
    if missing is not None:
        ranks = ranks_of(missing["ranks"], missing["count"], missing["nodes"], missing["node_count"])
        lines.append(style.line(f"no record of {ranks} ({safe(missing['reason'])})"))
    return lines


def did(party: Json) -> str:
    """``waits in all_reduce #118 [4096 float32]``."""
    one = party["count"] == 1
    if party["calls"] is None:
        if party["state"] == "ended":
            return "had ended"
        if party["state"] == "aborted":
            return "aborted by gloo in a shorter one"
        last = f"; last completed {party['last']}" if party["last"] else ""
        return f"{'has' if one else 'have'} not joined{last}"
    if party["state"] == "waits":
        return f"{'waits' if one else 'wait'} in {party['calls']}"
    return f"called {party['calls']}, which is {party['state']}"
