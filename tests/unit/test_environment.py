"""What a worker finds in its environment and on its command line: torchrun's names and values, and ours."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ftslurm.agent.actions import Assignment
from ftslurm.agent.environment import (
    OF_THE_ROUND,
    Program,
    RunFacts,
    output_of,
    parse_streams,
    program_argv,
    standby_environment,
    streams_of,
    worker_command,
    worker_environment,
)
from ftslurm.agent.options import parse_run
from ftslurm.agent.torchrun_options import substituted
from ftslurm.failures.record import identity
from ftslurm.records.state import Master
from ftslurm.slurm.environment import from_environ

# Two nodes with 3 and 2 workers; this is the second node, in the third round, after two restarts.
ASSIGNMENT = Assignment(3, "12.1", 1, 2, 3, 2, 5, Master("n1", 20_123), 2, 4)
FACTS = RunFacts("job-12", "/runs/job-12", "n2", "trainer")
EXPECTED = {
    "LOCAL_RANK": "1",
    "RANK": "4",
    "GROUP_RANK": "1",
    "ROLE_RANK": "4",
    "ROLE_NAME": "trainer",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "5",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_WORLD_SIZE": "5",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "20123",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "4",
    "TORCHELASTIC_RUN_ID": "job-12",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCHELASTIC_ERROR_FILE": "/tmp/rec/error.json",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
    "FTSLURM_RUN_DIR": "/runs/job-12",
    "FTSLURM_RUN_ID": "job-12",
    "FTSLURM_ATTEMPT": "12.1",
    "FTSLURM_ROUND": "3",
    "FTSLURM_NODE": "n2",
    "FTSLURM_RECORD_DIR": "/tmp/rec",
}


def environment(inherited: dict[str, str], assignment: Assignment = ASSIGNMENT, local_rank: int = 1) -> dict[str, str]:
    return worker_environment(inherited, FACTS, assignment, local_rank, "/tmp/rec")


@pytest.mark.parametrize("name", EXPECTED)
def test_each_of_torchruns_variables_has_torchruns_value(name: str) -> None:
    assert environment({})[name] == EXPECTED[name]


def test_there_are_no_other_variables_than_these_and_the_inherited() -> None:
    assert environment({"PATH": "/bin", "SLURM_PROCID": "1"}) == EXPECTED | {"PATH": "/bin", "SLURM_PROCID": "1"}


def test_the_rank_counts_the_workers_of_the_nodes_before() -> None:
    assert [environment({}, local_rank=local)["RANK"] for local in (0, 1)] == ["3", "4"]


def test_what_another_launcher_left_in_the_environment_is_replaced() -> None:
    assert environment({"RANK": "77", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "other"}) == EXPECTED


IN_A_JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "3",
    "SLURM_TASKS_PER_NODE": "1(x3)",
    "SLURM_CPUS_ON_NODE": "8",
}


def slurm_variables(mode: str, assignment: Assignment, inherited: dict[str, str] = IN_A_JOB) -> dict[str, str]:
    found = worker_environment(inherited, replace(FACTS, slurm_env=mode), assignment, 1, "/tmp/rec")
    return {name: value for name, value in found.items() if name.startswith("SLURM_")}


def test_a_rank_has_slurms_variables_of_a_task_on_the_nodes_of_its_round() -> None:
    # The spare n3 has taken the place of n1, so that the order is not Slurm's.
    part = Assignment(3, "12.1", 1, 2, 2, 2, 4, Master("n3", 1), 2, 4, nodes=("n3", "n2"))
    found = slurm_variables("task", part)
    assert found == {
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"), "n[3,2]"),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), "2"),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), "4"),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), "2(x2)"),
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_GTIDS": "2,3",
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
        "SLURM_CPUS_ON_NODE": "8",
    }
    # ftslurm itself reads them in a rank.
    job = from_environ({**found, "SLURMD_NODENAME": "n2"})
    assert job is not None
    assert (job.procid, job.node_list) == (3, ("n3", "n2"))
    # The agents of --local-nodes have names of their own.
    local = slurm_variables("task", replace(part, nodes=("local0", "local1")))
    assert (local["SLURM_PROCID"], local["SLURM_JOB_NODELIST"]) == ("3", "n[1-3]")
    in_order = slurm_variables("task", replace(part, nodes=("n1", "n2")))
    assert in_order["SLURM_STEP_NODELIST"] == "n[1-2]"


def test_slurms_variables_can_stay_those_of_the_step_or_of_the_job_alone() -> None:
    assert slurm_variables("step", ASSIGNMENT) == IN_A_JOB
    kept = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    assert slurm_variables("none", ASSIGNMENT) == {name: IN_A_JOB[name] for name in (*kept, "SLURM_CPUS_ON_NODE")}
    assert slurm_variables("task", ASSIGNMENT, {}) == {}


@pytest.mark.parametrize("mode", ["task", "step", "none"])
def test_a_standby_knows_nothing_of_slurms_tasks_that_its_round_could_change(mode: str) -> None:
    facts = replace(FACTS, slurm_env=mode)
    whole = worker_environment(IN_A_JOB, facts, ASSIGNMENT, 1, "/tmp/rec")
    assert standby_environment(IN_A_JOB, facts, 2, 1).items() <= whole.items()


def test_the_ranks_of_a_role_are_counted_over_the_nodes_of_that_role() -> None:
    one_of_two = replace(ASSIGNMENT, first_role_rank=0, role_world_size=2)
    found = environment({}, one_of_two)
    assert (found["ROLE_RANK"], found["ROLE_WORLD_SIZE"], found["RANK"], found["WORLD_SIZE"]) == ("1", "2", "4", "5")


@pytest.mark.parametrize(("visible", "own"), [(None, "1"), ("4, 7", "7"), ("MIG-a,MIG-b", "MIG-b")])
def test_with_a_virtual_local_rank_a_worker_has_its_own_device_only(visible: str | None, own: str) -> None:
    inherited = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = worker_environment(inherited, replace(FACTS, virtual_local_rank=True), ASSIGNMENT, 1, "/tmp/rec")
    assert found == EXPECTED | {"LOCAL_RANK": "0", "FTSLURM_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": own}
    # By what else is its own: heartbeats and records.
    assert identity(found)["local_rank"] == 1


def test_chosen_signals_count_more_than_inherited_ones() -> None:
    facts = replace(FACTS, signals="SIGTERM,SIGUSR1")
    inherited = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM"}
    assert environment(inherited)["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM"
    found = worker_environment(inherited, facts, ASSIGNMENT, 1, "/tmp/rec")
    assert found["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1"


def test_the_local_rank_in_an_argument_is_replaced_as_torchrun_does() -> None:
    arguments = ("--id=${local_rank}", "$local_rank.txt", "$$a ${other} $", "plain")
    assert substituted(arguments, 3) == ("--id=3", "3.txt", "$a ${other} $", "plain")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [(3, 3), (3, 0), (3, 0)]),
        ("-r 3", [(3, 0), (3, 0), (3, 0)]),
        ("-r 1", [(1, 0), (1, 0), (1, 0)]),
        ("-t 3", [(3, 3), (3, 3), (3, 3)]),
        ("-t 1:1", [(3, 0), (3, 1), (3, 0)]),
        ("-r 0 -t 3", [(3, 3), (3, 3), (3, 3)]),
        ("-r 2 -t 0:1", [(3, 1), (2, 0), (2, 0)]),
        ("--local-ranks-filter 0,2", [(3, 3), (3, 0), (3, 3)]),
        ("--local-ranks-filter 1 -t 1", [(3, 0), (3, 1), (3, 0)]),
        ("--local-ranks-filter 1 -r 0", [(3, 0), (0, 0), (3, 0)]),
    ],
)
def test_which_streams_go_to_files_and_which_are_shown(line: str, expected: list[tuple[int, int]]) -> None:
    output = parse_run([*line.split(), "train.py"], {}).output
    assert [output_of(output, rank, rank) for rank in range(3)] == expected


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"])
def test_what_the_user_has_set_stays(name: str) -> None:
    assert environment({name: "8"})[name] == "8"


def test_a_single_worker_on_a_node_may_use_all_threads() -> None:
    single = Assignment(1, "12.0", 0, 1, 0, 1, 1, Master("n1", 1), 0, 3)
    assert "OMP_NUM_THREADS" not in environment({}, single, 0)


def test_the_agents_own_options_are_not_handed_on() -> None:
    inherited = {"FTSLURM_NNODES": "2", "FTSLURM__LOCAL_NODE": "0/2", "FTSLURM_SHARED_DIR": "/s", "FTSLURMISH": "x"}
    assert environment(inherited) == EXPECTED | {"FTSLURM_SHARED_DIR": "/s", "FTSLURMISH": "x"}


def test_a_standby_has_of_the_workers_environment_what_no_round_can_change() -> None:
    inherited = {"PATH": "/bin", "FTSLURM_NNODES": "2", **dict.fromkeys(OF_THE_ROUND, "from another launcher")}
    known, whole = standby_environment(inherited, FACTS, 2, 1), environment(inherited)
    assert known.items() <= whole.items()
    later = {name for name in whole if name not in known}
    ours = {"FTSLURM_ATTEMPT", "FTSLURM_ROUND", "FTSLURM_RECORD_DIR"}
    assert later == OF_THE_ROUND | ours


def test_a_standbys_environment_has_what_to_import_and_what_it_will_run() -> None:
    program = Program("script", "train.py", ("--standby", "x"), "/venv/python")
    command = worker_command(program, 42, None, None, ("--standby", "torch,a.b"))
    assert command[3:] == ["--parent", "42", "--standby", "torch,a.b", "--script", "train.py", "--", "--standby", "x"]


@pytest.mark.parametrize("kind", ["script", "module", "exec"])
def test_a_worker_is_started_through_ftslurm_with_its_arguments_untouched(kind: str) -> None:
    program = Program(kind, "train", ("--", "--parent", "1"), "/venv/python")
    command = worker_command(program, 42, "/l/stdout.log", None)
    assert command[:2] == ["/venv/python", "-u"]
    assert command[2].endswith("/ftslurm/boot/worker.py")
    assert os.path.isfile(command[2])
    assert command[command.index("--parent") + 1] == "42"
    assert command[command.index("--log-stdout") + 1] == "/l/stdout.log"
    assert "--log-stderr" not in command
    assert command[-6:] == [f"--{kind}", "train", "--", "--", "--parent", "1"]


@pytest.mark.parametrize(
    ("kind", "typed"),
    [("script", ["py", "t", "-x"]), ("module", ["py", "-m", "t", "-x"]), ("exec", ["t", "-x"])],
)
def test_for_people_the_command_is_what_they_would_type(kind: str, typed: list[str]) -> None:
    assert list(program_argv(Program(kind, "t", ("-x",), "py"))) == typed


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("3", 3), ("0:3", {0: 3}), ("0:1,2:2", {0: 1, 2: 2}), (" 1 : 2 ", {1: 2}), ("1:0", {1: 0})],
)
def test_streams_are_chosen_as_torchrun_does(text: str, value: object) -> None:
    assert parse_streams("--tee", text) == value


@pytest.mark.parametrize("text", ["", "4", "-1", "all", "0:4", "0:", ":1", "0:1,", "0-1:3", "²:1", "9" * 5000 + ":1"])
def test_wrong_streams_are_named_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--tee .*expected 0, 1, 2 or 3 \(none, stdout, stderr, both\), or like"):
        parse_streams("--tee", text)


def test_a_rank_that_is_not_named_has_no_stream() -> None:
    assert [streams_of({1: 3}, local) for local in (0, 1)] == [0, 3]
    assert [streams_of(2, local) for local in (0, 1)] == [2, 2]
