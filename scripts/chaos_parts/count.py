"""The counting job: its ranks add up numbers, save checkpoints with `ftslurm.commit`, and resume from them.

With ``--polls`` they leave where `ftslurm.should_stop` says so, instead of on SIGTERM. It also records events in a file
on the local disk, so that its history is available while the shared directory fails.
Signals make it fail as programs do: SIGUSR1 with an exit code only, SIGUSR2 with an exception.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ftslurm
from chaos_parts.counting import part
from chaos_parts.links import Link, link

SAVE_EVERY = 5
"""Steps between checkpoints; twice as many between the files of each rank."""
PATIENCE_S = 120.0
"""Time for which the job retries to read its checkpoint, or to write its result, in seconds."""
RETRY_S = 0.3
EXIT_HIDDEN = 3


class AskedToStop(BaseException):
    """SIGTERM was received."""


@dataclass(frozen=True)
class Place:
    """Identity of this process, and its paths."""

    rank: int
    world_size: int
    round: int
    attempt: str
    node: str
    checkpoints: Path
    events: Path

    def note(self, what: str, **facts: object) -> None:
        """Record an event, in one write, so that lines of several ranks do not mix."""
        fields = {"what": what, "round": self.round, "attempt": self.attempt, "rank": self.rank, "node": self.node}
        line = json.dumps({"time_ns": time.time_ns(), **fields, **facts}) + "\n"
        fd = os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


class Count:
    """One rank of the job.

    Attributes:
        counted: the step and the sum up to it; one object, since a signal may arrive between any two assignments.
        saved: the step of the newest checkpoint that this rank saved or read.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.counted = (0, 0)
        self.saved = 0
        self._saving = False
        self._asked = False

    @property
    def step(self) -> int:
        """The last step."""
        return self.counted[0]

    def ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: stop at once, or after the file that is being written."""
        if self._saving:
            self._asked = True
        else:
            raise AskedToStop

    def restore(self, ranks: Link) -> None:
        """Resume from the newest checkpoint, which rank 0 reads for all."""
        step = total = 0
        if self.place.rank == 0:
            self.place.note("reading")
            step, total = self._read()
            self.place.note("restored", step=step, total=total)
        self.counted = ranks.all_sum(step), ranks.all_sum(total)
        self.saved = self.step

    def advance(self, ranks: Link) -> None:
        """Count one step, with all ranks."""
        step = self.step + 1
        self.counted = step, self.counted[1] + ranks.all_sum(part(step, self.place.rank, self.place.world_size))
        ftslurm.progress(step)
        ftslurm.heartbeat()

    def save(self, name: str) -> bool:
        """Commit the step and the sum under that name; return whether they could be written.

        Raises:
            ftslurm.RoundIsOver: the commit was fenced out.
            AskedToStop: SIGTERM was received meanwhile.
        """
        self._saving = True
        try:
            saved = self._commit(name)
        finally:
            self._saving = False
        if self._asked:
            self._asked = False
            raise AskedToStop
        return saved

    def _commit(self, name: str) -> bool:
        (step, total), place = self.counted, self.place
        content = {"attempt": place.attempt, "round": place.round, "rank": place.rank, "step": step, "total": total}
        try:
            with ftslurm.commit(place.checkpoints / name) as temporary:
                Path(temporary).write_text(json.dumps(content))
        except ftslurm.RoundIsOver as error:
            place.note("refused", name=name, step=step, why=str(error))
            raise
        except OSError as error:
            place.note("not-saved", name=name, step=step, why=str(error))
            return False
        place.note("saved", name=name, step=step)
        if name == "last.json":
            self.saved = step
        return True

    def checkpoint(self) -> None:
        """Save the files due after this step."""
        if self.step % SAVE_EVERY == 0 and self.place.rank == 0:
            self.save("last.json")
        if self.step % (2 * SAVE_EVERY) == 0:
            self.save(f"rank-{self.place.rank}.json")

    def finish(self, ranks: Link) -> None:
        """Save the result, with retries for `PATIENCE_S`, and synchronise all ranks."""
        if self.place.rank == 0:
            deadline = time.monotonic() + PATIENCE_S
            while not self.save("result.json"):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the result could not be saved within {PATIENCE_S:.0f} s")
                ftslurm.heartbeat()
                time.sleep(RETRY_S)
        ranks.all_sum(0)

    def _read(self) -> tuple[int, int]:
        path, deadline = self.place.checkpoints / "last.json", time.monotonic() + PATIENCE_S
        while True:
            try:
                saved = json.loads(path.read_text())
                return int(saved["step"]), int(saved["total"])
            except OSError as error:
                # No checkpoint yet, unless the directory itself is missing.
                if isinstance(error, FileNotFoundError) and self.place.checkpoints.is_dir():
                    return 0, 0
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)


def leave_others_behind() -> None:
    """Start leftovers as of data loaders and careless scripts: a child in a session of its own, and a daemon."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], check=False)


def fail_by_code(_number: int, _frame: FrameType | None) -> None:
    """Fail without a message."""
    os._exit(EXIT_HIDDEN)


def fail_by_exception(_number: int, _frame: FrameType | None) -> None:
    """Fail with a message."""
    raise ValueError("asked to fail by chaos")


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True, help="seconds that a step takes")
    parser.add_argument("--link", choices=("star", "gloo"), default="star")
    parser.add_argument("--polls", action="store_true", help="call ftslurm.should_stop with each step")
    parser.add_argument("--slow-stop-s", type=float, default=0.0, help="seconds between SIGTERM and the last save")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    options = parser.parse_args()
    environment = os.environ
    place = Place(
        int(environment["RANK"]),
        int(environment["WORLD_SIZE"]),
        int(environment["FTSLURM_ROUND"]),
        environment["FTSLURM_ATTEMPT"],
        environment["FTSLURM_NODE"],
        options.checkpoints,
        options.events,
    )
    count = Count(place)
    if not options.polls:
        signal.signal(signal.SIGTERM, count.ask_to_stop)
    signal.signal(signal.SIGUSR1, fail_by_code)
    signal.signal(signal.SIGUSR2, fail_by_exception)
    try:
        place.note("started", pid=os.getpid())
        leave_others_behind()
        ranks = link(options.link)
        count.restore(ranks)
        place.note("counting", step=count.step)
        while count.step < options.steps:
            if options.polls and ftslurm.should_stop(count.step):
                leave(count, options.slow_stop_s)
                return
            time.sleep(options.step_s)
            count.advance(ranks)
            count.checkpoint()
        count.finish(ranks)
        place.note("done", step=count.step)
        ranks.close()
    except AskedToStop:
        stop(count, options.slow_stop_s)


def leave(count: Count, slow_s: float) -> None:
    """Save at the step at which all ranks leave."""
    count.place.note("left", step=count.step, why=ftslurm.stop_reason() or "")
    with ftslurm.section("checkpoint"):
        time.sleep(slow_s)
        if count.place.rank == 0 and count.step > count.saved:
            count.save("last.json")


def stop(count: Count, slow_s: float) -> None:
    """Save unsaved steps, as programs do on SIGTERM, and exit with its code."""
    count.place.note("asked-to-stop", step=count.step)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(slow_s)
    try:
        if count.place.rank == 0 and count.step > count.saved:
            count.save("last.json")
    except ftslurm.RoundIsOver:
        # It is recorded in the events.
        pass
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
