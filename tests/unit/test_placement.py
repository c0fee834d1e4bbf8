"""Where an agent stands, by Slurm's environment (values of a real Slurm 22.05) or without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.agent.option_groups import PlacementOptions
from ftslurm.agent.options import parse_run
from ftslurm.agent.placement import LOCAL_ATTEMPT, LOCAL_NODE, Placement, local_environment, place, shared_directory
from ftslurm.terminal import UsageError

BATCH = {
    "SLURMD_NODENAME": "c1",
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "c[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_SUBMIT_DIR": "/home/ada",
    "SLURM_TASKS_PER_NODE": "1(x3)",
}
STEP = BATCH | {
    "SLURMD_NODENAME": "c2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "c[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}
ONE_NODE = BATCH | {"SLURM_JOB_NODELIST": "c1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}
ONE_NODE["SLURM_TASKS_PER_NODE"] = "1"
SALLOC = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "c[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
    "SLURM_SUBMIT_DIR": "/home/ada",
}


def options(*arguments: str) -> PlacementOptions:
    return parse_run([*arguments, "train.py"], {}).placement


def placed(environment: dict[str, str], *arguments: str, batch: bool = False) -> Placement:
    return place(options(*arguments), environment, "/work", "host.example.org", "20260101-000000-42", batch)


def refusal(environment: dict[str, str], *arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        placed(environment, *arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Under Slurm


def test_a_task_of_a_step_has_its_place_in_slurms_order() -> None:
    place_ = placed(STEP)
    assert (place_.run_id, place_.run_dir) == ("job-12", "/home/ada/ftslurm-runs/job-12")
    assert (place_.attempt, place_.node, place_.position) == ("12.0", "c2", 1)
    assert place_.expected == ("c1", "c2", "c3")
    assert (place_.min_nodes, place_.max_nodes, place_.address) == (3, 3, "c2")
    assert place_.job is not None


def test_a_requeued_job_is_another_attempt_of_the_same_run() -> None:
    place_ = placed(STEP | {"SLURM_RESTART_COUNT": "2"})
    assert (place_.run_id, place_.attempt) == ("job-12", "12.2")


def test_each_task_of_an_array_is_a_run_of_its_own() -> None:
    array = {"SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "5"}
    place_ = placed(STEP | array)
    assert (place_.run_id, place_.attempt) == ("job-11_5", "12.0")


def test_a_batch_script_on_one_node_needs_no_srun() -> None:
    place_ = placed(ONE_NODE)
    assert (place_.node, place_.expected, place_.address) == ("c1", ("c1",), "127.0.0.1")


@pytest.mark.parametrize("environment", [BATCH, SALLOC])
def test_several_nodes_without_srun_are_refused_with_the_cure(environment: dict[str, str]) -> None:
    message = refusal(environment)
    assert "this is not a task on each of them; start it with ftsrun" in message


@pytest.mark.parametrize(("environment", "node"), [(BATCH, "c1"), (SALLOC, "host")])
def test_a_check_from_the_batch_script_or_salloc_is_allowed_for_all_nodes(
    environment: dict[str, str], node: str
) -> None:
    place_ = placed(environment, batch=True)
    assert (place_.node, place_.expected) == (node, place_.job.node_list)
    assert place_.run_id == f"job-{environment['SLURM_JOB_ID']}"


@pytest.mark.parametrize("localid", ["0", "1"])
def test_several_tasks_on_a_node_are_all_refused(localid: str) -> None:
    twice = STEP | {"SLURM_LOCALID": localid, "SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_TASKS_PER_NODE": "2(x3)"}
    assert "expected srun --ntasks-per-node=1" in refusal(twice)


def test_a_batch_script_that_asked_for_several_tasks_may_start_one_agent_on_its_node() -> None:
    assert placed(ONE_NODE | {"SLURM_TASKS_PER_NODE": "4", "SLURM_NTASKS_PER_NODE": "4"}).node == "c1"


def test_fewer_nodes_may_be_enough_and_more_may_be_allowed() -> None:
    place_ = placed(STEP, "--nnodes", "2:5")
    assert (place_.min_nodes, place_.max_nodes) == (2, 5)


def test_more_nodes_than_there_are_is_refused() -> None:
    assert "--nnodes 4: job 12 has only 3 nodes here (c1,c2,c3)" in refusal(STEP, "--nnodes", "4")


def test_a_chosen_address_is_taken() -> None:
    assert placed(STEP, "--local-addr", "10.0.0.2").address == "10.0.0.2"


def test_each_node_may_have_an_address_of_its_own() -> None:
    addresses = ("--local-addr", "c1=10.0.0.1,c2=10.0.0.2, c3=10.0.0.3")
    assert placed(STEP, *addresses).address == "10.0.0.2"
    assert placed(BATCH, *addresses, batch=True).expected == ("c1", "c2", "c3")
    missing = "no address for node c2; expected NODE=ADDRESS for each node"
    assert missing in refusal(STEP, "--local-addr", "c1=10.0.0.1")


def test_ftsrun_refuses_one_address_for_several_nodes() -> None:
    with pytest.raises(UsageError, match=r"--local-addr 10\.0\.0\.2: one address for 3 nodes; expected --interface"):
        placed(BATCH, "--local-addr", "10.0.0.2", batch=True)
    assert placed(ONE_NODE, "--local-addr", "10.0.0.2", batch=True).address == "10.0.0.2"


def test_a_chosen_run_id_makes_a_run_over_several_jobs() -> None:
    place_ = placed(STEP, "--rdzv-id", "big-one", "--shared-dir", "/s")
    assert (place_.run_id, place_.run_dir, place_.attempt) == ("big-one", "/s/big-one", "12.0")


def test_the_name_of_the_directory_of_exclusions_is_no_name_for_a_run() -> None:
    assert "that name is reserved for the records of excluded nodes" in refusal(STEP, "--rdzv-id", "excluded-7")


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "two words", "x" * 200])
def test_a_run_id_that_is_no_safe_name_is_refused(name: str) -> None:
    assert refusal(STEP, "--rdzv-id", name).startswith("--rdzv-id")


def test_a_value_that_slurm_would_not_set_is_refused_with_the_variables_name() -> None:
    assert "SLURM_NODEID" in refusal(STEP | {"SLURM_NODEID": "x"})
    assert "SLURM_JOB_NODELIST" in refusal(BATCH | {"SLURM_JOB_NODELIST": "c[1-"})


# Without Slurm


def test_without_slurm_it_is_one_node_and_a_run_of_its_own() -> None:
    place_ = placed({})
    assert place_.run_id == "local-20260101-000000-42"
    assert (place_.run_dir, place_.attempt) == (
        "/work/ftslurm-runs/local-20260101-000000-42",
        "local-20260101-000000-42.0",
    )
    assert (place_.node, place_.expected, place_.address) == ("host", ("host",), "127.0.0.1")
    assert (place_.min_nodes, place_.max_nodes, place_.job) == (1, 1, None)


def test_without_slurm_several_nodes_are_refused_with_the_cure() -> None:
    message = refusal({}, "--nnodes", "2")
    assert "--local-nodes 2" in message
    assert placed({}, "--nnodes", "1:4").min_nodes == 1


def test_a_host_name_that_is_no_safe_name_is_refused() -> None:
    with pytest.raises(UsageError, match="host name"):
        place(options(), {}, "/work", "", "u")


@pytest.mark.parametrize("index", [0, 1, 2])
def test_local_agents_have_names_and_places_of_their_own_and_one_attempt(index: int) -> None:
    environment = STEP | {LOCAL_NODE: f"{index}/3", LOCAL_ATTEMPT: "local-x.0"}
    place_ = placed(environment, "--local-nodes", "3", "--rdzv-id", "mine")
    assert (place_.node, place_.position, place_.attempt) == (f"local{index}", index, "local-x.0")
    assert place_.expected == ("local0", "local1", "local2")
    assert (place_.min_nodes, place_.max_nodes, place_.address, place_.job) == (3, 3, "127.0.0.1", None)
    assert place_.run_dir == "/work/ftslurm-runs/mine"


def test_local_agents_take_a_range_of_nodes() -> None:
    place_ = placed({LOCAL_NODE: "0/3", LOCAL_ATTEMPT: "local-x.0"}, "--nnodes", "2:3", "--local-nodes", "3")
    assert (place_.min_nodes, place_.max_nodes) == (2, 3)


# The shared directory


def test_run_directories_lie_where_the_job_was_submitted_unless_chosen() -> None:
    job = placed(STEP).job
    assert shared_directory(None, job, "/work") == "/home/ada/ftslurm-runs"
    assert shared_directory("/s/../t/", job, "/work") == "/t"
    assert shared_directory(None, None, "/work") == "/work/ftslurm-runs"
    assert shared_directory("runs", None, "/work") == "/work/runs"
    assert shared_directory(None, replace(job, submit_dir=None), "/work") == "/work/ftslurm-runs"


def test_torchruns_variable_names_a_local_run() -> None:
    for named in ({"PET_RDZV_ID": "x"}, {"FTSLURM_RDZV_ID": "x"}):
        assert "FTSLURM_RDZV_ID" not in local_environment("local-1", 2, named)
    assert local_environment("local-1", 2, {})["FTSLURM_RDZV_ID"] == "local-1"
