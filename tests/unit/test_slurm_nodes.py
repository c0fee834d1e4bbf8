"""What Slurm is asked of nodes: which a partition has, which a job is to avoid, and to drain one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ftslurm.slurm.commands import CommandSlurm
from ftslurm.slurm.errors import SlurmOutputError, SlurmRefused, SlurmTimeout, SlurmUnreachable
from ftslurm.slurm.facts import NodeFacts
from ftslurm.slurm.output import parse_job_records, parse_node, parse_partition_nodes
from ftslurm.slurm.run_command import Answer

# scontrol show node -o, 22.05, shortened in the middle.
NODE = "NodeName=c3 Arch=x86_64 NodeAddr=127.0.0.1 OS=Linux 6.1 #1 SMP State={} Partitions=lab CurrentWatts=0{}\n"


class Scripted:
    """Answers commands in order and remembers them."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        self.commands.append(tuple(command))
        return self.answers.pop(0)


def node(state: str, reason: str = "") -> Answer:
    return Answer(0, NODE.format(state, f" Reason={reason}" if reason else ""), "")


DONE = Answer(0, "", "")


def test_a_node_in_use_is_drained_with_the_reason_in_one_line() -> None:
    run = Scripted(node("MIXED"), DONE)
    assert CommandSlurm({}, run=run).drain("c3", "ftslurm: GPU 3:\n 2 ECC errors") is None
    assert run.commands == [
        ("scontrol", "show", "node", "-o", "c3"),
        ("scontrol", "update", "NodeName=c3", "State=DRAIN", "Reason=ftslurm: GPU 3: 2 ECC errors"),
    ]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "MIXED+DRAIN", "DOWN", "DOWN*+DRAIN", "DOWN+NOT_RESPONDING", "FAIL"])
def test_a_node_that_is_out_already_keeps_its_state_and_reason(state: str) -> None:
    run = Scripted(node(state, "RAM is being changed [ada@2026-11-21T09:08:06]"))
    answer = CommandSlurm({}, run=run).drain("c3", "ours")
    assert answer == f"c3 is {state} already: RAM is being changed"
    assert len(run.commands) == 1, "nothing was changed"


@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "MIXED+PLANNED", "IDLE+MAINTENANCE+RESERVED", "IDLE*"])
def test_a_note_on_a_node_in_use_is_not_lost(state: str) -> None:
    run = Scripted(node(state, "watch [its] fan [ada@2026-11-21T09:08:06]"), DONE)
    assert CommandSlurm({}, run=run).drain("c3", "ours") is None
    assert run.commands[1][-1] == "Reason=ours (before: watch [its] fan)"


def test_when_a_node_was_booted_is_known_from_slurm() -> None:
    text = NODE.format("ALLOCATED", " BootTime=1795301809 SlurmdStartTime=1795301999")
    assert CommandSlurm({}, run=Scripted(Answer(0, text, ""))).node("c3") == NodeFacts(
        "c3", "ALLOCATED", None, 1795301809 * 10**9
    )
    assert CommandSlurm({}, run=Scripted(Answer(1, "Node c3 not found\n", ""))).node("c3") is None


@pytest.mark.parametrize(
    ("state", "dead"),
    [
        ("ALLOCATED", False),
        ("MIXED+DRAIN", False),
        ("DOWN", True),
        ("DOWN+NOT_RESPONDING", True),
        ("ALLOCATED+NOT_RESPONDING", True),
        ("ALLOCATED*", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
    ],
)
def test_a_node_is_dead_that_slurm_has_given_up_or_cannot_reach(state: str, dead: bool) -> None:
    assert NodeFacts("c3", state, None).is_dead is dead


def test_the_error_of_a_user_without_permission_to_drain_names_the_permitted_ones() -> None:
    run = Scripted(node("IDLE"), Answer(1, "", "slurm_update error: Invalid user id\n"))
    with pytest.raises(SlurmRefused, match="may not drain c3: expected root, SlurmUser or an operator of Slurm"):
        CommandSlurm({}, run=run).drain("c3", "ours")


def test_a_node_that_slurm_does_not_know_is_not_drained() -> None:
    run = Scripted(Answer(1, "Node c3 not found\n", ""))
    with pytest.raises(SlurmRefused, match="Slurm knows no node c3"):
        CommandSlurm({}, run=run).drain("c3", "ours")


@pytest.mark.parametrize("name", ["", "c[1-3]", "ALL,c1", "c1 State=RESUME", "-x"])
def test_only_one_plain_name_can_be_drained(name: str) -> None:
    with pytest.raises(ValueError, match="node"):
        CommandSlurm({}, run=Scripted()).drain(name, "ours")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            Answer(1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)"),
            SlurmUnreachable,
        ),
        (Answer(0, "hello", ""), SlurmOutputError),
    ],
)
def test_a_slurm_that_does_not_answer_is_an_error(answer: Answer, error: type[Exception]) -> None:
    with pytest.raises(error):
        CommandSlurm({}, run=Scripted(answer)).drain("c3", "ours")


def test_a_drain_is_bounded() -> None:
    def run(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        assert timeout_s == 3
        raise SlurmTimeout("no answer in 3 s")

    with pytest.raises(SlurmTimeout):
        CommandSlurm({}, 3, run).drain("c3", "ours")


def test_a_node_without_a_reason_has_none() -> None:
    assert parse_node(node("IDLE").stdout, "c3") == NodeFacts("c3", "IDLE", None)
    assert parse_node("Node c4 not found\n", "c4") is None


def test_a_job_gets_its_whole_list_of_nodes_to_avoid() -> None:
    run = Scripted(DONE, DONE)
    slurm = CommandSlurm({}, run=run)
    slurm.exclude_nodes("12_3", ["n1", "n2", "n3", "a"])
    slurm.exclude_nodes("7", [])
    assert run.commands == [
        ("scontrol", "update", "JobId=12_3", "ExcNodeList=n[1-3],a"),
        ("scontrol", "update", "JobId=7", "ExcNodeList="),
    ]


def test_a_running_job_cannot_avoid_nodes() -> None:
    run = Scripted(Answer(1, "", "Job is no longer pending execution for job 10\n"))
    with pytest.raises(SlurmRefused, match="no longer pending"):
        CommandSlurm({}, run=run).exclude_nodes("10", ["n1"])


def test_the_nodes_of_a_partition_are_reported_with_their_states() -> None:
    run = Scripted(Answer(0, "c1|completing\nc2|idle\nc3|idle*\n", ""))
    assert CommandSlurm({}, run=run).partition_nodes("lab") == {"c1": "completing", "c2": "idle", "c3": "idle*"}
    assert run.commands == [("sinfo", "-h", "-N", "-p", "lab", "-o", "%N|%T")]
    assert parse_partition_nodes("") == {}
    with pytest.raises(SlurmOutputError):
        parse_partition_nodes("hello\n")
    with pytest.raises(ValueError, match="partition name"):
        CommandSlurm({}, run=run).partition_nodes("--all")


def test_what_a_job_avoids_and_needs_is_read() -> None:
    text = (Path(__file__).parent / "slurm_outputs" / "job-array-22.05.txt").read_text()
    text = text.replace("ExcNodeList=(null)", "ExcNodeList=c[1,3]")
    waiting = parse_job_records(text)[0]
    assert (waiting.partition, waiting.num_nodes, waiting.excluded) == ("lab", 1, ("c1", "c3"))


def test_a_job_that_completes_needs_as_many_nodes_as_it_was_given_not_as_still_do() -> None:
    text = (
        "JobId=7 JobName=x\n   JobState=COMPLETING\n   NumNodes=1 NumCPUs=8\n   TRES=cpu=8,mem=4000M,node=4,billing=8\n"
    )
    assert parse_job_records(text)[0].num_nodes == 4
    assert parse_job_records(text.replace("TRES", "ReqTRES"))[0].num_nodes == 4
