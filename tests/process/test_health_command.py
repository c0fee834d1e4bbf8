"""`ftslurm health` and `ftslurm nodes` as real commands: alone, as the tasks of a step, and with much going wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftslurm.health import barrier
from ftslurm.health.barrier import Session
from ftslurm.health.multi_node import gather
from ftslurm.sharedfs.filesystem import PosixFileSystem

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "FTSLURM"))}
ROOT = Path(__file__).resolve().parents[2]
QUIET = ("host-versions",)
"""A check that finds nothing wrong on any machine, and looks at no other node."""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "ftslurm.cli", *map(str, arguments)]


def health(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("health", *arguments),
        cwd=cwd,
        env={**CLEAN, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def slurm(node: int, of: int, local: int = 0) -> dict[str, str]:
    """Return the environment of a task, as Slurm gives it."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "3",
        "SLURM_PROCID": str(node),
        "SLURM_LOCALID": str(local),
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": f"n{node}",
        "SLURM_STEP_NODELIST": f"n[0-{of - 1}]",
        "SLURM_NNODES": str(of),
        "SLURM_NTASKS": str(of),
    }


def step(cwd: Path, node: int, of: int, *arguments: str | Path, local: int = 0, **more: str) -> subprocess.Popen[str]:
    """Start it as Slurm would on one node of several."""
    return subprocess.Popen(
        command("health", *arguments),
        cwd=cwd,
        env={**CLEAN, "PYTHONPATH": str(ROOT), **slurm(node, of, local), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(tasks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    outputs = [task.communicate(timeout=90) for task in tasks]
    return [(task.returncode, out, err) for task, (out, err) in zip(tasks, outputs, strict=True)]


def test_this_node_is_checked_with_all_checks_and_one_table(tmp_path: Path) -> None:
    done = health(cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.startswith("ftslurm health: ") and done.stdout.count("ftslurm health:") == 1
    assert "host-versions" in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_json_has_the_facts_and_the_list_has_the_checks(tmp_path: Path) -> None:
    document = json.loads(health("--json", *QUIET, cwd=tmp_path).stdout)
    (verdicts,) = (node["verdicts"] for node in document["nodes"].values())
    assert [one["check"] for one in verdicts] == ["host-versions"] and verdicts[0]["facts"]["kernel"]
    listed = health("--list", cwd=tmp_path).stdout
    assert len(listed.splitlines()) > 5 and "host-versions" in listed


def test_a_check_of_the_users_own_decides_over_the_exit_code(tmp_path: Path) -> None:
    for code, status, line in ((0, "ok", "licences fine"), (1, "warn", "1 licence left"), (2, "FAIL", "no licence")):
        done = health("own", "--command", f"echo {line}; exit {code}", cwd=tmp_path)
        assert done.returncode == (1 if status == "FAIL" else 0), done.stdout + done.stderr
        assert line in done.stdout and f"  {status} " in done.stdout, done.stdout
    done = health("own", cwd=tmp_path, FTSLURM_HEALTH_COMMAND="echo from the environment; exit 2")
    assert done.returncode == 1 and "from the environment" in done.stdout


def test_a_path_that_the_user_names_is_checked(tmp_path: Path) -> None:
    missing = tmp_path / "nothere"
    looks = (
        health("storage", "--path", missing, cwd=tmp_path),
        health("storage", cwd=tmp_path, FTSLURM_HEALTH_PATHS=str(missing)),
    )
    for done in looks:
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"warn: {tmp_path}/nothere (--path): is not there" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "arguments", [("nosuch",), ("--wait", "x"), ("--quick", "--all"), ("--busy", "--idle"), ("--no",), ("--drain",)]
)
def test_wrong_usage_gives_code_2_and_a_message(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = health(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "ftslurm health: " in done.stderr and "Traceback" not in done.stderr


def test_the_tasks_of_a_step_meet_and_the_first_prints_one_table(tmp_path: Path) -> None:
    first, *others = ends([step(tmp_path, node, 3, *QUIET) for node in (0, 1, 2)])
    assert first[0] == 0, first
    assert first[1].startswith("ftslurm health: 3 nodes: all fine"), first[1]
    assert others == [(0, "", "")] * 2
    assert list(tmp_path.iterdir()) == []


def test_the_node_that_is_unlike_the_others_is_on_top_and_its_failure_is_the_steps(tmp_path: Path) -> None:
    mine = '[ "$SLURMD_NODENAME" = n1 ] && { echo a fan is missing; exit 2; }; echo 6 fans'
    first, *others = ends([step(tmp_path, node, 3, "own", "--command", mine) for node in (0, 1, 2)])
    assert first[0] == 1 and [code for code, _, _ in others] == [0, 0]
    head, top, *_ = first[1].splitlines()
    assert head.startswith("ftslurm health: 3 nodes: FAIL on n1; 2 fine"), first[1]
    assert top.startswith("  FAIL     n1: own") and "a fan is missing" in top


def test_second_and_later_tasks_of_a_node_are_silent(tmp_path: Path) -> None:
    tasks = [step(tmp_path, node, 2, *QUIET, local=local) for node in (0, 1) for local in (0, 1)]
    ended = ends(tasks)
    assert [code for code, _, _ in ended] == [0] * 4
    assert [bool(out) for _, out, _ in ended] == [True, False, False, False]


def test_a_node_that_never_comes_is_named_after_the_wait(tmp_path: Path) -> None:
    began = time.monotonic()
    (code, out, err), (other, _, _) = ends([step(tmp_path, node, 3, *QUIET, "--wait", "1") for node in (0, 1)])
    assert time.monotonic() - began < 30
    assert (code, other) == (1, 0), out + err
    assert "FAIL on n2; 2 fine" in out and "n2: meet: did not join in" in out
    assert list(tmp_path.iterdir()) == []


def test_a_first_node_that_never_comes_leaves_the_table_to_the_next(tmp_path: Path) -> None:
    (code, out, err), _ = ends([step(tmp_path, node, 3, *QUIET, "--wait", "1") for node in (1, 2)])
    assert code == 1 and "FAIL on n0; 2 fine" in out, out + err


def test_a_node_that_stops_in_the_middle_is_named(tmp_path: Path) -> None:
    """As one whose kernel hangs: it has shown up, and nothing more comes of it."""
    stopping = 'test "$SLURMD_NODENAME" = n1 && kill -STOP $(ps -o ppid= -p $PPID) $PPID; echo fine'
    tasks = [step(tmp_path, node, 2, "own", "--command", stopping) for node in (0, 1)]
    out, err = tasks[0].communicate(timeout=90)
    tasks[1].kill()
    tasks[1].communicate(timeout=10)
    assert tasks[0].returncode == 1, out + err
    assert "n1: meet: joined, but sent no result within" in out, out + err


def test_nodes_without_a_common_directory_each_report_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    tasks = [step(tmp_path / "ab"[node], node, 2, *QUIET, "--wait", "1") for node in (0, 1)]
    (code0, out0, _), (code1, out1, err1) = ends(tasks)
    assert (code0, code1) == (1, 1)
    assert "n1: meet: did not join in" in out0
    assert out1 == "" and "n1: could not join the other nodes" in err1
    assert [list((tmp_path / name).iterdir()) for name in ("a", "b")] == [[], []]


def test_a_missing_shared_directory_is_not_made_and_each_node_prints_its_own_result(tmp_path: Path) -> None:
    missing = tmp_path / "nothere"
    ended = ends([step(tmp_path, node, 2, *QUIET, "--shared-dir", missing, "--wait", "1") for node in (0, 1)])
    (code0, out0, err0), (code1, out1, err1) = ended
    assert (code0, code1) == (1, 1)
    assert out0.startswith("ftslurm health: n0: fine") and "only this node of 2" in err0 and "--shared-dir" in err0
    assert out1 == "" and "no finding on the node itself" in err1
    assert list(tmp_path.iterdir()) == []


def test_outside_a_step_only_this_node_is_checked_and_the_command_for_all_is_shown(tmp_path: Path) -> None:
    environment = {k: v for k, v in slurm(0, 3).items() if k not in ("SLURM_STEP_ID", "SLURM_PROCID")}
    environment["SLURM_JOB_NODELIST"] = environment.pop("SLURM_STEP_NODELIST")
    done = health(*QUIET, cwd=tmp_path, **environment)
    assert done.returncode == 0 and done.stdout.startswith("ftslurm health: n0: fine")
    assert "for all 3: srun --ntasks-per-node=1 ftslurm health" in done.stderr


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    task = step(tmp_path, 0, 1, "own", "--command", f"touch {marker}; sleep 60")
    deadline = time.monotonic() + 30
    while not marker.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    task.send_signal(signal.SIGTERM)
    _, err = task.communicate(timeout=30)
    assert (task.returncode, err) == (130, "")
    assert [path.name for path in tmp_path.iterdir()] == ["started"]


def test_a_result_that_makes_no_sense_costs_its_node_and_no_other(tmp_path: Path) -> None:
    """As from a node with another ftslurm, or with broken memory."""
    session = Session(str(tmp_path / "session"), "n0", ("n0", "n1", "n2", "n3"))
    sound = {"check": "own", "status": "ok", "summary": "", "findings": [], "took_s": 0.1, "facts": None}
    for node, verdicts in (("n1", [sound]), ("n2", [{"check": "own"}]), ("n3", 7)):
        other = Session(session.root, node, session.expected)
        barrier.publish_result(PosixFileSystem(), other, {"node": node, "verdicts": verdicts, "stuck": []})
    found = gather(session, session.expected, str(tmp_path), 30, 1)
    assert list(found.verdicts) == ["n1"] and set(found.lost) == {"n2", "n3"}
    assert all("sent an invalid result" in why for why in found.lost.values())


def test_concurrent_exclusions_lose_nothing_and_readers_get_complete_files(tmp_path: Path) -> None:
    environment = {**CLEAN, "PYTHONPATH": str(ROOT)}

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command("nodes", *arguments),
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    # Some write files of their own, some the same.
    writers = [start("exclude", f"n[{i * 20}-{i * 20 + 19}],same", "--reason", f"writer {i}") for i in range(4)]
    readers = [start("list", "--json") for _ in range(3)]
    assert [code for code, _, _ in ends(writers)] == [0] * 4
    for code, out, err in ends(readers):
        assert (code, err, json.loads(out)["problems"]) == (0, "", [])
    ((_, out, _),) = ends([start("list", "--json")])
    found = {node["node"]: node["reason"] for node in json.loads(out)["nodes"]}
    assert found == {**{f"n{i}": f"writer {i // 20}" for i in range(80)}, "same": found["same"]}
    assert not [
        path for path in (tmp_path / f"ftslurm-runs/excluded-{os.geteuid()}").iterdir() if path.name.startswith(".")
    ]


@pytest.mark.parametrize("module", ["ftslurm.health.command", "ftslurm.nodes.command", "ftslurm.nodes.exclude"])
def test_the_command_line_reads_no_more_than_it_needs(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(m in sys.modules for m in ('argparse', 'filelock', 'torch', 'pynvml')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
