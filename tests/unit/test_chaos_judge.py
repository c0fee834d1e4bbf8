"""scripts/chaos' judge: a good history passes, and each check finds each way in which its promise can be broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chaos_histories import (
    STEPS,
    at,
    commit,
    ended,
    event,
    failed,
    good,
    injection,
    kill,
    succeeded,
    with_commits,
    with_injections,
    with_rounds,
)
from chaos_parts.counting import total
from chaos_parts.history import History, Injection, Leftover, Report
from chaos_parts.judge import CHECKS, judge


def missed(history: History) -> set[str]:
    return {miss.check for miss in judge(history)}


def scancelled(*events: tuple[str, str], step: int = 17, others: tuple[Injection, ...] = ()) -> History:
    """The job is cancelled at second 50, when rank 0 has counted that far; then these events: what, and why."""
    history = ended("stopped", 143, "CANCELLED", "0:15", injection("scancel", 50), *others)
    added = [event(50.1, "asked-to-stop", 2, step=step)]
    added += [event(50.2, what, 2, step=step, name="last.json", why=why) for what, why in events]
    # Its last checkpoint before that.
    earlier = [event(49, "saved", 2, step=15, name="last.json")]
    past = (failed(3.6), replace(ended("stopped", 143, "", "").report.rounds[1], ended_ns=at(51)))  # type: ignore[union-attr]
    report = Report("stopped", past, 1, 6)
    return replace(history, events=(*history.events, *earlier, *added), report=report, end_ns=at(60))


def left(*steps: int) -> History:
    """The job is asked to stop at second 10.5, when round 2 has been running; its first ranks leave at these steps."""
    history = ended("stopped", 75, "FAILED", "75:0", injection("stop-requested", 10.5))
    added = [event(4.7, "counting", 2, rank, 10) for rank in range(8)]
    added += [event(10.6, "left", 2, rank, step) for rank, step in enumerate(steps)]
    return replace(history, events=(*(each for each in history.events if each.what != "done"), *added))


def exit_of_rank_3(round_: int) -> Injection:
    return Injection("rank-exits", at(9), None, "n2", 3, round_)


WORK = "/tmp/base/tmp/n3/ftslurm-0-9"
OWN = '  File "/venv/lib/ftslurm/agent/loop.py", line 9, in run'
# By check: what is wrong, and a history of it.
BROKEN: dict[str, dict[str, History]] = {
    "ended": {"it was given up": replace(good(), stuck="RUNNING without a process for 45 s")},
    "counted": {
        "a checkpoint has another sum": with_commits(replace(commit(4, 1, 12, "rank-3.json"), total=total(12) + 1)),
        "the result has another sum": replace(good(), result=(STEPS, total(STEPS) - 1)),
        "the result lacks steps": replace(good(), result=(STEPS - 5, total(STEPS - 5))),
        "there is no result": replace(good(), result=None),
    },
    "in order": {
        "a past round commits after a newer one": with_commits(commit(7, 1, 12)),
        "so it does under another name": with_commits(commit(7, 1, 10, "rank-3.json")),
        "two rounds commit in turns": with_commits(commit(6.6, 3, 16), commit(6.8, 2, 17), commit(6.9, 3, 18)),
        "a round commits an older step than it had": with_commits(commit(9.5, 2, 20)),
    },
    "restored": {
        "a round goes on from before the newest checkpoint": replace(
            good(), events=(*good().events, event(12, "reading", 3), event(12.1, "restored", 3, step=35))
        ),
        "a round begins anew although there is a checkpoint": replace(
            good(), events=(event(4.5, "reading", 2), event(4.6, "restored", 2, step=0))
        ),
    },
    "saved": {
        "the fence refuses the save": scancelled(("refused", "round 2 has ended")),
        "the save fails": scancelled(("not-saved", "Input/output error")),
        "the rank is killed before it has saved": scancelled(),
    },
    "together": {
        "one rank left a step later": left(*[39] * 7, 40),
        "one rank did not leave": left(*[39] * 7),
    },
    "left nothing": {
        "a process is left when the job is over": replace(good(), running=("n3: 99 S sleep 1000",)),
        "a past round's process lives beside a newer round": replace(good(), stale=("n3: 99 S sleep 1000",)),
    },
    "left clean": {
        "an agent that ended well leaves its directory": replace(good(), leftovers=(Leftover("n3", WORK),)),
        "one was killed, but on another node": replace(
            with_injections(kill(3.5), injection("guardian-killed", 8, node="n5")), leftovers=(Leftover("n3", WORK),)
        ),
        "a later start does not remove what is left": replace(
            with_injections(kill(3.5), injection("guardian-killed", 8, node="n3")),
            leftovers=(Leftover("n3", WORK, earlier=True),),
        ),
    },
    "explained": {
        "a round ends by nothing": with_rounds(failed(3.6), succeeded(2), injections=()),
        "another rank is blamed": with_rounds(failed(3.6, rank=5, node="n3"), succeeded(2)),
        "another cause is named": with_rounds(failed(3.6, cause="host-oom-kill"), succeeded(2)),
        "it ends long after the fault": with_rounds(failed(60), succeeded(2)),
        "it ends before the fault": with_rounds(failed(2), succeeded(2)),
        "another round was hit": with_rounds(failed(3.6), failed(9, number=2), succeeded(3)),
        "a full directory costs a healthy node": with_rounds(
            failed(20, "node-lost", None, "n2"), succeeded(2), injections=(injection("directory-full", 5, until=19),)
        ),
        "a lost node is blamed on a rank of another": with_rounds(
            failed(13, "peer-reset", 1, "n1"),
            succeeded(2),
            injections=(injection("node-killed", 5, until=80, node="n2"),),
        ),
        "a round is stopped although nothing stopped it": with_rounds(
            replace(failed(3.6), outcome="stopped", first=None), succeeded(2)
        ),
    },
    "noticed": {
        "the round of a killed rank succeeds": replace(
            with_rounds(failed(3.6), succeeded(2), injections=(kill(3.5), exit_of_rank_3(2))),
            events=tuple(each for each in good().events if each.what != "done"),
        )
    },
    "persisted": {
        "it gives up with restarts and nodes left": ended("failed", 1, "FAILED", "1:0"),
        "so it does when no more nodes are gone than there are spares": ended(
            "failed",
            1,
            "FAILED",
            "1:0",
            injection("node-killed", 5, node="n2"),
            injection("agent-killed", 6, node="n3"),
        ),
        "it ends and nothing says how": replace(
            ended("failed", 1, "FAILED", "1:0"), closed=None, report=Report("failed", (failed(3.6),), 1, 6)
        ),
    },
    "came back": {
        "a run that lost nodes is not requeued": replace(
            ended("failed", 1, "FAILED", "1:0", injection("node-killed", 5, node="n2")), requeue="node"
        ),
        "a run is stopped at its time limit, and not requeued": replace(
            ended("stopped", 75, "FAILED", "75:0", injection("time-limit", 5, until=100)), requeue="any"
        ),
    },
    "coded": {
        "a run that succeeded is CANCELLED": replace(good(), state="CANCELLED"),
        "a run that failed is COMPLETED": ended("failed", 1, "COMPLETED", "0:0", restarts_used=6),
        "the exit code is another one": ended("failed", 78, "FAILED", "1:0", restarts_used=6),
    },
    "reported": {
        "there is no report": replace(good(), report=None),
        "the report says something else than the run": replace(
            good(), report=Report("failed", (failed(3.6), succeeded(2)), 1, 6)
        ),
        "it says that the run is still running": replace(
            ended("failed", 1, "FAILED", "1:0", injection("srun-killed", 8, node="n1")),
            closed=None,
            report=Report("running", (failed(3.6),), 1, 6),
        ),
        "ftslurm met an exception of its own": replace(good(), output=f"Traceback (most recent call last):\n{OWN}\n"),
        "it calls one an internal error": replace(good(), output="ftslurm: n2: internal error: KeyError: 3\n"),
    },
}


def test_a_good_history_misses_nothing() -> None:
    assert judge(good()) == []


def test_each_check_has_a_history_that_breaks_it() -> None:
    assert set(BROKEN) == set(CHECKS)


@pytest.mark.parametrize(("check", "how"), [(check, how) for check, ways in BROKEN.items() for how in ways])
def test_a_broken_promise_is_found_by_its_check_and_by_no_other(check: str, how: str) -> None:
    assert missed(BROKEN[check][how]) == {check}


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            with_commits(commit(5.9, 1, 12, lasting_s=0.7)), id="an old commit began before the first new one"
        ),
        pytest.param(with_commits(commit(5.2, 1, 12)), id="an old commit between the rounds"),
        pytest.param(
            with_rounds(
                failed(13, "node-lost", None, "n2"),
                succeeded(2),
                injections=(injection("node-killed", 5, until=80, node="n2"),),
            ),
            id="a killed node was lost",
        ),
        pytest.param(
            with_rounds(
                failed(13, "node-lost", None, "n4", nodes=("n4", "n2")),
                succeeded(2),
                injections=(injection("node-killed", 5, until=80, node="n2"),),
            ),
            id="two nodes were lost, it among them",
        ),
        pytest.param(
            with_rounds(
                failed(9, "unreachable", 5, "n3"),
                succeeded(2),
                injections=(injection("link-cut-briefly", 5, until=8, node="n2"),),
            ),
            id="a cut link keeps a rank of any node from starting",
        ),
        pytest.param(ended("failed", 1, "FAILED", "1:0", restarts_used=6), id="all restarts were used"),
        pytest.param(
            ended(
                "failed",
                1,
                "FAILED",
                "1:0",
                *(injection("guardian-killed", 5 + number, node=f"n{number}") for number in (2, 3, 4)),
            ),
            id="too few nodes were left",
        ),
        pytest.param(
            replace(
                with_rounds(
                    replace(failed(5), outcome="stopped", first=None),
                    succeeded(2),
                    injections=(injection("node-rebooted-quickly", 4, until=6, node="n2"),),
                ),
                requeue="node",
                output="srun: error: Aborting, io error and missing step on node 1\n",
            ),
            id="srun gives up a step, and the job is requeued",
        ),
        pytest.param(
            replace(
                ended("failed", 1, "FAILED", "0:9", injection("node-frozen", 5, until=30, node="n1")),
                requeue="any",
                closed=None,
            ),
            id="Slurm ends a job with its batch host",
        ),
        pytest.param(
            replace(ended("stopped", 75, "FAILED", "75:0", injection("stop-requested", 10)), requeue="any"),
            id="what a user stops is not requeued",
        ),
        pytest.param(scancelled(("saved", "")), id="what was counted is saved on scancel"),
        pytest.param(left(*[39] * 8), id="all ranks leave at the same step"),
        pytest.param(left(), id="no rank calls should_stop"),
        pytest.param(
            replace(left(*[39] * 7), injections=(kill(3.5), kill(9, 7, "n4", 2), injection("stop-requested", 10.5))),
            id="a rank that was killed does not leave",
        ),
        pytest.param(
            replace(left(*[39] * 8), injections=(kill(3.5), injection("agent-terminated", 10.5, node="n3"))),
            id="a signal to one agent stops ranks that call should_stop",
        ),
        pytest.param(scancelled(step=15), id="there was nothing to save on scancel"),
        pytest.param(
            scancelled(("not-saved", "full"), others=(injection("directory-full", 45, until=55),)),
            id="the directory was full when it was to be saved",
        ),
        pytest.param(
            replace(
                with_injections(kill(3.5), injection("guardian-killed", 8, node="n3")),
                leftovers=(Leftover("n3", WORK),),
            ),
            id="a killed guardian leaves its directory",
        ),
        pytest.param(
            replace(
                with_injections(kill(3.5), injection("node-rebooted-quickly", 8, until=10, node="n1")),
                state="CANCELLED",
            ),
            id="the batch host's node died, and Slurm may say what it likes",
        ),
        pytest.param(
            replace(with_injections(kill(3.5), injection("node-killed", 8, node="n5")), state="NODE_FAIL"),
            id="Slurm says NODE_FAIL of a job that lost a node",
        ),
        pytest.param(
            replace(good(), output='  File "/venv/lib/ftslurm/worker.py", line 9\n'), id="a rank's stack is shown"
        ),
        pytest.param(with_injections(kill(3.5), kill(10.2, round_=2)), id="a rank was killed when it was done"),
    ],
)
def test_what_a_fault_may_bring_is_no_miss(history: History) -> None:
    assert judge(history) == []
