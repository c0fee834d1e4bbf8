"""`ftslurm nodes`: arguments, table, hostlist for Slurm, and exclusions of pending jobs."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import pytest

from ftslurm import cli
from ftslurm.command_line import duration_ns
from ftslurm.nodes import command, table
from ftslurm.nodes.command import directory_of, main, names
from ftslurm.nodes.pass_on import ExclusionPlan, pass_on, plan
from ftslurm.nodes.record import Exclusion, Strike
from ftslurm.slurm.bounded import drain
from ftslurm.slurm.errors import SlurmError, SlurmRefused, SlurmTimeout
from ftslurm.slurm.facts import JobFacts
from tests.unit.fake_slurm import FakeSlurm

S = 10**9
NOW = 1_795_000_000 * S
DAY = 86_400 * S


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Slurm's or our environment, in an empty directory, and without Slurm."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "FTSLURM")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_unknown_to_slurm", lambda nodes: [node for node in nodes if node == "gone"])


def run(capsys: pytest.CaptureFixture[str], *arguments: str, now_ns: int = NOW) -> tuple[int, str, str]:
    code = main(arguments, lambda: now_ns)
    out, err = capsys.readouterr()
    return code, out, err


def test_nodes_are_excluded_listed_and_allowed_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "exclude", "n[8-10]", "n17", "--reason", "same switch", "--for", "24h")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{node}: excluded for 1 d" for node in ("n8", "n9", "n10", "n17")]
    code, out, _ = run(capsys, "list", now_ns=NOW + 7200 * S)
    lines = out.splitlines()
    assert lines[0] == f"4 nodes are excluded in {tmp_path}/ftslurm-runs/excluded-{os.geteuid()}"
    assert [line.split()[0] for line in lines[2:]] == ["n8", "n9", "n10", "n17"], "as Slurm counts"
    assert "(2 h)" in lines[2] and "in 22 h" in lines[2] and lines[2].endswith("same switch")
    assert run(capsys, "list", "--hostlist")[1] == "n[8-10,17]\n"
    code, out, _ = run(capsys, "allow", "n[8-9]", "n99")
    assert code == 0 and "n8: allowed again" in out and "n99: no exclusion and no strikes" in out
    assert run(capsys, "list", "--hostlist")[1] == "n[10,17]\n"
    assert run(capsys, "list", "--hostlist", now_ns=NOW + DAY)[1] == "", "their time is over"


def test_an_empty_list_prints_nothing_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "list", "--hostlist") == (0, "", "")
    code, out, _ = run(capsys, "list")
    assert code == 0 and out.startswith("no node is excluded in ")


def test_a_node_unknown_to_slurm_is_omitted_since_sbatch_would_refuse_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(capsys, "exclude", "gone", "n1")
    code, out, err = run(capsys, "list", "--hostlist")
    assert (code, out) == (0, "n1\n") and "unknown to Slurm: gone" in err


def test_a_broken_file_is_reported_and_the_others_are_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, "exclude", "n1", "n2")
    (tmp_path / f"ftslurm-runs/excluded-{os.geteuid()}/n1.json").write_text("{")
    code, out, err = run(capsys, "list", "--hostlist")
    assert (code, out) == (0, "n2\n")
    assert err.count("\n") == 1 and "n1.json" in err and "n1 counts as allowed" in err
    (problem,) = json.loads(run(capsys, "list", "--json")[1])["problems"]
    assert "n1.json" in problem


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
def test_a_file_of_another_user_is_not_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "exclude", "n1", "n2")
    os.chown(tmp_path / f"ftslurm-runs/excluded-{os.geteuid()}/n1.json", 65534, 65534)
    code, out, err = run(capsys, "list", "--hostlist")
    assert (code, out) == (0, "n2\n") and "belongs to uid 65534, expected 0" in err


def test_a_link_and_a_directory_instead_of_a_file_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, "exclude", "n1")
    directory = tmp_path / f"ftslurm-runs/excluded-{os.geteuid()}"
    (directory / "n2.json").symlink_to(directory / "n1.json")
    (directory / "n3.json").mkdir()
    code, out, err = run(capsys, "list", "--hostlist")
    assert (code, out) == (0, "n1\n")
    assert "symbolic link" in err and "not a plain file" in err


def test_a_directory_that_cannot_be_listed_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "ftslurm-runs").mkdir()
    (tmp_path / f"ftslurm-runs/excluded-{os.geteuid()}").write_text("")
    code, out, err = run(capsys, "list", "--hostlist")
    assert (code, out) == (
        1,
        "",
    ) and f"cannot list {tmp_path}/ftslurm-runs/excluded-{os.geteuid()}: Not a directory" in err
    code, _, err = run(capsys, "exclude", "n1")
    assert code == 1 and "ftslurm nodes: " in err and "Traceback" not in err


def test_json_has_everything(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "exclude", "n1", "--reason", "x", "--for", "1h")
    document = json.loads(run(capsys, "list", "--json", now_ns=NOW + 7200 * S)[1])
    (node,) = document["nodes"]
    assert (node["node"], node["reason"], node["holds"]) == ("n1", "x", False)
    assert (node["since_ns"], node["until_ns"]) == (NOW, NOW + 3600 * S)
    assert document["directory"] == str(tmp_path / f"ftslurm-runs/excluded-{os.geteuid()}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "expected"),
        (("exclude",), "expected"),
        (("list", "n1"), "unexpected argument n1"),
        (("list", "--json", "--hostlist"), "not allowed"),
        (("exclude", "n[1-"), "bad node list 'n[1-'"),
        (("exclude", "../n1"), "bad node list '../n1'"),
        (("exclude", ""), "expected a node name or a list"),
        (("allow", "n1;rm"), "bad node list"),
        (("exclude", "n1", "--for", "soon"), "expected a time such as 90m"),
        (("exclude", "n1", "--for", "0h"), "expected a time such as 90m"),
        (("pass-on", "x;y"), "expected a job id"),
    ],
)
def test_wrong_usage_is_explained_and_gives_code_2(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "exclude", "n7")
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "") and expected in err and "Traceback" not in err


def test_several_lists_are_one_list_of_nodes_each_once() -> None:
    assert names(["n[1-2],n5", "n2", "a"]) == ["n1", "n2", "n5", "a"]


@pytest.mark.parametrize(
    ("shared", "exclude", "environ", "expected"),
    [
        (None, None, {}, f"/w/ftslurm-runs/excluded-{os.geteuid()}"),
        ("/s", None, {}, f"/s/excluded-{os.geteuid()}"),
        ("s", None, {"SLURM_SUBMIT_DIR": "/sub"}, f"/sub/s/excluded-{os.geteuid()}"),
        (None, "e", {"FTSLURM_SHARED_DIR": "/s"}, "/w/e"),
        (None, None, {"FTSLURM_SHARED_DIR": "/s"}, f"/s/excluded-{os.geteuid()}"),
        (None, None, {"FTSLURM_EXCLUDE_DIR": "/e", "FTSLURM_SHARED_DIR": "/s"}, "/e"),
        ("/s", None, {"FTSLURM_EXCLUDE_DIR": "/e"}, f"/s/excluded-{os.geteuid()}"),
    ],
)
def test_the_files_are_in_the_directory_that_a_run_uses(
    shared: str | None, exclude: str | None, environ: dict[str, str], expected: str
) -> None:
    assert directory_of(shared, exclude, environ, "/w") == expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("24h", 86_400), ("1d12h", 129_600), ("2w", 1_209_600), ("7s", 7), ("24", 24)]
)
def test_a_duration_is_parsed(text: str, seconds: int) -> None:
    assert duration_ns(text) == seconds * S


@pytest.mark.parametrize("text", ["", "0", "h", "-1h", "1 h", "1_0", "nan", "99999d", "٣h", "1h x"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a time such as"):
        duration_ns(text)


def test_the_table_separates_exclusions_in_force_from_strikes_and_ended_ones() -> None:
    strike = Strike(NOW - DAY, "job-7", "signal 7")
    known = {
        "n10": Exclusion("n10", "smells", "ada", NOW - 3 * DAY, None, (strike,)),
        "n9": Exclusion("n9", "old", "run job-3", NOW - 3 * DAY, NOW - DAY),
        "n2": Exclusion("n2", "", "run job-7", NOW - DAY, NOW - DAY, (strike,)),
    }
    lines = table.render(known, "/d", NOW, time.gmtime).splitlines()
    assert lines[0] == "1 node is excluded in /d"
    assert lines[2].split() == ["n10", "2026-11-15", "11:06", "(3", "d)", "when", "allowed", "ada", "1", "smells"]
    assert lines[3] == "not excluded:"
    assert lines[5].split()[0] == "n2" and lines[5].endswith("strike in run job-7: signal 7")
    assert lines[6].split()[0] == "n9" and "1 d ago" in lines[6]


# Pending jobs.


def job(state: str = "COMPLETING", **fields: object) -> JobFacts:
    return JobFacts(**{"job_id": "7", "state": state, "partition": "lab", "num_nodes": 2, **fields})  # type: ignore[arg-type]


IDLE = {"n1": "idle", "n2": "allocated", "n3": "idle*", "n4": "mixed"}


@pytest.mark.parametrize("state", ["PENDING", "COMPLETING"])
def test_a_job_that_is_pending_or_being_requeued_excludes_nodes_in_addition_to_its_own(state: str) -> None:
    decided = plan(job(state, excluded=("n4",)), ["n1", "n4"], IDLE)
    assert decided.exclude == ("n4", "n1") and decided.note == "job 7 now excludes n1"


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED", "FAILED", "CANCELLED"])
def test_a_job_that_runs_or_has_ended_is_not_changed(state: str) -> None:
    assert plan(job(state), ["n1"], IDLE) == ExclusionPlan(None)


def test_nodes_of_other_partitions_and_unknown_ones_are_left_out_of_the_list() -> None:
    assert plan(job(), ["gone", "n9"], IDLE) == ExclusionPlan(None)


def test_a_job_that_would_wait_for_ever_is_not_changed() -> None:
    decided = plan(job(), ["n1", "n2", "n3"], IDLE)
    assert decided.exclude is None
    assert "1 usable nodes are left in partition lab, and it needs 2" in decided.note


def test_nodes_that_are_down_do_not_count_as_usable() -> None:
    assert plan(job(), ["n1"], {**IDLE, "n2": "down*", "n3": "drained"}).exclude is None
    assert plan(job(), ["n2"], {**IDLE, "n2": "down*", "n3": "drained"}).exclude == ("n2",)


def test_slurm_is_updated_and_a_job_that_was_cancelled_meanwhile_is_no_error() -> None:
    slurm = FakeSlurm([job()], nodes=dict.fromkeys(IDLE, "IDLE"))
    assert "now excludes n1" in pass_on(slurm, "7", ["n1"])
    assert slurm.jobs["7"].excluded == ("n1",)
    slurm.fail("exclude_nodes", SlurmRefused("`scontrol update` failed: Job has already finished for job 7"))
    assert pass_on(slurm, "7", ["n2"]) == ""
    slurm.fail("exclude_nodes", SlurmRefused("Access denied"))
    with pytest.raises(SlurmRefused):
        pass_on(slurm, "7", ["n2"])
    assert pass_on(slurm, "7", []) == ""
    assert pass_on(slurm, "8", ["n1"]) == "job 8: Slurm has no record of it"


# Draining.


def test_drain_returns_nothing_on_success_and_the_reason_of_a_failure() -> None:
    slurm = FakeSlurm(nodes={"n1": "IDLE", "n2": "DOWN"})
    assert drain("n1", "ECC", slurm) is None and slurm.reasons == {"n1": "ECC"}
    assert drain("n1", "other", slurm) is None and slurm.reasons == {"n1": "ECC"}
    assert drain("n2", "ECC", slurm) is None and slurm.nodes["n2"] == "DOWN"
    assert drain("n9", "ECC", slurm) == "Slurm knows no node n9"
    errors: list[SlurmError] = [SlurmTimeout("no answer"), SlurmRefused("not allowed")]
    for error in errors:
        slurm.fail("drain", error)
        assert drain("n1", "ECC", slurm) == str(error)


def test_the_usage_and_the_unknown_command_name_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ftslurm nodes list|exclude|allow|pass-on " in cli.USAGE
    assert cli.main(["begin"]) == 2
    printed = capsys.readouterr().err
    for name in ("run", "report", "status", "logs", "doctor", "health", "nodes", "template"):
        assert f"ftslurm {name} " in cli.USAGE and f" {name}" in printed
