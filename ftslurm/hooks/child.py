"""Run the command of `--on-event` for some events, each once in the run: a process of its own, which may hang alone.

``python <ftslurm>/boot/module.py ftslurm.hooks.child RUN_DIR NODE COMMAND EVENTS``; EVENTS: a JSON list of `Event`s.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ftslurm.hooks.events import COMMAND_S, EVENTS, Event
from ftslurm.kernel import become_subreaper, end_descendants, signal_name
from ftslurm.records.event import EventRecord
from ftslurm.report.pipeline import make_report
from ftslurm.sharedfs.filesystem import FileSystem, PosixFileSystem
from ftslurm.sharedfs.publish import publish_first, random_nonce
from ftslurm.sharedfs.rundir import RunDirectory
from ftslurm.terminal import complain
from ftslurm.text import duration, one_line

REAP_S = 0.5
OUTPUT_KEPT = 4096


def main(arguments: Sequence[str]) -> int:
    """Run the command for those of the events that no other process has run it for; return 0."""
    run_dir, node, command, listed = arguments
    run, fs = RunDirectory(run_dir), PosixFileSystem(owner=os.geteuid())
    # Orphans of the command become children of this process, and end with it.
    become_subreaper()
    for fields in json.loads(listed):
        event = Event(*fields)
        if event.name not in EVENTS or not claim(fs, run, event, node):
            continue
        try:
            problem = follow(event, content_of(run_dir, event), command, environment_of(run_dir, event))
        except OSError as error:
            problem = f"{error.strerror or error}"
        finally:
            end_descendants(REAP_S)
        if problem is not None:
            complain(f"--on-event, {event.name}: `{one_line(command, 60)}` {problem}")
    return 0


def claim(fs: FileSystem, run: RunDirectory, event: Event, node: str) -> bool:
    """Return whether this process is the one that runs the command for the event."""
    record = EventRecord(
        event.name, event.attempt, event.round, node, random_nonce(), time.time_ns(), one_line(event.text)
    )
    path = run.event_file(event.attempt, event.name, event.round)
    try:
        fs.makedirs(os.path.dirname(path))
        return publish_first(fs, path, record)
    except (OSError, ValueError):
        # Better not at all than twice: a directory that is full or hangs would let each coordinator run it.
        return False


def content_of(run_dir: str, event: Event) -> dict[str, Any]:
    """Return the report's dictionary, of its rounds only the event's if it has one, with the event."""
    report = make_report(Path(run_dir))
    if event.round:
        report = {**report, "rounds": [one for one in report["rounds"] if one["round"] == event.round]}
    fields = {"name": event.name, "attempt": event.attempt, "round": event.round or None}
    return {**report, "event": {**fields, "time_ns": event.time_ns, "text": event.text}}


def environment_of(run_dir: str, event: Event) -> dict[str, str]:
    """Return the variables of the command beside those of this process."""
    return {
        "FTSLURM_EVENT": event.name,
        "FTSLURM_EVENT_TEXT": one_line(event.text, 500),
        "FTSLURM_RUN_ID": os.path.basename(run_dir),
        "FTSLURM_RUN_DIR": run_dir,
        "FTSLURM_ATTEMPT": event.attempt,
        "FTSLURM_ROUND": str(event.round or ""),
    }


def follow(
    event: Event, content: Mapping[str, Any], command: str, environment: Mapping[str, str], limit_s: float = COMMAND_S
) -> str | None:
    """Run the command with the content as JSON on its stdin; return what went wrong, None: nothing."""
    import subprocess

    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
        given.write(json.dumps(content).encode())
        given.seek(0)
        started = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=given,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            code = started.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"did not end within {duration(limit_s)}, and is killed{_last_line(output)}"
        if code == 0:
            return None
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with code {code}"
        return f"{how}{_last_line(output)}"


def _last_line(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - OUTPUT_KEPT))
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {one_line(lines[-1])}" if lines else ""


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
