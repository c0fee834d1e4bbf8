"""Defects of ftslurm itself in the report: what failed where, what it means, and that nothing else is to blame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report import make_report, render_html, render_markdown, render_text

ERROR, PLACE = "KeyError: 'x'", "ftslurm/agent/machine.py:133 in on_state"


def report(tmp_path: Path, *defects: dict[str, Any], closed: str = "succeeded") -> Any:
    run = RunBuilder(tmp_path).round().steps(1, 9).wait(5)
    path = run.close(closed, "all ranks succeeded").write()
    (path / "defects").mkdir()
    for number, defect in enumerate(defects):
        content = {
            "schema": "ftslurm/defect", "version": 1, "node": "n1", "incarnation": "i", "attempt": "123.0", "round": 1,
            "time_ns": number, "part": "health checks", "meaning": "this node is no longer checked", "error": ERROR,
            "place": PLACE, "traceback": "Traceback ...", **defect,
        }  # fmt: skip
        (path / "defects" / f"{content['node']}.{number}.json").write_text(json.dumps(content))
    return make_report(path)


def text(found: Any) -> str:
    return " ".join(render_text(found).split())


def test_the_report_of_a_run_without_any_does_not_mention_them(tmp_path: Path) -> None:
    found = report(tmp_path)
    assert found["defects"] == []
    assert "defects" not in render_text(found)


def test_a_part_that_failed_is_named_with_what_it_means_and_where_its_traceback_is(tmp_path: Path) -> None:
    found = report(tmp_path, {})
    assert (
        "defects of ftslurm itself, neither your program's nor a node's n1: health checks: KeyError: 'x' "
        "(ftslurm/agent/machine.py:133 in on_state) this node is no longer checked; the job went on "
        "please report it, with defects/n1.0.json"
    ) in text(found)
    assert "this node is no longer checked; the job went on" in render_markdown(found)
    assert "this node is no longer checked; the job went on" in render_html(found)


def test_the_same_on_several_nodes_is_one_and_what_ended_an_agent_comes_first(tmp_path: Path) -> None:
    nodes = [{"node": f"n{number}"} for number in range(12)]
    found = report(tmp_path, *nodes, {"node": "n99", "part": None, "meaning": None})
    first, second = found["defects"]
    assert (first["part"], first["nodes"], first["round"]) == (None, ["n99"], 1)
    assert (len(second["nodes"]), second["node_count"]) == (8, 12)
    assert "n99: the agent ended: KeyError: 'x'" in text(found)
    assert "and 4 more nodes: health checks" in text(found)


@pytest.mark.parametrize(
    "wrong",
    [{"schema": "ftslurm/run"}, {"version": 9}, {"error": None}, {"node": 5}],
    ids=["schema", "version", "error", "node"],
)
def test_a_record_that_is_none_is_a_problem_and_costs_nothing_else(tmp_path: Path, wrong: dict[str, Any]) -> None:
    found = report(tmp_path, wrong, {})
    assert len(found["defects"]) == 1
    assert [one["file"][:8] for one in found["problems"]] == ["defects/"]


def test_what_stands_in_a_record_is_text_and_nothing_else(tmp_path: Path) -> None:
    found = report(tmp_path, {"error": "E: \x1b[31m<script>alert(1)</script> `x` | @all", "meaning": "a\nb"})
    assert "\x1b" not in render_text(found)
    assert "<script>" not in render_html(found)
    assert "<script>" not in render_markdown(found).replace("```", "").split("defects of ftslurm")[0]


def test_an_agent_that_a_defect_ended_is_a_cause_that_blames_no_rank(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().lose("n2", silent_s=0.0)
    run.history[-1]["reason"] = f"n2 left: its agent ended by a defect of ftslurm: {ERROR} ({PLACE})"
    cause = make_report(run.close("failed", "too few nodes left").write())["cause"]
    assert (cause["cause"], cause["node"]) == ("agent-defect", "n2")
    assert "Neither your program nor the node is the cause" in cause["advice"]


def test_an_agent_that_crashed_is_named_with_its_error_in_the_first_line(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path).round().lose("n2", silent_s=0.0)
    run.history[-1]["reason"] = f"n2 left: its agent ended by a defect of ftslurm: {ERROR} ({PLACE})"
    found = make_report(run.close("failed", "too few nodes left").write())
    expected = "job-123 FAILED: ftslurm's agent crashed on n2: KeyError: 'x': a defect of ftslurm"
    assert text(found).startswith(expected)


def test_agents_that_crashed_before_the_end_was_recorded_were_not_killed_by_anyone(tmp_path: Path) -> None:
    path = RunBuilder(tmp_path).round().steps(1, 9).wait(500).write()
    (path / "defects").mkdir()
    for node in ("n1", "n2"):
        content = {
            "schema": "ftslurm/defect", "version": 1, "node": node, "incarnation": "i", "attempt": "123.0", "round": 1,
            "time_ns": 7, "part": None, "meaning": None, "error": "OSError: [Errno 24] Too many open files",
            "place": PLACE, "traceback": "Traceback ...",
        }  # fmt: skip
        (path / "defects" / f"{node}.1.json").write_text(json.dumps(content))
    shown = text(make_report(path))
    assert "ftslurm's agents crashed on n1, n2: OSError: [Errno 24] Too many open files: a defect of ftslurm" in shown
    assert "killed at once" not in shown
