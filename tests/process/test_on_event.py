"""`--on-event`: the user's command at each event, once, bounded, and never in the job's way."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import test_run
from hang_story import RANK, agents, pid_of
from test_run import Start, Started

start = test_run.start
ROOT = Path(__file__).resolve().parents[2]

# Leaves what it got in a file of its own.
HOOK = """\
#!/bin/sh
cat >"$OUT/$FTSLURM_EVENT-${FTSLURM_ROUND:-0}-$$.json"
"""
UNTIL_GO = """\
#!/bin/sh
until [ -e "$OUT/go" ]; do sleep 0.1; done
"""
FAILS_ONCE = (
    "import os, sys\nif os.environ['FTSLURM_ROUND'] == '1' and os.environ['RANK'] == '1': raise ValueError('boom')\n"
)
NODES = ("--local-nodes", "2", "--heartbeat", "0.5", "--node-timeout", "3")


@pytest.fixture
def hook(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "followed").mkdir()
    return on_event(tmp_path, HOOK)


def on_event(directory: Path, text: str) -> tuple[str, ...]:
    path = directory / "hook.sh"
    path.write_text(text)
    path.chmod(0o755)
    (directory / "followed").mkdir(exist_ok=True)
    return ("--on-event", f"OUT={shlex.quote(str(directory / 'followed'))} {shlex.quote(str(path))}")


def got(run: Started) -> list[str]:
    """Return the events that the command was run for, with their rounds."""
    return sorted(path.name.rpartition("-")[0] for path in (run.directory / "followed").glob("*.json"))


def content(run: Started, event: str) -> dict[str, Any]:
    (path,) = (run.directory / "followed").glob(f"{event}-*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_failure_a_restart_and_the_end_are_followed_each_once_with_their_part_of_the_report(
    start: Start, hook: tuple[str, ...]
) -> None:
    run = start(FAILS_ONCE, *NODES, *hook)
    assert run.wait() == 0, run.err
    assert got(run) == ["end-0", "failure-1", "restart-2"]
    failure = content(run, "failure-1")
    assert failure["schema"] == "ftslurm/report"
    assert [one["round"] for one in failure["rounds"]] == [1]
    assert failure["event"]["name"] == "failure" and "boom" in failure["rounds"][0]["first_failure"]["what"]
    assert content(run, "end-0")["status"] == "succeeded" and len(content(run, "end-0")["rounds"]) == 2
    assert "--on-event" not in run.err


def test_the_failure_that_ends_the_job_is_followed_before_its_end(start: Start, hook: tuple[str, ...]) -> None:
    run = start("raise ValueError('boom')", *NODES, *hook, "--max-restarts", "0")
    assert run.wait() == 1
    assert got(run) == ["end-0", "failure-1"]


def test_a_stop_and_a_hang_are_events(start: Start, hook: tuple[str, ...]) -> None:
    run = start(RANK + "train(hangs=1)\ntime.sleep(600)", *NODES, *hook, "--heartbeat-timeout", "2", "--grace", "1")
    run.until(lambda: "hang-1" in got(run) and (run.directory / "up0.2").exists())
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert {"hang-1", "restart-2", "stop-0", "end-0"} <= set(got(run))
    assert "failure-1" not in got(run)


def test_a_command_that_hangs_holds_up_no_round_and_ends_with_all_its_children(start: Start, tmp_path: Path) -> None:
    text = HOOK + 'trap "" TERM\nsleep 1000 &\nsetsid sleep 1000 &\nsleep 1000\n'
    run = start(FAILS_ONCE + "import time; time.sleep(1)", *NODES, *on_event(tmp_path, text), "--max-restarts", "1")
    run.until(lambda: "all 2 ranks on 2 nodes succeeded" in run.err, 20)
    assert "failure-1" in got(run)
    # The first agent waits for it no longer than it must; the end of the job is another matter.
    assert run.wait(150) == 0
    assert "--on-event" in run.err
    assert run.marked() == []


def test_a_command_that_runs_as_the_run_ends_is_waited_for(start: Start, tmp_path: Path) -> None:
    run = start(FAILS_ONCE, *NODES, *on_event(tmp_path, UNTIL_GO + HOOK), "--max-restarts", "1")
    run.until(lambda: "--on-event, failure: the run is over, its command may take 30 s" in run.err)
    (tmp_path / "followed" / "go").touch()
    assert run.wait() == 0
    assert {"failure-1", "restart-2", "end-0"} <= set(got(run))
    assert "cut off" not in run.err


def test_a_signal_cuts_the_wait_for_a_command_short(start: Start, tmp_path: Path) -> None:
    run = start(FAILS_ONCE, *NODES, *on_event(tmp_path, UNTIL_GO + HOOK), "--max-restarts", "1")
    run.until(lambda: "the run is over, its command may take 30 s" in run.err)
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: "its command is cut off, as this agent must leave now" in run.err)
    (tmp_path / "followed" / "go").touch()
    run.wait()
    assert "failure-1" not in got(run)
    assert run.marked() == []


def test_a_command_that_fails_is_one_line_with_its_last_output(start: Start, tmp_path: Path) -> None:
    text = "#!/bin/sh\necho trying\nprintf 'no \\033[2Jway\\n' >&2\nexit 3\n"
    run = start("pass", *NODES, *on_event(tmp_path, text))
    assert run.wait() == 0
    (line,) = (line for line in run.err.splitlines() if "--on-event" in line)
    assert "end: " in line and "ended with code 3: no way" in line


def test_a_coordinator_that_is_killed_leaves_no_event_to_be_followed_twice(start: Start, hook: tuple[str, ...]) -> None:
    run = start(RANK + FAILS_ONCE + "train()\nif round_ < 3: time.sleep(600)", *NODES, *hook)
    pid_of(run, 0, 2)
    run.until(lambda: {"failure-1", "restart-2"} <= set(got(run)))
    os.kill(agents(run)["local0"], signal.SIGKILL)
    assert run.wait() == 0, run.err
    assert sorted(set(got(run))) == got(run)
    assert {"failure-1", "failure-2", "restart-2", "restart-3", "end-0"} == set(got(run))


def test_a_run_directory_that_cannot_be_written_runs_no_command_and_the_job_goes_on(
    start: Start, tmp_path: Path, hook: tuple[str, ...]
) -> None:
    # A file where the directory of the events' records would be.
    script = """
import os, pathlib
for attempt in pathlib.Path(os.environ["FTSLURM_RUN_DIR"], "attempts").iterdir():
    (attempt / "events").touch()
"""
    run = start(script, *NODES, *hook)
    assert run.wait() == 0
    assert got(run) == []


def test_the_examples_read_what_they_are_given(start: Start, tmp_path: Path) -> None:
    received: list[str] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    mail = tmp_path / "bin" / "mail"
    mail.parent.mkdir()
    mail.write_text(f'#!/bin/sh\n{{ echo "$@"; cat; }} >>{tmp_path}/mail.txt\n')
    mail.chmod(0o755)
    both = f"tee >({ROOT}/examples/hooks/mail.sh) | {sys.executable} {ROOT}/examples/hooks/webhook.py; sleep 0.5"
    run = start(
        "raise ValueError('boom')",
        *(*NODES, "--max-restarts", "0", "--on-event", f"bash -c {shlex.quote(both)}"),
        CHAT_WEBHOOK=f"http://127.0.0.1:{server.server_port}",
        PATH=f"{mail.parent}:{os.environ['PATH']}",
    )
    assert run.wait() == 1
    server.shutdown()
    assert ["failure" in received[0], "boom" in received[0], "end" in received[1]] == [True] * 3
    text = (tmp_path / "mail.txt").read_text()
    assert "ValueError: boom" in text and str(run.run_dir) in text
