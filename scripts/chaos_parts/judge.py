"""Broken promises, from a job's history (pure): for each promise a function that returns a line per breach."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from chaos_parts.counting import total
from chaos_parts.faults import BY_NAME, NODE, STOPPED
from chaos_parts.history import ANY, IF_NODE, Commit, Event, History, Injection
from chaos_parts.processes import RANK
from chaos_parts.reasons import SECOND_NS, describe_end, explanations
from chaos_parts.schedule import TIME_LIMIT

SUCCEEDED = "succeeded"
QUIET_NS = 30 * SECOND_NS
"""A save on SIGTERM is required only if no other fault was active for this time."""
OWN_TRACEBACK = re.compile(r'File "[^"]*/ftslurm/(agent|report|slurm|status)/[^"]*"')
"""A traceback of ftslurm's own processes; ranks may be stopped anywhere in their code."""


@dataclass(frozen=True)
class Miss:
    """A promise that was not kept."""

    check: str
    text: str


def judge(history: History) -> list[Miss]:
    """Return all promises that were not kept."""
    return [Miss(name, text) for name, check in CHECKS.items() for text in check(history)]


def ended(history: History) -> list[str]:
    """The job ends: no hang, no job that is left RUNNING without processes."""
    return [history.stuck] if history.stuck else []


def counted(history: History) -> list[str]:
    """The sum is right: in the result, and in each checkpoint that became visible."""
    wrong = [
        f"{commit.name} of round {commit.round}: step {commit.step} has {commit.total}, expected {total(commit.step)}"
        for commit in history.commits
        if commit.total != total(commit.step)
    ]
    if _succeeded(history) and history.result is None:
        wrong.append("the run succeeded without a result")
    elif _succeeded(history) and history.result != (history.steps, total(history.steps)):
        expected = history.steps, total(history.steps)
        wrong.append(f"the result is {history.result}, an undisturbed run has {expected}")
    return wrong


def in_order(history: History) -> list[str]:
    """Nothing stale is committed: of a past round nothing, once a newer one has committed; of a round no older step."""
    wrong = []
    newest: Commit | None = None
    last: dict[str, Commit] = {}
    for commit in sorted(history.commits, key=lambda commit: commit.began_ns):
        if newest is not None and commit.round < newest.round and commit.began_ns > newest.done_ns:
            wrong.append(f"{_commit_text(commit)} became visible after {_commit_text(newest)}")
        before = last.get(commit.name)
        if before is not None and before.round == commit.round and commit.step < before.step:
            wrong.append(f"{_commit_text(commit)} became visible after {_commit_text(before)}")
        last[commit.name] = commit
        if newest is None or commit.round > newest.round:
            newest = commit
    return wrong


def _commit_text(commit: Commit) -> str:
    return f"{commit.name} of round {commit.round}, step {commit.step},"


def restored(history: History) -> list[str]:
    """A round continues from the newest checkpoint: no commit is lost."""
    wrong = []
    for event in history.events:
        if event.what != "restored":
            continue
        reading = _before(history, event, "reading")
        begin_ns = reading.time_ns if reading is not None else event.time_ns
        visible = [
            commit for commit in history.commits if commit.name == "last.json" and commit.began_ns < event.time_ns
        ]
        settled = [commit for commit in visible if commit.done_ns < begin_ns]
        steps = {commit.step for commit in visible if commit not in settled}
        steps.add(max(settled, key=lambda commit: commit.done_ns).step if settled else 0)
        if event.step not in steps:
            wrong.append(
                f"round {event.round} continued from step {event.step}, the newest checkpoint had {max(steps)}"
            )
    return wrong


def _before(history: History, event: Event, what: str) -> Event | None:
    same = [
        each
        for each in history.events
        if (each.what, each.round, each.rank, each.attempt) == (what, event.round, event.rank, event.attempt)
        and each.time_ns <= event.time_ns
    ]
    return max(same, key=lambda each: each.time_ns, default=None)


def saved(history: History) -> list[str]:
    """A save on SIGTERM is committed when the whole job is stopped."""
    wrong = []
    for injection in history.injections:
        if injection.kind not in ("scancel", "requeue", "preempted") or not _alone(history, injection):
            continue
        for event in _asked_to_stop(history, injection):
            done = _after(history, event, "saved", "refused", "not-saved")
            if event.step > _saved_step(history, event) and (done is None or done.what != "saved"):
                how = f"{done.what}: {done.why}" if done is not None else "its rank was killed before that"
                wrong.append(f"what was counted up to step {event.step} was not saved on {injection.kind}: {how}")
    return wrong


def together(history: History) -> list[str]:
    """Ranks that call `should_stop` leave at the same step: all of them, where no other fault took one."""
    wrong = []
    rounds = {(event.attempt, event.round) for event in history.events if event.what == "left"}
    for attempt, number in sorted(rounds):
        here = [event for event in history.events if (event.attempt, event.round) == (attempt, number)]
        steps = {event.rank: event.step for event in here if event.what == "left"}
        if len(set(steps.values())) > 1:
            wrong.append(f"the ranks of round {number} left at different steps: {steps}")
        missing = {event.rank for event in here if event.what == "counting"} - set(steps)
        began_ns = min(event.time_ns for event in here)
        during = [injection for injection in history.injections if injection.over_ns >= began_ns]
        if missing and len(during) == 1:
            wrong.append(f"ranks {sorted(missing)} of round {number} did not leave at step {min(steps.values())}")
    return wrong


def _asked_to_stop(history: History, injection: Injection) -> list[Event]:
    end_ns = injection.begin_ns + 10 * SECOND_NS
    return [
        event
        for event in history.events
        if event.what == "asked-to-stop" and event.rank == 0 and injection.begin_ns - SECOND_NS < event.time_ns < end_ns
    ]


def _after(history: History, event: Event, *whats: str) -> Event | None:
    same = [
        each
        for each in history.events
        if (each.round, each.rank) == (event.round, event.rank) and each.what in whats and each.time_ns > event.time_ns
    ]
    return min(same, key=lambda each: each.time_ns, default=None)


def _saved_step(history: History, event: Event) -> int:
    steps = [
        each.step
        for each in history.events
        if each.what in ("saved", "restored") and each.name in ("", "last.json") and each.time_ns < event.time_ns
    ]
    return max(steps, default=0)


def _alone(history: History, injection: Injection) -> bool:
    return all(
        each is injection
        or each.over_ns < injection.begin_ns - QUIET_NS
        or each.begin_ns > injection.begin_ns + SECOND_NS
        for each in history.injections
    )


def _has_left(history: History) -> bool:
    """Return whether ranks have left by `should_stop`: a signal to one agent stops such a run."""
    return any(event.what == "left" for event in history.events)


def left_nothing(history: History) -> list[str]:
    """No process is left on any node: neither after the job, nor of a past round together with a newer one."""
    return [f"left running: {line}" for line in history.running] + [
        f"left of a past round beside a newer one: {line}" for line in history.stale
    ]


def left_clean(history: History) -> list[str]:
    """No files are left on the nodes' disks, except by processes that were killed before they could clean up."""
    leaving = [each for each in history.injections if BY_NAME[each.kind].leaves_files]
    nodes = {each.node for each in leaving}
    # If the run is not closed, all agents were killed; `persisted` and `ended` check whether that is permitted.
    everywhere = history.closed is None or any(BY_NAME[each.kind].ends_job or each.node is None for each in leaving)
    since = " of an earlier job, although an agent has started there since"
    return [
        f"{leftover.path} on {leftover.node}{since if leftover.earlier else ''}"
        for leftover in history.leftovers
        if leftover.earlier or not (everywhere or leftover.node in nodes)
    ]


SRUN_ABORTS = "srun: error: Aborting, "
"""Message of srun before it ends the whole step, in spite of --no-kill: a node rebooted before Slurm
detected it, so that its connection broke and it has no record of the step (step_launch.c)."""
SRUN_LAUNCH_FAILED = "srun: error: Application launch failed"
"""The same for a node that was dead at the launch."""


def _srun_gave_up(history: History) -> bool:
    """Return whether srun ended a whole step since a node was dead or had rebooted."""
    if not any(each.kind.startswith(("node-killed", "node-rebooted")) for each in history.injections):
        return False
    return SRUN_ABORTS in history.output or SRUN_LAUNCH_FAILED in history.output


def explained(history: History) -> list[str]:
    """The end of each round is explained by an injected fault that the report names."""
    if history.report is None:
        return []
    return [
        f"no fault explains {describe_end(past)}"
        for past in history.report.rounds
        if past.outcome not in (SUCCEEDED, "running")
        and not explanations(history, past)
        and not (past.outcome == STOPPED and _srun_gave_up(history))
    ]


def noticed(history: History) -> list[str]:
    """A rank with an injected failure does not count as succeeded."""
    if history.report is None:
        return []
    good = {past.number for past in history.report.rounds if past.outcome == SUCCEEDED}
    done = {(event.round, event.rank) for event in history.events if event.what == "done"}
    return [
        f"{each.text} in round {each.round}, which succeeded all the same"
        for each in history.injections
        if BY_NAME[each.kind].hits == RANK
        and any(reason.blames == "this rank" for reason in BY_NAME[each.kind].reasons)
        and each.round in good
        and (each.round, each.rank) not in done
    ]


def persisted(history: History) -> list[str]:
    """A job does not end as long as restarts and enough nodes are left."""
    closed = history.closed
    if history.requeue in (IF_NODE, ANY):
        return []  # see came_back
    if history.stuck or _succeeded(history) or any(BY_NAME[each.kind].ends_job for each in history.injections):
        return []
    if any(each.kind == "agent-terminated" for each in history.injections) and _has_left(history):
        return []
    taken = {each.node for each in history.injections if BY_NAME[each.kind].takes_node}
    if len(history.nodes) - len(taken) < history.min_nodes:
        return []
    if closed is None:
        if _srun_gave_up(history):
            return []
        return [f"the job ended ({history.state}) and nothing closed its run"]
    used = history.report.restarts_used if history.report is not None else 0
    if used >= history.max_restarts:
        return []
    left = (
        f"{history.max_restarts - used} of {history.max_restarts} restarts and {len(history.nodes) - len(taken)} nodes"
    )
    return [f"it ended with {left} left, {history.min_nodes} needed: {closed.outcome}: {closed.reason}"]


def came_back(history: History) -> list[str]:
    """With `--requeue node` or `any`, a job starts again until it succeeds, unless a fault stands for a user's stop."""
    if history.requeue not in (IF_NODE, ANY) or history.stuck or _succeeded(history):
        return []
    if any(BY_NAME[each.kind].ends_job and each.kind != TIME_LIMIT for each in history.injections):
        return []
    if any(each.kind == "agent-terminated" for each in history.injections) and _has_left(history):
        return []
    closed = history.closed
    if closed is None and _slurm_may_say_anything(history):
        return []  # Slurm ended the job with its batch host, while the run went on
    how = f"{closed.outcome}: {closed.reason}" if closed is not None else "nothing closed its run"
    return [f"it ended ({history.state} {history.exit_code}) and was not requeued: {how}"]


def coded(history: History) -> list[str]:
    """Slurm's state of the job and its exit code are those of the run."""
    closed = history.closed
    if history.stuck or closed is None or _slurm_may_say_anything(history):
        return []
    mismatch = f"the run {closed.outcome} with code {closed.exit_code}, Slurm says {history.state} {history.exit_code}"
    if closed.outcome == SUCCEEDED:
        lost = any(BY_NAME[each.kind].takes_node for each in history.injections)
        return [] if history.state == "COMPLETED" or (lost and history.state == "NODE_FAIL") else [mismatch]
    if closed.outcome == STOPPED:
        return []
    good = history.state == "FAILED" and history.exit_code.partition(":")[0] == str(closed.exit_code)
    return [] if good else [mismatch]


def _slurm_may_say_anything(history: History) -> bool:
    return any(
        BY_NAME[each.kind].ends_job or (each.node == history.batch_host and _ends_batch_script(each))
        for each in history.injections
    )


def _ends_batch_script(injection: Injection) -> bool:
    fault = BY_NAME[injection.kind]
    return fault.hits == NODE and fault.takes_node


def reported(history: History) -> list[str]:
    """The report exists and has the run's outcome, and ftslurm has had no internal error."""
    wrong = []
    closed, report = history.closed, history.report
    if report is None:
        # ftsrun may be killed before the run exists.
        if history.events or not any(each.kind == "ftsrun-killed" for each in history.injections):
            wrong.append("there is no report")
    elif closed is not None and report.status != closed.outcome:
        wrong.append(f"the report says {report.status}, the run's state {closed.outcome}")
    elif report.status == "running" and not history.stuck:
        wrong.append("according to the report the run is still running")
    for line in history.output.splitlines():
        if "internal error" in line or OWN_TRACEBACK.search(line):
            wrong.append(f"ftslurm had an internal error: {line.strip()}")
            break
    return wrong


def _succeeded(history: History) -> bool:
    return history.closed is not None and history.closed.outcome == SUCCEEDED


CHECKS: dict[str, Callable[[History], list[str]]] = {
    "ended": ended,
    "counted": counted,
    "in order": in_order,
    "restored": restored,
    "saved": saved,
    "together": together,
    "left nothing": left_nothing,
    "left clean": left_clean,
    "explained": explained,
    "noticed": noticed,
    "persisted": persisted,
    "came back": came_back,
    "coded": coded,
    "reported": reported,
}
