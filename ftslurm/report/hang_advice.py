"""Advice on a hang, by where its ranks were (pure)."""

from __future__ import annotations

from ftslurm.monitor.stack_classifier import BUILD_LOCK, IMPORT, JOINS_CHILD
from ftslurm.monitor.triage import ELSEWHERE, MISMATCH, NO_ANSWER, ODD, OVERDUE, Group, Triage, has_finished, is_ending

_ADVICE = {
    ODD: "The others wait for it: its stack below shows its own location.",
    ELSEWHERE: "It is not where most ranks are; Python's stacks do not show what those wait for.",
    OVERDUE: "Its own time-out expired, and its Python stack shows no wait for another rank.",
    MISMATCH: "Ranks took different paths through the script: check for a condition on the rank or on its data.",
    "stopped": "A signal stopped it: kill -STOP of a user or of its own, a debugger, or a suspended container.",
    "uninterruptible": "It waits in its node's kernel, mostly for a filesystem or a device: check dmesg there.",
    "finished": "The others still wait for it, which had finished: ranks must take part in equally many collectives.",
    "ending": "The others still wait for it, whose script had ended: ranks must take part in equally many collectives.",
    "ended": "It had ended while the others still waited for it: ranks must take part in equally many collectives.",
}
LOCKED = (
    "A rank waits for the file `lock` in the build directory of a C++ extension. If no process builds it any more, "
    "remove it: find ${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions} -name lock -delete"
)
_FINISHED = "If they wait for the rank that had finished: ranks must take part in equally many steps and collectives."
_PARTIES = "They are at different places, and may wait for each other; where their paths part is shown below."
_LOCAL = "It waits for a thread of its own process: see what should have filled the queue or released the lock."
RECEIVES = frozenset(("recv", "irecv"))
_RECEIVE = (
    "All wait to receive, and none sends: each recv needs a send of the other rank, before its own recv or with isend."
)
ONE_RECEIVES = "It waits to receive: see which rank should have sent, and whether it did."
_POLL = "They sleep there: see what they wait for, such as a file, a lock or another rank."
AFTER_FAILURE = "See that failure first: what its rank calls after it, as in a handler, the others do not expect."
SILENT = (
    "Their collectives went on: call ftslurm.heartbeat() in the loop, let it print, or raise the time-out"
    " (--hang-timeout)."
)
_IMPORT = "They still import modules: a slow or busy filesystem, or a time-out that is too short for the start."
_CHILD = "multiprocessing joins each process that is no daemon at Python's end: end it, or join it with a time-out."
_ENDING = (
    "Python's end waits for threads that are no daemons, then for what runs at exit: end such threads, and call "
    "torch.distributed.destroy_process_group(), before. After ftslurm.workload_finished() no time-out applies."
)
_GROUP_CALLS = frozenset(
    ("new_group", "new_subgroups", "split_group", "init_device_mesh", "new_subgroups_by_enumeration")
)
_GROUPS = (
    "Each rank must create all groups, in the same order, also those that it is no member of: compare which groups the"
    " ranks create before that line."
)
_NO_SUSPECT = "All wait, and Python's stacks do not show for what: check the network and the devices of all nodes."


def advice_on(verdict: Triage, *, parties: bool, finished: bool) -> str:
    """Return the advice on a hang, by where its ranks were.

    Args:
        verdict: the triage of the ranks' stacks.
        parties: whether several ranks hang, and none of them is a suspect.
        finished: whether ranks that are no suspects had finished.
    """
    if any(group.activity is not None and group.activity.activity == BUILD_LOCK for group in verdict.groups):
        return LOCKED
    left = [group for group in verdict.groups if not has_finished(group)]
    if left and all(is_ending(group) for group in left):
        return _CHILD if any(each.activity and each.activity.activity == JOINS_CHILD for each in left) else _ENDING
    if not verdict.suspects and finished:
        return _LOCAL if all(_waits_locally(group) for group in left) else _FINISHED
    if verdict.verdict != NO_ANSWER:
        activities = {group.activity.activity for group in verdict.groups if group.activity is not None}
        if not verdict.suspects and activities == {IMPORT}:
            return _IMPORT
        if not verdict.suspects and all(_waits_locally(group) for group in verdict.groups):
            return _LOCAL
        if not verdict.suspects and activities == {"time.sleep"}:
            return _POLL
        if not verdict.suspects and activities and activities <= _GROUP_CALLS:
            return _GROUPS
        if not verdict.suspects and activities and activities <= RECEIVES:
            return _RECEIVE
        if verdict.suspects or verdict.verdict == MISMATCH:
            return _ADVICE.get(verdict.verdict, _NO_SUSPECT)
        return _PARTIES if parties and len(verdict.groups) > 1 else _NO_SUSPECT
    problem = "ending" if is_ending(verdict.suspects[0]) else verdict.suspects[0].problem or ""
    return next(text for key, text in _ADVICE.items() if key in problem)


def _waits_locally(group: Group) -> bool:
    return group.activity is not None and group.activity.of_thread
