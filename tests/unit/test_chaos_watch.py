"""What scripts/chaos sees of a job: which of its processes is which, what is stale, when it is stuck; what it reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chaos_histories import good
from chaos_parts.collect import commits, events, read_report, read_state
from chaos_parts.faults import BY_NAME
from chaos_parts.history import Closed, Commit, FirstFailure
from chaos_parts.judge import Miss
from chaos_parts.processes import (
    AGENT,
    FTSRUN,
    GUARDIAN,
    LEFT_BEHIND,
    RANK,
    SRUN,
    STEPD,
    Process,
    left_of_past_rounds,
    roles,
)
from chaos_parts.run_job import ALONE_S, END_S, Sight, stuck
from chaos_parts.strikes import Scene, target_of
from chaos_parts.table import Verdict, job_lines, summary
from sample_runs.builder import RunBuilder

from ftslurm.report import make_report

RUN = "/venv/bin/python3 /venv/bin/ftslurm run --nnodes 4 count.py"
WORKER = "/venv/bin/python3 -u /venv/ftslurm/boot/worker.py --script /c/count.py"


def process(pid: int, parent: int, command: str, name: str = "python3", node: str = "n2", **more: object) -> Process:
    facts: dict[str, object] = {"job": "7"}
    return Process(pid, 0, parent, "S", name, command, node, **(facts | more))  # type: ignore[arg-type]


def a_node(node: str = "n2", first: int = 100, round_: int = 2) -> list[Process]:
    """What runs on a node of a job, and a helper of its agent."""
    of_rank = {"rank": 3, "round": round_}
    return [
        process(first, 1, "slurmstepd: [7.0]", "slurmstepd", node, job=""),
        process(first + 1, first, RUN, node=node),
        process(first + 2, first + 1, RUN, node=node),
        process(first + 3, first + 2, RUN, node=node),
        process(first + 4, first + 2, WORKER, node=node, **of_rank),
        process(first + 5, first + 4, "sleep 1000", "sleep", node, **of_rank),
        process(first + 6, 1, "sleep 1000", "sleep", node, **of_rank),
    ]


def pids(parts: dict[str, list[Process]]) -> dict[str, list[int]]:
    return {part: [one.pid for one in members] for part, members in parts.items() if members}


def test_the_processes_of_a_node_are_known_by_their_parts() -> None:
    expected = {STEPD: [100], GUARDIAN: [101], AGENT: [102], RANK: [104], LEFT_BEHIND: [105, 106]}
    assert pids(roles(a_node(), "7")) == expected


def test_the_batch_script_and_its_srun_are_known_and_its_helpers_are_not_taken_for_them() -> None:
    batch = [
        process(10, 1, "slurmstepd: [7.batch]", "slurmstepd", job=""),
        process(11, 10, "bash /venv/bin/ftsrun count.py", "ftsrun"),
        process(12, 11, "srun --nodes=6 ftslurm run count.py", "srun"),
        process(13, 12, "srun --nodes=6 ftslurm run count.py", "srun"),
        process(14, 11, "bash /venv/bin/ftsrun count.py", "ftsrun"),
    ]
    assert pids(roles(batch, "7")) == {FTSRUN: [11], SRUN: [12]}


def test_another_jobs_processes_and_dead_ones_do_not_count() -> None:
    assert pids(roles(a_node(), "8")) == {}
    assert pids(roles([replace(one, state="Z") for one in a_node()], "7")) == {}


def test_an_agent_whose_guardian_is_dead_is_left_out() -> None:
    orphan = [one for one in a_node() if one.pid != 101]
    assert AGENT not in pids(roles(orphan, "7"))


def test_what_is_left_of_a_past_round_is_stale_only_beside_a_newer_rank_of_its_node() -> None:
    new = process(120, 102, WORKER, rank=3, round=3)
    left = left_of_past_rounds(roles([*a_node(), new], "7"))
    assert sorted(one.pid for one in left) == [104, 105, 106]
    elsewhere = replace(new, node="n3")
    assert left_of_past_rounds(roles([*a_node(), elsewhere], "7")) == []


NODES = ("n1", "n2", "n3")


def scene(*processes: Process, nodes: tuple[str, ...] = NODES, begun: bool = True) -> Scene:
    return Scene("7", roles(processes, "7"), nodes, begun, 2)


def hit(fault: str, choice: float, scene: Scene) -> tuple[str | None, list[int]] | None:
    """Return the node and the processes that a fault would hit."""
    target = target_of(BY_NAME[fault], choice, scene)
    return None if target is None else (target.node, [one.pid for one in target.processes])


def test_the_choice_picks_one_of_those_that_could_be_hit() -> None:
    both = scene(*a_node("n1", 100), *a_node("n2", 200))
    assert [hit("agent-killed", choice, both) for choice in (0.0, 0.49, 0.5, 1.0)] == [
        *(("n1", [102]), ("n1", [102]), ("n2", [202]), ("n2", [202]))
    ]
    assert hit("node-killed", 0.99, both) == ("n3", [])
    assert hit("scancel", 0.5, both) == (None, [])


def test_a_guardian_and_its_own_agent_are_hit_together() -> None:
    assert hit("guardian-and-agent-killed", 0.9, scene(*a_node("n1", 100), *a_node("n2", 200))) == ("n2", [201, 202])


def test_a_rank_of_a_past_round_is_not_hit() -> None:
    assert hit("rank-killed", 0.0, scene(*a_node("n1", 100, round_=1), *a_node("n2", 200, round_=2))) == ("n2", [204])


def test_nothing_is_hit_on_a_node_that_is_down_and_where_nothing_runs() -> None:
    assert hit("agent-killed", 0.0, scene(*a_node("n1", 100), nodes=("n2",))) is None
    assert hit("srun-killed", 0.0, scene(*a_node("n1", 100))) is None
    assert hit("node-killed", 0.0, scene(nodes=())) is None


def test_the_directory_does_not_fail_before_all_nodes_have_published_their_records() -> None:
    for fault in ("directory-full", "directory-hung-on-a-node"):
        assert hit(fault, 0.0, scene(begun=False)) is None
        assert hit(fault, 0.0, scene()) is not None
    assert hit("node-killed", 0.0, scene(begun=False)) is not None


LOOK = Sight(1000.0, "RUNNING", 1500.0, True, True, False, 1000.0, 1000.0)
LONG = 1000.0 - ALONE_S - 1


@pytest.mark.parametrize(
    ("sight", "why"),
    [
        (LOOK, ""),
        (replace(LOOK, deadline=999.0), f"RUNNING still, {END_S:.0f} s and more after the last fault was over"),
        (replace(LOOK, processes=False, agents=False, processes_at=LONG), "RUNNING without a process for 45 s"),
        (replace(LOOK, processes=False, agents=False, processes_at=LONG, state="PENDING"), ""),
        (replace(LOOK, processes=False, agents=False, processes_at=LONG, state=""), ""),
        (replace(LOOK, processes=False, agents=False, processes_at=LONG + 20), ""),
        (
            replace(LOOK, agents=False, agents_at=LONG, closed=True),
            "RUNNING, 45 s after its run was closed and its agents were gone",
        ),
        (replace(LOOK, agents=False, agents_at=LONG), ""),
        (replace(LOOK, agents_at=LONG, closed=True), ""),
    ],
)
def test_a_job_is_stuck_when_nothing_is_left_that_could_end_it_or_its_time_is_over(sight: Sight, why: str) -> None:
    assert stuck(sight) == why


def test_a_real_report_is_read(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path, nodes=2, nproc=2, max_restarts=3).round().steps(1, 120)
    run.fail(3, signal="SIGKILL", step=120).stop().round().steps(120, 200).succeed()
    path = run.close("succeeded", "all ranks succeeded").write()
    report = read_report(make_report(path))
    assert (report.status, report.max_restarts, len(report.rounds)) == ("succeeded", 3, 2)
    first = report.rounds[0].first
    assert isinstance(first, FirstFailure)
    assert (first.cause, first.rank, first.node, first.nodes, first.signal) == ("sigkill", 3, "n2", ("n2",), "SIGKILL")
    assert report.rounds[1].outcome == "succeeded" and report.rounds[1].first is None


def test_the_newest_state_that_can_be_read_counts(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    states = tmp_path / "ftslurm-runs" / "job-7" / "state"
    states.mkdir(parents=True)
    (states / "000000000001.json").write_text('{"value": {"attempt": "7.0", "round": 1, "closed": null}}')
    closed = '{"outcome": "failed", "reason": "why", "exit_code": 1, "time_ns": 5}'
    (states / "000000000002.json").write_text(f'{{"value": {{"attempt": "7.0", "round": 2, "closed": {closed}}}}}')
    (states / "000000000003.json").write_text('{"value": {half a file')
    state = read_state(tmp_path)
    assert state is not None
    assert (state.round, state.closed) == (2, Closed("failed", "why", 1, 5))


def test_of_the_journal_the_jobs_own_checkpoints_count_when_they_have_their_names() -> None:
    def line(path: str, what: str = "renamed") -> dict[str, object]:
        text = '{"attempt": "7.0", "round": 2, "rank": 0, "step": 5, "total": 9}'
        return {"began_ns": 1, "done_ns": 2, "what": what, "path": path, "text": text if what == "renamed" else ""}

    lines = [line(f"work/job-{number}/checkpoints/last.json") for number in (7, 77)]
    lines += [line("work/job-7/checkpoints/last.json", "held"), line("work/job-7/ftslurm-runs/job-1/state/01.json")]
    assert commits(iter(lines), "job-7") == (Commit(1, 2, "last.json", "7.0", 2, 5, 9),)


def test_a_line_that_a_killed_rank_has_not_finished_is_left_out_of_the_events(tmp_path: Path) -> None:
    path = tmp_path / "events"
    origin = '"round": 1, "attempt": "7.0", "rank": 0, "node": "n1"'
    path.write_text(f'{{"time_ns": 1, "what": "saved", {origin}, "step": 5, "pid": 3}}\n{{"ti')
    (only,) = events(path)
    assert (only.what, only.step) == ("saved", 5)


def test_the_table_counts_faults_and_what_became_of_the_jobs() -> None:
    bad = replace(good(), stuck="RUNNING without a process for 45 s")
    verdicts = [Verdict(1, good(), ()), Verdict(2, bad, (Miss("ended", bad.stuck),), "/kept/job-2")]
    assert job_lines(verdicts[0]) == ["job 1: rank-killed rank 3: succeeded (COMPLETED), 1 restarts, 12 s"]
    assert job_lines(verdicts[1])[1:] == ["  ended: RUNNING without a process for 45 s", "  kept in /kept/job-2"]
    lines = summary(verdicts)
    assert lines[0].split() == ["fault", "times", "succeeded", "ended", "otherwise", "MISSED"]
    assert lines[1].split() == ["rank-killed", "2", "1", "1", "1"]
    assert lines[-1] == "2 jobs, 2 faults: 1 of the jobs MISSED something"
    assert summary(verdicts[:1])[-1] == "1 job, 1 fault: no miss"
