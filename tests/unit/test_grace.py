"""What Slurm's limits leave of the grace that a user asks for."""

from __future__ import annotations

import pytest

from ftslurm.agent.grace import cut_short, short_limit
from ftslurm.slurm.output import parse_partition_grace_s

PARTITION = """\
PartitionName=lab
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=20 Hidden=NO
   OverTimeLimit=NONE PreemptMode={mode}
   State=UP TotalCPUs=12 TotalNodes=3 SelectTypeParameters=NONE
"""


@pytest.mark.parametrize(
    ("mode", "grace_s"), [("REQUEUE", 20), ("CANCEL", 20), ("GANG,SUSPEND", 20), ("OFF", None), ("GANG,OFF", None)]
)
def test_the_grace_of_a_preemption_is_the_partitions_if_its_jobs_are_preempted(mode: str, grace_s: int | None) -> None:
    assert parse_partition_grace_s(PARTITION.format(mode=mode)) == grace_s


def test_a_partition_without_its_settings_has_no_known_grace() -> None:
    assert parse_partition_grace_s("") is None
    assert parse_partition_grace_s("PartitionName=lab PreemptMode=REQUEUE") is None
    assert parse_partition_grace_s("PreemptMode=REQUEUE GraceTime=soon") is None


@pytest.mark.parametrize(("grace_s", "kill_wait_s"), [(None, 30), (60, None), (18, 30), (60, 100)])
def test_a_grace_within_slurms_limits_is_not_mentioned(grace_s: float | None, kill_wait_s: int | None) -> None:
    assert cut_short(grace_s, kill_wait_s, "lab", 20) is None


def test_what_slurm_cuts_short_is_reported_in_one_line() -> None:
    begin = "--grace 120 is cut short by Slurm: ranks have 18 s after scancel or the time limit (of KillWait, 30 s)"
    assert cut_short(120, 30, "lab", None) == begin
    assert cut_short(120, 30, None, 60) == begin
    assert cut_short(120, 30, "lab", 0) == begin
    assert cut_short(120, 30, "lab", 60) == f"{begin}, 1 min 18 s after a preemption (GraceTime 1 min of partition lab)"


def test_a_time_limit_that_is_short_for_a_save_is_reported_in_one_line() -> None:
    assert short_limit(None, 60) == (
        "the time limit of 1 min is too short for a save (1 min): ranks that call ftslurm.should_stop are stopped when "
        "half of the time that they have is over, 30 s before the end"
    )
    assert "too short for --warn-before-end 3600: " in (short_limit(3600.0, 3600) or "")


@pytest.mark.parametrize(("warning_s", "limit_s"), [(None, None), (None, 120), (10.0, 60), (3600.0, None)])
def test_a_time_limit_that_leaves_time_for_the_warning_is_not_mentioned(
    warning_s: float | None, limit_s: int | None
) -> None:
    assert short_limit(warning_s, limit_s) is None
