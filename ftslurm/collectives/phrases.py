"""The judgement of the ranks' collectives in words (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ftslurm.collectives.finding import (
    ABORTED,
    ABSENT,
    DIFFERENT,
    DTYPE,
    LEFT,
    MATCHED,
    NOT_STARTED,
    OPERATION,
    SIZE,
    TRANSFER,
    UNKNOWN,
    Finding,
    Party,
    is_default,
)
from ftslurm.collectives.judgement import APART, CYCLE, MORE_KEPT, NOTHING, Judgement
from ftslurm.collectives.operation import SEND, Operation
from ftslurm.text import clip, plural, ranges, safe

RANKS_SHOWN, NAME_SHOWN, PARTIES_SHOWN = 18, 24, 3
PAIR, CYCLE_SHOWN = 2, 40
"""Groups of a cycle that are described with their calls in one sentence; characters of the ranks of a longer one."""

_ADVICE = {
    OPERATION: "All ranks of a group must call the same collectives in the same order: see where paths part.",
    SIZE: "These tensors must have equally many elements on all ranks: see where their sizes come from.",
    DTYPE: "These tensors must be of one type on all ranks: see where their types come from.",
    ABORTED: "These calls must be the same, with equally many elements of one type on all ranks: see where the sizes"
    " come from.",
    ABSENT: "The others wait for {it}: the stacks below show where {it} {is_}.",
    LEFT: "Ranks must take part in equally many steps and collectives, with equal sizes: see why some had no more"
    " work, or tensors of another size.",
    NOT_STARTED: "Work of {its} device before it is not done: check the device, and what else the rank has enqueued.",
    TRANSFER: "Each send needs a receive, and each receive a send: see where {it} took another path.",
    CYCLE: "All ranks must use their groups in one order: see which of them took another one.",
    APART: "Ranks must use the groups that they share in one order: see which of them took another one.",
    UNKNOWN: "What the ranks without a record had called is not known.",
}
_MEMBERS = "Who else is in these groups is not recorded: see by the stacks which of their ranks is elsewhere."
_SAME = (
    "All ranks made the same calls, so the transport is more likely at fault than the script, unless one came "
    "when others had given up: check the network and the devices of all nodes"
)
_ROOT = "; or the roots (src, dst) differ, which is not recorded"


def group_name(finding: Finding) -> str:
    """``group default_pg``, ``group 3 (tp)``."""
    if is_default(finding):
        return f"group {finding.description}"
    described = finding.description not in ("", "undefined", finding.name)
    return f"group {clip(safe(finding.name), NAME_SHOWN)}" + (
        f" ({clip(safe(finding.description), NAME_SHOWN)})" if described else ""
    )


def call(operation: Operation, seq: int) -> str:
    """``all_reduce #118 [4096 float32]``."""
    return f"{named(operation, seq)} {operation.data}".rstrip()


def named(operation: Operation, seq: int) -> str:
    """``all_reduce #118``; without the number 0, of a call of which it is not known."""
    return f"{safe(operation.name)} #{seq}" if seq else safe(operation.name)


def calls(operations: Sequence[Operation], seq: int) -> str:
    """Return a call of several operations that are coalesced into one by the first of them and their number."""
    first = call(operations[0], seq)
    return first if len(operations) == 1 else f"{first} and {len(operations) - 1} more in one"


def those(ranks: Collection[int]) -> str:
    """``rank 3``, ``ranks 0-1, 3``, ``1,023 ranks``."""
    text = ranges(ranks)
    if len(ranks) == 1:
        return f"rank {text}"
    return f"ranks {text}" if len(text) <= RANKS_SHOWN else f"{len(ranks):,} ranks"


def statement(found: Judgement, ends: Mapping[int, str] | None = None) -> str:
    """Return what the culprits did, for use after their names: ``calls all_gather #118 where ...``.

    Args:
        found: a judgement that names culprits.
        ends: how ranks had ended, ``exit code 0``.
    """
    root, one = found.root, len(found.culprits) == 1
    assert root is not None
    group = f" ({group_name(root)})"
    if root.kind in DIFFERENT:
        odd = [party for party in root.parties[1:] if party.operations]
        own = ", ".join(calls(party.operations, root.seq) for party in odd[:PARTIES_SHOWN])
        most = root.parties[0]
        return f"{'calls' if one else 'call'} {own} where {_calls(most, root.seq)}{group}"
    operation = root.operation
    assert operation is not None
    waiting = [rank for party in root.parties if party.operations for rank in party.ranks if party.done is not True]
    if root.kind == ABORTED:
        shorter = f"a shorter {safe(operation.name)}"
        return f"{'calls' if one else 'call'} {shorter} where {_calls(root.parties[0], root.seq)}{group}"
    wait = f"{those(waiting)} {'waits' if len(waiting) == 1 else 'wait'}"
    what = call(operation, root.seq)
    if root.kind == NOT_STARTED:
        has = "have" if len(waiting) - len(found.culprits) > 1 else "has"
        rest = [rank for rank in waiting if rank not in root.awaited]
        return f"{'has' if one else 'have'} not started {what}, as {those(rest)} {has}{group}"
    if root.kind == TRANSFER:
        other = "receive" if operation.name == SEND else "send"
        return f"{'has' if one else 'have'} no {other} for {what}, in which {wait}{group}"
    if root.kind == LEFT:
        if not set(found.culprits) <= root.awaited:
            return f"{'waits' if one else 'wait'} alone in {what}{group}: {those(root.awaited)} had ended"
        how = (ends or {}).get(found.culprits[0], "")
        return f"ended{f' with {how}' if how else ''} while {wait} in {what}{group}"
    return f"{'has' if one else 'have'} not joined {what}, in which {wait}{group}"


def sentence(found: Judgement, nodes: Mapping[int, str], ends: Mapping[int, str] | None = None) -> str:
    """Return the judgement as a sentence with its subject; empty: no call was waited in."""
    root = found.root
    if root is None:
        return ""
    if found.culprits:
        first = found.culprits[0]
        where = f" on {safe(nodes[first])}" if len(found.culprits) == 1 and first in nodes else ""
        return f"{those(found.culprits)}{where} {statement(found, ends)}"
    return undecided(found)


def undecided(found: Judgement) -> str:
    """Return what the records show where they name no rank; without a name before it."""
    root = found.root
    assert root is not None
    group = f" ({group_name(root)})"
    if found.kind == CYCLE and len(found.chain) > PAIR:
        ranks = clip(", ".join(ranges(each.waiting) for each in found.chain), CYCLE_SHOWN)
        return f"ranks {ranks} wait for each other in a cycle: groups are used in different orders"
    if found.kind in (APART, CYCLE):
        links = [
            f"{those(each.waiting)} in {_named(each)} ({group_name(each)})" for each in found.chain[:PARTIES_SHOWN]
        ]
        how = f"for each other in {len(found.chain)}" if found.kind == CYCLE else "apart, in several"
        return f"ranks wait {how} groups: {', '.join(links)}"
    if root.kind in DIFFERENT:
        parts = [_calls(party, root.seq) for party in root.parties[:PARTIES_SHOWN]]
        return f"{' where '.join(parts[:2])}{', '.join(['', *parts[2:]])}{group}"
    operation = root.operation
    assert operation is not None
    if root.kind == ABORTED:
        other = those(root.parties[1].ranks)
        return f"{_calls(root.parties[0], root.seq)} where {other} calls a shorter one{group}"
    here = [rank for party in root.parties if party.operations and party.done is not True for rank in party.ranks]
    waits = f"{those(here)} {'waits' if len(here) == 1 else 'wait'} in {call(operation, root.seq)}{group}"
    if root.kind == MATCHED:
        through = [rank for party in root.parties if party.done is True for rank in party.ranks]
        rest = f", which is done on {those(through)}" if through else ""
        every = f"all {root.size} ranks have called {call(operation, root.seq)} alike{group}"
        return f"{every}, and it is not done" if not through else f"{waits}{rest}; all had called it alike"
    if root.awaited:
        joined = "has" if len(root.awaited) == 1 else "have"
        return f"{waits}, which {those(root.awaited)} {joined} not joined"
    if root.unknown:
        return f"{waits}; of {those(root.unknown)} it is not known"
    return f"{waits}; the other ranks of the group are not known"


def _came(root: Finding) -> str:
    aborted = root.aborted
    assert aborted is not None
    return f"gloo aborted rank {aborted.rank}, as {aborted.came} bytes came where it expected {aborted.expected}"


def remarks(found: Judgement) -> list[str]:
    """Return what else the records show, as short sentences."""
    root = found.root
    if root is None:
        return []
    lines = [_came(root)] if root.kind == ABORTED else []
    if root.reordered is not None:
        odd = root.parties[1]
        lines.append(f"{those(odd.ranks)} made that call as #{root.reordered}: the same calls in another order")
    if found.kind == CYCLE and len(found.chain) > PAIR:
        lines += [_link(each) for each in found.chain[:MORE_KEPT]]
    if found.kind not in (APART, CYCLE):
        lines += [_waits(each) for each in found.others[:PARTIES_SHOWN] if each.kind == UNKNOWN]
        lines += [_link(each) for each in found.chain[:PARTIES_SHOWN]]
        lines += [f"{len(found.chain) - PARTIES_SHOWN} more groups wait for these"] * (len(found.chain) > PARTIES_SHOWN)
    if root.kind in DIFFERENT and not root.certain:
        lines.append("that call is not the one that is waited in: it may not be the reason")
    return lines


def advice(found: Judgement) -> str:
    """Return what to do about it."""
    root, one = found.root, len(found.culprits) == 1
    if root is None or found.kind == NOTHING:
        return ""
    if found.kind == MATCHED:
        return f"{_SAME}{_ROOT if root.rooted else ''}."
    if found.kind == UNKNOWN and not root.unknown and not found.missing_ranks:
        return _MEMBERS
    words = {"it": "it" if one else "them", "is_": "is", "its": "its" if one else "their"}
    if found.kind == ABSENT and not one:
        return "The others wait for them: the stacks below show where they are."
    return _ADVICE[found.kind].format(**words)


def _calls(party: Party, seq: int) -> str:
    verb = "calls" if len(party.ranks) == 1 else "call"
    return f"{those(party.ranks)} {verb} {calls(party.operations, seq)}"


def _named(finding: Finding) -> str:
    operation = finding.operation
    return named(operation, finding.seq) if operation is not None else f"#{finding.seq}"


def _link(finding: Finding) -> str:
    return f"{_waits(finding)} for {those(finding.awaited)}"


def _waits(finding: Finding) -> str:
    verb = "waits" if len(finding.waiting) == 1 else "wait"
    return f"{those(finding.waiting)} {verb} in {_named(finding)} ({group_name(finding)})"


def amount(found: Judgement) -> str:
    """``the records of 1,023 ranks``."""
    return f"the records of {plural(found.ranks, 'rank')}"
