"""`--on-event` on a real Slurm: nodes die, the batch host too, the job is requeued; each event is followed once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.conftest import Job, Lab
from tests.slurm.test_job_end import QUICK, TRAIN, ranks, state

HOOK = """\
#!/bin/sh
cat >"followed/$FTSLURM_EVENT.$FTSLURM_ATTEMPT.${FTSLURM_ROUND:-0}.$(hostname).$$.json"
"""


@pytest.fixture
def place(work: Path) -> Path:
    (work / "train.py").write_text(TRAIN)
    (work / "hook.sh").write_text(HOOK)
    (work / "hook.sh").chmod(0o755)
    (work / "followed").mkdir()
    return work


def followed(place: Path) -> list[str]:
    """Return the events, each as often as the command was run for it, with attempt's restart and round."""
    names = [path.name.split(".") for path in (place / "followed").glob("*.json")]
    return sorted(f"{event} {restart.partition('+')[0]} {round_}" for event, _, restart, round_, *_ in names)


def submit(lab: Lab, place: Path, *options: str) -> Job:
    line = f"exec ftsrun {QUICK} --nnodes 2 --on-event ./hook.sh train.py"
    job = lab.submit(place, line, *options, nodes=3)
    lab.until(lambda: len(ranks(place, 1)) == 2, 40, job.explain)
    return job


def test_the_death_of_the_coordinators_node_is_followed_once_by_its_successor(lab: Lab, place: Path) -> None:
    job = submit(lab, place)
    gone = state(job)["coordinator"]["node"]
    # The death of a coordinator that is the spare ends no round.
    ends = gone in ranks(place, 1).values()
    lab.lab("kill-node", gone)
    try:
        lab.until(lambda: state(job)["coordinator"]["node"] != gone, 40, job.explain)
        lab.until(lambda: len(ranks(place, 2 if ends else 1)) == 2, 60, job.explain)
        (place / "finish").touch()
        job.wait(90)
        expected = ["end 0 0", *(["failure 0 1", "restart 0 2"] if ends else [])]
        # Without its batch host the job ends by an agent, which makes the report and follows the end.
        lab.until(lambda: followed(place) == expected, 60, lambda: f"{followed(place)}\n{job.explain()}")
    finally:
        lab.lab("revive-node", gone)


def test_a_dead_batch_host_takes_no_event_along(lab: Lab, place: Path) -> None:
    job = submit(lab, place)
    gone = job.facts()["BatchHost"]
    lab.lab("kill-node", gone)
    try:
        lab.until(lambda: len(ranks(place, 2)) == 2, 60, job.explain)
        (place / "finish").touch()
        job.wait(90)
        expected = ["end 0 0", "failure 0 1", "restart 0 2"]
        lab.until(lambda: followed(place) == expected, 60, lambda: f"{followed(place)}\n{job.explain()}")
    finally:
        lab.lab("revive-node", gone)


def test_a_requeue_is_a_stop_and_an_end_of_one_attempt_and_an_event_of_the_next(lab: Lab, place: Path) -> None:
    job = submit(lab, place, "--requeue")
    lab.command("scontrol", "requeue", job.id)
    lab.until(lambda: job.facts().get("Restarts") == "1" and job.state == "PENDING", 60, job.explain)
    for path in place.glob("up.*"):
        path.unlink()
    lab.command("scontrol", "update", f"jobid={job.id}", "starttime=now")
    lab.until(lambda: bool(list(place.glob("up.*"))), 90, job.explain)
    (place / "finish").touch()
    assert job.wait(60) == "COMPLETED", job.explain()
    assert followed(place) == ["end 0 0", "end 1 0", "requeue 1 0", "stop 0 0"]
    (stop,) = (place / "followed").glob("stop.*")
    assert json.loads(stop.read_text())["event"]["text"].startswith("stopped")
