"""The job as Slurm's environment variables describe it; the values are those of a real Slurm 22.05."""

from __future__ import annotations

import dataclasses

import pytest

from ftslurm.slurm.environment import SlurmEnvironmentError, SlurmJob, from_environ

BATCH = {
    "SLURMD_NODENAME": "c1",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_CPUS_ON_NODE": "2",
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NAME": "my job=1 x",
    "SLURM_JOB_NODELIST": "c[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_PARTITION": "lab",
    "SLURM_JOB_USER": "ada",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "0",
    "SLURM_SUBMIT_DIR": "/home/ada",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
STEP = BATCH | {
    "SLURMD_NODENAME": "c2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_GPUS_ON_NODE": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "c[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
ONE_NODE_STEP = STEP | {
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "7",
    "SLURM_STEP_NODELIST": "c2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
SALLOC = {
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "interactive",
    "SLURM_JOB_NODELIST": "c[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "2,1",
    "USER": "ada",
}


def read(env: dict[str, str], **changes: str | None) -> SlurmJob:
    merged = {**env, **changes}
    job = from_environ({name: value for name, value in merged.items() if value is not None})
    assert job is not None
    return job


@pytest.mark.parametrize("env", [{}, {"SLURM_CONF": "/etc/slurm.conf"}, {"SLURM_JOB_ID": ""}])
def test_outside_a_job_there_is_no_job(env: dict[str, str]) -> None:
    assert from_environ(env) is None


def test_a_task_of_srun_knows_everything() -> None:
    assert read(STEP) == SlurmJob(
        job_id="12",
        restart_count=0,
        step_id="0",
        node_name="c2",
        node_id=1,
        node_list=("c1", "c2"),
        num_nodes=2,
        procid=3,
        localid=1,
        ntasks_per_node=2,
        job_name="my job=1 x",
        partition="lab",
        cluster="lab",
        array_job_id=None,
        array_task_id=None,
        submit_dir="/home/ada",
        cpus_on_node=2,
        gpus_on_node=4,
        user="ada",
    )


def test_the_facts_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read(STEP).job_id = "13"  # type: ignore[misc]


def test_the_batch_script_is_in_no_step_and_has_the_jobs_nodes() -> None:
    job = read(BATCH)
    assert not job.in_step
    assert (job.node_name, job.node_id, job.node_list) == ("c1", 0, ("c1", "c2"))
    assert job.gpus_on_node is None


def test_a_salloc_shell_is_on_no_node_of_the_job() -> None:
    job = read(SALLOC)
    assert not job.in_step
    assert (job.node_name, job.node_id, job.procid) == (None, None, None)
    assert job.node_list == ("c1", "c2")
    assert job.user == "ada"
    assert job.ntasks_per_node is None  # 2,1: not the same everywhere


def test_an_interactive_salloc_shell_on_a_node_is_no_srun_task_and_has_all_nodes() -> None:
    step = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NODELIST": "c1", "SLURM_STEP_NUM_NODES": "1"}
    job = read(BATCH, **step)
    assert not job.in_step
    assert job.node_list == ("c1", "c2")


def test_a_step_on_some_of_the_jobs_nodes_has_only_these() -> None:
    job = read(ONE_NODE_STEP)
    assert job.in_step
    assert (job.node_list, job.num_nodes, job.ntasks_per_node) == (("c2",), 1, 1)


def test_a_job_submitted_inside_a_step_does_not_take_over_that_step() -> None:
    stale = {"SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "c2", "SLURM_STEP_NUM_NODES": "1"}
    job = read(BATCH, **stale)
    assert not job.in_step
    assert (job.node_name, job.node_list) == ("c1", ("c1", "c2"))
    same_node = read(BATCH, **{**stale, "SLURM_STEP_NODELIST": "c1"})
    assert not same_node.in_step
    assert same_node.node_list == ("c1", "c2")


def test_the_number_of_nodes_is_the_lists_because_the_variable_goes_stale_after_a_node_loss() -> None:
    assert read(STEP, SLURM_JOB_NUM_NODES="3").num_nodes == 2
    assert read({"SLURM_JOB_ID": "1"}).num_nodes is None
    assert read({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3"}).num_nodes == 3


def test_an_attempt_is_the_job_and_how_often_it_was_requeued() -> None:
    assert read(STEP).attempt == "12.0"
    assert read(STEP, SLURM_RESTART_COUNT="2").attempt == "12.2"


def test_the_default_run_id_is_the_jobs_and_for_arrays_the_tasks() -> None:
    assert read(STEP).run_id == "job-12"
    array = read(STEP, SLURM_ARRAY_JOB_ID="9", SLURM_ARRAY_TASK_ID="0")
    assert (array.run_id, array.attempt, array.scontrol_id) == ("job-9_0", "12.0", "9_0")
    assert read(STEP, SLURM_RESTART_COUNT="5").run_id == "job-12"


@pytest.mark.parametrize(
    ("tasks", "node_id", "expected"),
    [
        ("2(x2)", "1", 2),
        ("2,1", "0", 2),
        ("2,1", "1", 1),
        ("3(x1),1(x1)", "1", 1),
        ("4(x9)", None, 4),
        ("2,1", None, None),
    ],
)
def test_the_tasks_per_node_are_this_nodes(tasks: str, node_id: str | None, expected: int | None) -> None:
    assert read(STEP, SLURM_STEP_TASKS_PER_NODE=tasks, SLURM_NODEID=node_id).ntasks_per_node == expected


def test_without_a_count_of_slurms_own_the_requested_tasks_per_node_are_taken() -> None:
    assert read(SALLOC, SLURM_TASKS_PER_NODE=None, SLURM_NTASKS_PER_NODE="8").ntasks_per_node == 8


def test_the_cluster_is_also_found_behind_a_clients_choice() -> None:
    job = read(STEP, SLURM_CLUSTER_NAME=None, SLURM_WORKING_CLUSTER="big:127.0.0.1:17000:9728:109")
    assert job.cluster == "big"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SLURM_JOB_ID", "abc", "a whole number"),
        ("SLURM_JOB_ID", "-1", "a whole number"),
        ("SLURM_JOB_ID", "../../etc", "a whole number"),
        ("SLURM_JOB_ID", "\u0661", "a whole number"),
        ("SLURM_JOB_ID", "9" * 5000, "a whole number"),
        ("SLURM_NODEID", "first", "a whole number"),
        ("SLURM_NODEID", "2", "a number below 2"),
        ("SLURM_RESTART_COUNT", "1.5", "a whole number"),
        ("SLURM_PROCID", "x", "a whole number"),
        ("SLURM_LOCALID", " 1", "a whole number"),
        ("SLURM_STEP_ID", "batch", "a whole number"),
        ("SLURM_ARRAY_TASK_ID", "3-5", "a whole number"),
        ("SLURM_CPUS_ON_NODE", "many", "a whole number"),
        ("SLURM_GPUS_ON_NODE", "gpu:4", "a whole number"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(y2)", "task counts"),
        ("SLURMD_NODENAME", "login1", "one of the nodes in SLURM_JOB_NODELIST='c[1-2]'"),
        ("SLURM_STEP_NODELIST", "c[1-", "']' to close"),
        ("SLURM_JOB_NODELIST", "c[2-1]", "does not run backwards"),
    ],
)
def test_a_malformed_variable_is_named_and_its_value_too(name: str, value: str, expected: str) -> None:
    env = STEP if name != "SLURM_JOB_NODELIST" else BATCH
    with pytest.raises(SlurmEnvironmentError) as caught:
        read(env, **{name: value})
    message = str(caught.value)
    assert message.startswith(name)
    assert ascii(value)[1:-1][:20] in message
    assert expected in message
    assert "unset the SLURM_ variables" in message
    assert "\n" not in message
    assert len(message) < 600
