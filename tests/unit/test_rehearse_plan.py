"""The command line of `ftslurm rehearse`."""

from __future__ import annotations

import pytest

from ftslurm.rehearse.plan import Plan, make_plan
from ftslurm.terminal import UsageError


def plan(*arguments: str, **environment: str) -> Plan:
    return make_plan(arguments, environment, "x")


def test_options_of_run_are_passed_on_and_the_program_stays_as_it_is() -> None:
    made = plan("preempt", "--at-step", "120", "--nproc-per-node", "2", "--", "train.py", "--grace", "--", "-x")
    assert made.at_step == 120
    assert made.options.program.arguments == ("--grace", "--", "-x")
    assert made.options.placement.nproc_per_node == "2"
    assert made.options.placement.local_nodes == 2
    assert made.options.placement.rdzv_id == made.run_id == "rehearse-preempt-x"
    assert made.options.exclusion.after == 0


def test_the_grace_of_a_stop_has_a_default_and_is_that_of_the_run() -> None:
    assert (plan("preempt", "--", "a.py").grace_s, plan("timeout", "--", "a.py").grace_s) == (30, 60)
    made = plan("preempt", "--grace", "5m", "--", "a.py")
    assert made.grace_s == made.options.stop.grace_s == 300
    assert plan("oom", "--", "a.py").options.stop.grace_s is None
    assert plan("oom", "--grace", "7", "--", "a.py").options.stop.grace_s == 7


def test_a_hang_has_a_time_out_unless_one_is_given() -> None:
    assert plan("hang", "--", "a.py").options.timeouts.configured.hang_s == 10
    assert plan("hang", "--hang-timeout", "60", "--", "a.py").options.timeouts.configured.hang_s == 60
    assert plan("hang", "--", "a.py", FTSLURM_HANG_TIMEOUT="70").options.timeouts.configured.hang_s == 70
    assert plan("oom", "--", "a.py").options.timeouts.configured.hang_s is None


def test_local_nodes_and_time_outs_that_are_given_stay() -> None:
    made = plan("node-loss", "--local-nodes=3", "--nnodes", "2", "--join-timeout", "9", "--", "a.py")
    assert made.options.placement.local_nodes == 3
    assert made.options.timing.join_timeout_s == 9
    assert plan("node-loss", "--", "a.py").options.timing.join_timeout_s == 20
    assert plan("oom", "--", "a.py", FTSLURM_LOCAL_NODES="4").options.placement.local_nodes == 4


def test_a_module_is_given_as_behind_python() -> None:
    made = plan("oom", "--", "-m", "package.train", "-x")
    assert made.options.program.module
    assert (made.options.program.name, made.options.program.arguments) == ("package.train", ("-x",))


@pytest.mark.parametrize(
    ("event", "policy", "expected"),
    [
        ("preempt", "never", False),
        ("timeout", "interrupted", True),
        ("node-loss", "interrupted", False),
        ("node-loss", "node", True),
        ("preempt", "any", True),
    ],
)
def test_the_policy_of_requeues_decides_whether_the_job_would_start_again(
    event: str, policy: str, expected: bool
) -> None:
    assert plan(event, "--requeue", policy, "--", "a.py").is_requeued is expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("preempt", "train.py"), "expected -- and a program"),
        (("preempt", "--"), "expected -- and a program"),
        (("preempt", "--rdzv-id", "a", "--", "a.py"), "--rdzv-id"),
        (("preempt", "--rdzv_id=a", "--", "a.py"), "--rdzv-id"),
        (("preempt", "--nonsense", "--", "a.py"), "unknown option --nonsense"),
        (("oom", "--max-restarts", "x", "--", "a.py"), "--max-restarts x"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError, match="(?s)") as caught:
        plan(*arguments)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("fire", "--", "a.py"), "EVENT: expected one of preempt, timeout"),
        (("oom", "--at-step", "many", "--", "a.py"), "--at-step: expected a whole number"),
        (("oom", "--limit", "-1", "--", "a.py"), "--limit"),
    ],
)
def test_a_wrong_value_is_one_line(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        plan(*arguments)
    printed = capsys.readouterr().err
    assert expected in printed
    assert printed.count("\n") == 1
