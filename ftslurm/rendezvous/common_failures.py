"""What fails on all nodes and is no single node's (pure): the shared storage's checks, and ranks that fail alike.

A directory that is full or gone fails the same check on all nodes. Leaving them all out would end the job for what may
be over in a few seconds; and if it is not, the ranks fail by the true reason.
"""

from __future__ import annotations

from ftslurm.dataclasses import replace
from ftslurm.health.verdict import FAIL
from ftslurm.rendezvous.node_record import NodeWord
from ftslurm.rendezvous.observation import Seen, Timing, alive, word_of
from ftslurm.rendezvous.state import State, with_history

STORAGE = "storage-"
"""What the names of these checks begin with. Other hardware that fails on all nodes is not shared: it is broken
everywhere."""


def excuse_shared_trouble(state: State, seen: Seen, timing: Timing) -> Seen:
    """Return what is seen with nodes fit that are unfit only by storage checks which fail alike on all nodes.

    One node alone cannot tell whose trouble it is.
    """
    staying = [word for word in alive(state, seen, timing) if word.reason is None]
    unfit = [word for word in staying if word.unfit is not None]
    if len(unfit) < 2 or len(unfit) < len(staying):
        return seen
    shared = set.intersection(*(_failed(word) for word in unfit))
    excused = {
        word.node: replace(word, unfit=None)
        for word in unfit
        if _failed(word) <= shared and all(check.startswith(STORAGE) for check, _ in _failed(word))
    }
    return replace(seen, words={**seen.words, **excused}) if excused else seen


def excuse_shared_failure(state: State, seen: Seen) -> State:
    """Return `state` with no node to blame for the newest round's failure where all of its nodes have failed alike.

    They have when the next round is about to form: each has stopped its ranks and published what failed first there.
    """
    last = state.past(state.round)
    first = last.failure if last is not None else None
    if last is None or first is None or first.blame is None or len(state.participants) < 2:
        return state
    words = [word_of(participant, seen) for participant in state.participants]
    failures = [word.failure for word in words if word is not None and word.failure is not None]
    alike = {
        one.node for one in failures if (one.round, one.kind, one.message) == (first.round, first.kind, first.message)
    }
    if alike != {participant.node for participant in state.participants}:
        return state
    return with_history(state, replace(last, failure=replace(first, blame=None)))


def _failed(word: NodeWord) -> set[tuple[str, str]]:
    found = word.health.findings if word.health is not None else ()
    return {(one.check, one.subject) for one in found if one.status == FAIL}
