"""Which failed health checks are the shared storage's and no single node's (pure).

A directory that is full or gone fails the same check on all nodes. Leaving them all out would end the job for what may
be over in a few seconds; and if it is not, the ranks fail by the true reason.
"""

from __future__ import annotations

from ftslurm.dataclasses import replace
from ftslurm.health.verdict import FAIL
from ftslurm.rendezvous.node_word import NodeWord
from ftslurm.rendezvous.seen import Seen, Timing, alive
from ftslurm.rendezvous.state import State

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


def _failed(word: NodeWord) -> set[tuple[str, str]]:
    found = word.health.findings if word.health is not None else ()
    return {(one.check, one.subject) for one in found if one.status == FAIL}
