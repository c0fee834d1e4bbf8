"""The new submission of a job's script: which options it has, and how the new job finds its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ftslurm.slurm.errors import SlurmOutputError, SlurmRefused
from ftslurm.slurm.resubmission import Resubmission, fields_of, options_of
from ftslurm.slurm.run_command import Answer
from ftslurm.slurm.sbatch import comment_of_run, run_of_comment, submit_environment

RECORD = """\
JobId=25 JobName=my job=x
   UserId=u(1) GroupId=u(1) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=physics QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:00:03 TimeLimit=01:00:00 TimeMin=N/A
   Partition=gpu AllocNode:Sid=localhost:31399
   ReqNodeList=(null) ExcNodeList=n[7-8]
   NumNodes=4-4 NumCPUs=8 NumTasks=4 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   MinCPUsNode=2 MinMemoryNode=0 MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)
   Command=/home/u/job.sh a b
   WorkDir=/home/u/JobState=x
   Comment=for Anna ftslurm-run=job-3
   StdErr=/home/u/100%.out
   StdIn=/dev/null
   StdOut=/home/u/100%.out
   TresPerNode=gres:gpu:8
"""


def test_the_options_of_the_command_line_are_taken_from_slurms_record() -> None:
    assert options_of(fields_of(RECORD), "job-25") == [
        "--job-name=my job=x",
        "--partition=gpu",
        "--account=physics",
        "--time=01:00:00",
        "--cpus-per-task=2",
        "--exclude=n[7-8]",
        "--nodes=4",
        "--gres=gpu:8",
        "--exclusive",
        "--chdir=/home/u/JobState=x",
        "--output=/home/u/100%%.out",
        "--comment=for Anna ftslurm-run=job-25",
        "--open-mode=append",
        "--no-kill",
    ]


def test_a_job_that_has_lost_nodes_is_submitted_with_all_that_it_had() -> None:
    text = RECORD.replace("NumNodes=4-4", "NumNodes=3")
    assert "--nodes=4" in options_of(fields_of(text), "job-25", 4)


def test_one_task_of_an_array_remains_that_task() -> None:
    text = RECORD.replace("JobId=25 ", "JobId=25 ArrayJobId=20 ArrayTaskId=3 ")
    assert "--array=3" in options_of(fields_of(text), "job-20_3")


@pytest.mark.parametrize(
    ("comment", "run"),
    [
        (None, None),
        ("mine", None),
        ("ftslurm-run=job-25", "job-25"),
        ("x ftslurm-run=a.b y", "a.b"),
        ("ftslurm-run=../x", None),
        ("noftslurm-run=a", None),
    ],
)
def test_a_comment_names_a_run(comment: str | None, run: str | None) -> None:
    assert run_of_comment(comment) == run


def test_a_job_names_one_run() -> None:
    comment = comment_of_run(comment_of_run("mine", "a"), "b")
    assert comment == "mine ftslurm-run=b" and run_of_comment(comment) == "b"


def test_the_new_job_inherits_nothing_of_the_old_ones() -> None:
    env = {"PATH": "p", "SLURM_JOB_ID": "25", "SLURM_CONF": "c", "SLURMD_NODENAME": "n", "FTSLURM__START": "s"}
    ours = {"FTSLURM_RDZV_ID": "job-25", "FTSLURM_SUPERVISOR": "1", "FTSLURM_SHARED_DIR": "/runs", "FTSLURM_GRACE": "3"}
    assert submit_environment({**env, **ours}) == {
        "PATH": "p",
        "SLURM_CONF": "c",
        "FTSLURM_SHARED_DIR": "/runs",
        "FTSLURM_GRACE": "3",
    }


NEW = Answer(0, "26;cluster\n", "")


class Slurm:
    """Answers of Slurm's commands; `submitted` has what sbatch was given."""

    def __init__(self, answer: Answer = NEW, usage: str = "") -> None:
        self.answer, self.usage = answer, usage
        self.submitted: list[str] = []
        self.env: dict[str, str] = {}
        self.script = ""
        self.stored = "#!/bin/bash\nexec ftsrun train.py\n"

    def run(self, command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        if command[:3] == ("scontrol", "show", "job"):
            return Answer(0, RECORD, "")
        if command[:3] == ("scontrol", "write", "batch_script"):
            return Answer(0, self.stored, "")
        if command == ("sbatch", "--help"):
            return Answer(0, self.usage, "")
        self.submitted, self.env = list(command), dict(env)
        self.script = Path(next(argument for argument in command if argument.endswith(".sbatch"))).read_text()
        return self.answer


def test_the_stored_script_starts_after_the_end_of_the_old_job() -> None:
    slurm = Slurm()
    assert Resubmission({}, run=slurm.run).submit("25", "job-25", 4) == "26"
    assert slurm.script == "#!/bin/bash\nexec ftsrun train.py\n"
    assert "--dependency=afterany:25" in slurm.submitted
    assert slurm.submitted[-2:] == ["a", "b"]


def test_a_job_without_a_script_is_not_submitted_as_an_empty_one() -> None:
    slurm = Slurm()
    slurm.stored = ""
    with pytest.raises(SlurmRefused, match=r"job 25 has no batch script \(salloc\)"):
        Resubmission({}, run=slurm.run).submit("25", "job-25", 4)
    assert slurm.submitted == []


def test_the_new_job_has_the_users_locale() -> None:
    slurm = Slurm()
    Resubmission({"LC_ALL": "de_DE.UTF-8"}, run=slurm.run).submit("25", "job-25", 4)
    assert slurm.env == {"LC_ALL": "de_DE.UTF-8"}


def test_requeues_are_expedited_where_slurm_can_do_that() -> None:
    slurm = Slurm(usage="      --requeue[=expedite]     if set, permit the job to be requeued")
    Resubmission({}, run=slurm.run).submit("25", "job-25", 4)
    assert "--requeue=expedite" in slurm.submitted


def test_a_refusal_of_sbatch_is_an_error_of_one_line() -> None:
    slurm = Slurm(Answer(1, "", "sbatch: error: invalid account\n"))
    with pytest.raises(SlurmRefused, match="invalid account"):
        Resubmission({}, run=slurm.run).submit("25", "job-25", 4)
    with pytest.raises(SlurmOutputError):
        Resubmission({}, run=Slurm(Answer(0, "hello", "")).run).submit("25", "job-25", 4)
