"""Whether the job starts again: the rules one by one, and what must hold for every history of attempts."""

from __future__ import annotations

import random

import pytest

from ftslurm.job_end.requeue import BUDGET, AttemptEnd, decide
from ftslurm.records import cause
from ftslurm.records.cause import ANY, IF_INTERRUPTED, IF_NODE, NEVER
from ftslurm.records.cause import REQUEUE_POLICIES as POLICIES
from ftslurm.records.verdict import BY_SLURM, END, REQUEUE, AttemptVerdict

LOST = "node n2 was lost"


class Run:
    """A run's attempts, one after the other."""

    def __init__(self, policy: str = IF_NODE) -> None:
        self.policy = policy
        self.lineage: list[AttemptVerdict] = []

    def end(self, by: str, gained: bool | None = True, what: str = LOST, code: int = 1) -> AttemptVerdict:
        """Let an attempt end, and return what follows."""
        found = decide(self.policy, AttemptEnd(by, what, code, gained, 40), self.lineage)
        number = len(self.lineage)
        self.lineage.append(
            AttemptVerdict(
                f"12.{number}", 0, "n1", found.action, by, found.text, found.exit_code, 40, gained, found.number,
                found.budget,
            )
        )  # fmt: skip
        return self.lineage[-1]


@pytest.mark.parametrize(
    ("by", "policies"),
    [
        (cause.PREEMPTED, (IF_INTERRUPTED, IF_NODE, ANY)),
        (cause.TIME_LIMIT, (IF_INTERRUPTED, IF_NODE, ANY)),
        (cause.NOTICE, (IF_INTERRUPTED, IF_NODE, ANY)),
        (cause.NODE, (IF_NODE, ANY)),
        (cause.UNHEALTHY, (IF_NODE, ANY)),
        (cause.NETWORK, (IF_NODE, ANY)),
        (cause.FAILURE, (ANY,)),
        (cause.HANG, (ANY,)),
        (cause.SUCCEEDED, ()),
        (cause.NON_RETRYABLE, ()),
        (cause.INTERRUPTED, ()),
        (cause.CANCELLED, ()),
        (cause.UNKNOWN, ()),
    ],
)
def test_the_option_names_the_causes_for_which_a_job_starts_again(by: str, policies: tuple[str, ...]) -> None:
    assert tuple(policy for policy in POLICIES if Run(policy).end(by).action == REQUEUE) == policies


def test_the_decision_is_one_line_for_the_user() -> None:
    assert Run().end(cause.NODE).text == "requeued: node n2 was lost (1 of 3)"
    assert Run().end(cause.PREEMPTED, what="preempted").text == "requeued: preempted"
    assert (
        Run().end(cause.FAILURE, what="rank 3 failed").text
        == "not requeued: rank 3 failed (--requeue node; see --requeue any)"
    )
    assert Run().end(cause.SUCCEEDED).text == ""


def test_a_job_without_a_batch_script_does_not_start_again() -> None:
    for policy in POLICIES:
        for by in (cause.PREEMPTED, cause.TIME_LIMIT, cause.NODE, cause.FAILURE):
            found = decide(policy, AttemptEnd(by, LOST, 1, True, 40), [], has_script=False)
            assert (found.action, found.exit_code) == (END, 1) and found.text.startswith(f"not requeued: {LOST}")


def test_a_job_that_slurm_requeues_is_left_to_it() -> None:
    assert [Run(policy).end(cause.REQUEUED).action for policy in POLICIES] == [BY_SLURM] * 4


def test_the_same_cause_twice_without_a_step_gained_ends_the_job_with_78() -> None:
    run = Run()
    assert run.end(cause.NODE).action == REQUEUE
    assert run.end(cause.NODE, gained=False).action == REQUEUE
    last = run.end(cause.NODE, gained=False)
    assert (last.action, last.exit_code) == (END, 78)
    assert last.text == "not requeued, it would fail again: node n2 was lost again, without a step gained beyond 40", (
        last.text
    )


def test_another_cause_in_between_proves_less_and_uses_its_own_budget() -> None:
    run = Run()
    causes = [cause.NODE, cause.NETWORK] * (BUDGET + 1)
    found = [run.end(by, gained=False) for by in causes]
    assert [one.action for one in found] == [REQUEUE] * 2 * BUDGET + [END] * 2
    assert found[-1].text == "not requeued: node n2 was lost; the 3 requeues for this cause are used up"


def test_a_budget_is_renewed_when_a_step_is_gained() -> None:
    run = Run()
    for _ in range(10):
        assert run.end(cause.NODE, gained=True).number == 1
        assert run.end(cause.NODE, gained=False).number == 2


def test_without_steps_only_the_budget_counts() -> None:
    run = Run()
    found = [run.end(cause.NODE, gained=None) for _ in range(BUDGET + 1)]
    assert [(one.action, one.exit_code) for one in found] == [(REQUEUE, 1)] * BUDGET + [(END, 1)]


def test_after_the_time_limit_a_job_starts_again_only_if_it_got_on() -> None:
    assert Run().end(cause.TIME_LIMIT, gained=True).action == REQUEUE
    stuck = Run().end(cause.TIME_LIMIT, gained=False, code=143)
    assert (stuck.action, stuck.exit_code) == (END, 78)
    unknown = Run().end(cause.TIME_LIMIT, gained=None, code=143)
    assert (unknown.action, unknown.exit_code) == (END, 143)
    assert "ftslurm.progress" in unknown.text


def test_a_preemption_proves_nothing_about_the_job() -> None:
    run = Run()
    assert {run.end(cause.PREEMPTED, gained=False).action for _ in range(20)} == {REQUEUE}


# Properties


@pytest.mark.parametrize("seed", range(200))
def test_histories(seed: int) -> None:
    rng = random.Random(seed)
    policy = rng.choice(POLICIES)
    run = Run(policy)
    causes = rng.sample(cause.CAUSES, rng.randint(1, 5))
    gains = rng.choice([(None,), (True, False), (False,), (True,), (True, False, None)])
    futile = 0
    for _ in range(60):
        by, gained = rng.choice(causes), rng.choice(gains)
        before = list(run.lineage)
        found = run.end(by, gained, code=7)
        if by in (cause.SUCCEEDED, cause.NON_RETRYABLE, cause.CANCELLED, cause.INTERRUPTED, cause.UNKNOWN):
            assert found.action == END and found.exit_code == 7
        if by in (cause.FAILURE, cause.HANG) and policy != ANY:
            assert found.action == END, "a failure of the program must not be requeued by default"
        if policy == NEVER:
            assert found.action != REQUEUE
        if found.exit_code == 78:
            assert found.action == END and gained is False
        if found.action == REQUEUE and found.budget is not None:
            assert 1 <= found.number <= found.budget
        if gained and by in (cause.NODE, cause.UNHEALTHY, cause.NETWORK) and policy in (IF_NODE, ANY):
            assert found.action == REQUEUE, "a job that gets on is never given up for its nodes"
        # Whatever the mixture of causes, a run that gains nothing ends, but for preemptions.
        counted = found.action == REQUEUE and by not in (cause.PREEMPTED,)
        futile = 0 if gained else futile + counted
        assert futile <= 5 * BUDGET
        wider = POLICIES[POLICIES.index(policy) + 1 :]
        if found.action == REQUEUE:
            end = AttemptEnd(by, LOST, 7, gained, 40)
            assert all(decide(other, end, before).action == REQUEUE for other in wider)
        if found.action == END:
            run.lineage.clear()  # the user starts another run
            futile = 0
