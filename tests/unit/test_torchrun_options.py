"""What `--rdzv-conf` may say, which attempt a torchrun agent takes part in, and what it is called; without torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ftslurm.records.state import SUCCEEDED, State
from ftslurm.rendezvous.closing import close
from ftslurm.rendezvous.fold import begin
from ftslurm.rendezvous.observation import RunSpec
from ftslurm.slurm.environment import SlurmJob, from_environ
from ftslurm.torchrun.endpoint import _endpoint, _job, _name, attempt_names, choose_address, choose_attempt
from ftslurm.torchrun.options import HandlerOptions, WrongOption, ignored_options, read_options, without_quotes

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_STEP_ID": "5",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_NNODES": "3",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURMD_NODENAME": "n2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}


def job(**changes: str) -> SlurmJob:
    found = from_environ({**STEP, **changes})
    assert found is not None
    return found


def test_without_options_the_defaults_are_torchs_but_for_the_keep_alive() -> None:
    options = read_options({"timeout": 900})
    assert options == HandlerOptions()
    assert (options.join_timeout_s, options.last_call_s, options.node_timeout_s) == (600, 30, 8)


def test_times_are_read_as_torch_names_them() -> None:
    options = read_options({"join_timeout": "5", "last_call_timeout": "0", "close_timeout": 7, "read_timeout": "1.5"})
    assert (options.join_timeout_s, options.last_call_s, options.close_timeout_s, options.read_timeout_s) == (
        5,
        0,
        7,
        1.5,
    )


@pytest.mark.parametrize(
    ("config", "node_timeout_s"),
    [
        ({"keep_alive_interval": "0.5"}, 8.0),
        ({"keep_alive_interval": "5"}, 15.0),
        ({"keep_alive_max_attempt": "3"}, 3.0),
        ({"keep_alive_interval": "0.3", "keep_alive_max_attempt": "5"}, 1.5),
    ],
)
def test_a_node_is_lost_after_so_many_missed_signs_of_life(config: dict[str, str], node_timeout_s: float) -> None:
    assert read_options(config).node_timeout_s == pytest.approx(node_timeout_s)


@pytest.mark.parametrize(
    "config",
    [
        {"heartbeat_timeout": "5"},
        {"protocol": "c10d"},
        {"join_timeout": "0"},
        {"join_timeout": "-1"},
        {"join_timeout": "nan"},
        {"join_timeout": "inf"},
        {"last_call_timeout": "x"},
        {"keep_alive_interval": "0"},
        {"keep_alive_max_attempt": "1"},
        {"keep_alive_max_attempt": "1.5"},
        {"keep_alive_max_attempt": "²"},
        {"protocol": "dynamic", "keep_alive_interval": "0.5"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_with_the_options_name(config: dict[str, str]) -> None:
    with pytest.raises(WrongOption, match=list(config)[-1]) as raised:
        read_options(config)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


def test_quotes_that_a_shell_left_around_the_options_are_dropped() -> None:
    # torch's parser makes this of --rdzv-conf='join_timeout=5,last_call_timeout=1' with the quotes in it.
    config = without_quotes({"'join_timeout": "5", "last_call_timeout": "1'", "is_host": True})
    assert config == {"join_timeout": "5", "last_call_timeout": "1", "is_host": True}


def test_c10ds_own_options_are_ignored_by_name() -> None:
    config = {"is_host": True, "store_type": "file", "join_timeout": "5"}
    assert read_options(config).join_timeout_s == 5
    assert "is_host, store_type: ignored" in str(ignored_options(config))
    assert ignored_options({"join_timeout": "5"}) is None


@pytest.mark.parametrize("endpoint", ["", "n1:29400", ":0", "localhost:"])
def test_an_endpoint_that_is_no_directory_is_refused(endpoint: str) -> None:
    with pytest.raises(WrongOption, match="expected a directory that all nodes share"):
        _endpoint(endpoint)


def test_under_slurm_the_node_has_slurms_name_and_place() -> None:
    assert _name(job(), "host", 7) == ("n2", 1, ("n1", "n2", "n3"))


def test_two_agents_on_one_node_have_different_names() -> None:
    assert _name(None, "host", 7) == ("host-7", 0, ())
    assert _name(job(SLURM_STEP_TASKS_PER_NODE="2(x3)"), "host", 7) == ("n2-7", 1, ())


def test_a_node_is_reached_by_the_first_of_its_names_that_means_something() -> None:
    assert choose_address(job(), "host", 3, lambda name: True) == "n2"
    assert choose_address(job(), "host", 3, lambda name: name == "host") == "host"
    assert choose_address(None, "host", 3, lambda name: True) == "host"
    assert choose_address(None, "host", 1, lambda name: False) == "127.0.0.1"
    with pytest.raises(WrongOption, match="n2 and host: this node cannot resolve its own name"):
        choose_address(job(), "host", 3, lambda name: False)


def test_a_loop_of_one_node_sruns_is_one_world() -> None:
    alone = {**STEP, "SLURM_STEP_NODELIST": "n2", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}
    together = _job(alone, max_nodes=3)
    assert together is not None
    assert _name(together, "host", 7)[:2] == ("n2-7", 1)
    assert attempt_names(together)(0) == "12.1"
    assert attempt_names(_job(alone, max_nodes=1))(0) == "12.5.1"


def test_a_step_a_requeue_and_a_second_start_are_attempts_of_their_own() -> None:
    assert attempt_names(job())(0) == "12.5.1"
    batch = {key: value for key, value in STEP.items() if "STEP" not in key}
    assert [attempt_names(from_environ(batch))(number) for number in (0, 1)] == ["12.1", "12.again1.1"]
    assert [attempt_names(None)(number) for number in (0, 1)] == ["torchrun.0", "torchrun.1"]


@dataclass
class Case:
    closed: bool
    fixed_size: bool
    attempt: str


@pytest.mark.parametrize(
    "case",
    [
        Case(closed=False, fixed_size=True, attempt="torchrun.0"),
        Case(closed=False, fixed_size=False, attempt="torchrun.0"),
        Case(closed=True, fixed_size=True, attempt="torchrun.1"),
        Case(closed=True, fixed_size=False, attempt="torchrun.0"),
    ],
    ids=str,
)
def test_a_closed_rendezvous_stays_closed_unless_only_a_new_start_can_have_come(case: Case) -> None:
    state: State = begin(None, RunSpec("r", "torchrun.0", (), 1, 1, 0), "n1", "i1", 0)
    if case.closed:
        state = close(state, SUCCEEDED, "done", 0, 0)
    assert choose_attempt(attempt_names(None), state, case.fixed_size) == case.attempt
    assert choose_attempt(attempt_names(None), None, case.fixed_size) == "torchrun.0"


def test_the_second_new_start_begins_the_third_attempt() -> None:
    names = attempt_names(None)
    state = begin(None, RunSpec("r", names(0), (), 1, 1, 0), "n1", "i1", 0)
    state = begin(close(state, SUCCEEDED, "done", 0, 0), RunSpec("r", names(1), (), 1, 1, 0), "n1", "i2", 0)
    assert choose_attempt(names, state, fixed_size=True) == names(1)
    assert choose_attempt(names, close(state, SUCCEEDED, "done", 0, 0), fixed_size=True) == names(2)
