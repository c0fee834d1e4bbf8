"""Bad checkpoints: those from which two starts failed without a step gained (pure).

A half-written or corrupt checkpoint, or one whose weights are NaN, fails each start in the same way, and a script that
always loads the newest one never gets past it. Scripts name what they load by `ftslurm.loading`; the workers of later
rounds get the bad ones as `FTSLURM_AVOID_CHECKPOINT`.
"""

from __future__ import annotations

from ftslurm.dataclasses import replace
from ftslurm.records.node import Vitals
from ftslurm.records.state import FAILED, Loaded, State
from ftslurm.rendezvous.observation import Observation, record_of
from ftslurm.text import one_line

STARTS = 2
KEPT = 8


def judge_checkpoint(state: State, observation: Observation) -> State:
    """Return `state` with what its newest round shows about the checkpoint that this was started from.

    Called when the next round forms: the records of all nodes that are ready have their last vitals of the round then.
    A lost node or a stop from outside shows nothing.
    """
    last = state.past(state.round)
    if last is None or last.attempt != state.attempt:
        return state
    records = [record_of(participant, observation) for participant in state.participants]
    vitals = [one.vitals for one in records if one is not None and one.vitals and one.vitals.round == state.round]
    path = next((one.loading for one in vitals if one.loading is not None), None)
    if any(one.stepped or _has_trained(one) for one in vitals):
        return replace(state, loaded=None, avoid=tuple(bad for bad in state.avoid if bad != path))
    if path is None or last.outcome != FAILED:
        return state
    before = state.loaded.starts if state.loaded is not None and state.loaded.path == path else 0
    loaded = Loaded(path, before + 1)
    bad = loaded.starts >= STARTS and path not in state.avoid
    return replace(state, loaded=loaded, avoid=(*state.avoid, path)[-KEPT:] if bad else state.avoid)


def _has_trained(vitals: Vitals) -> bool:
    """Whether an optimizer made a step and then a further one, where the script reports none."""
    return any(rank.optimizer_step is not None and rank.intervals for rank in vitals.ranks)


def may_avoid_checkpoint(state: State) -> bool:
    """Return whether the next start may differ from the newest two, because it is the first to avoid a checkpoint."""
    return state.loaded is not None and state.loaded.starts == STARTS - 1


def bad_checkpoint(path: str) -> str:
    """Return the line for a checkpoint that is called bad."""
    return f"checkpoint {one_line(path)} is bad: {STARTS} starts from it failed without a step gained"
