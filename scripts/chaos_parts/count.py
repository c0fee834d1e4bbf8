"""The counting job: its ranks add numbers up together, save what they have by `ftslurm.commit`, and go on from there.

What it does it writes down in a file on the local disk as well, so that its history is known when the shared directory
is not there. Signals make it fail as programs do: SIGUSR1 by its exit code alone, SIGUSR2 by an exception.
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
"""Steps between checkpoints; each rank's own file comes half as often."""
PATIENCE_S = 120.0
"""So long the job tries to read its checkpoint, or to write its result, where the shared directory fails."""
RETRY_S = 0.3
EXIT_HIDDEN = 3


class AskedToStop(BaseException):
    """SIGTERM came."""


@dataclass(frozen=True)
class Place:
    """Who this process is, and where it writes."""

    rank: int
    world_size: int
    round: int
    attempt: str
    node: str
    checkpoints: Path
    events: Path

    def note(self, what: str, **facts: object) -> None:
        """Write down what happens, in one write, so that lines of several ranks never mix."""
        who = {"what": what, "round": self.round, "attempt": self.attempt, "rank": self.rank, "node": self.node}
        line = json.dumps({"time_ns": time.time_ns(), **who, **facts}) + "\n"
        fd = os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


class Count:
    """One rank's part in the job.

    Attributes:
        counted: the step and the sum up to it; one object, for a signal may come between any two assignments.
        saved: the step of the newest checkpoint that this rank knows of.
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
        """Take SIGTERM: stop at once, or when the file that is being written is written."""
        if self._saving:
            self._asked = True
        else:
            raise AskedToStop

    def restore(self, ranks: Link) -> None:
        """Go on from the newest checkpoint, which rank 0 reads for all."""
        step = total = 0
        if self.place.rank == 0:
            self.place.note("reading")
            step, total = self._read()
            self.place.note("restored", step=step, total=total)
        self.counted = ranks.all_sum(step), ranks.all_sum(total)
        self.saved = self.step

    def advance(self, ranks: Link) -> None:
        """Count one step further, with all ranks."""
        step = self.step + 1
        self.counted = step, self.counted[1] + ranks.all_sum(part(step, self.place.rank, self.place.world_size))
        ftslurm.progress(step)
        ftslurm.heartbeat()

    def save(self, name: str) -> bool:
        """Commit what is known under that name; tell whether it could be written.

        Raises:
            ftslurm.RoundIsOver: it may not be.
            AskedToStop: SIGTERM came meanwhile.
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
        """Save what is due after this step."""
        if self.step % SAVE_EVERY == 0 and self.place.rank == 0:
            self.save("last.json")
        if self.step % (2 * SAVE_EVERY) == 0:
            self.save(f"rank-{self.place.rank}.json")

    def finish(self, ranks: Link) -> None:
        """Save the result, however long the shared directory fails, and let all ranks know."""
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
                # No checkpoint yet; but not where the directory itself is away.
                if isinstance(error, FileNotFoundError) and self.place.checkpoints.is_dir():
                    return 0, 0
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_S)


def leave_others_behind() -> None:
    """Start what data loaders and careless scripts leave: a child in a session of its own, and a daemon."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], check=False)


def fail_by_code(_number: int, _frame: FrameType | None) -> None:
    """Fail without a word."""
    os._exit(EXIT_HIDDEN)


def fail_by_exception(_number: int, _frame: FrameType | None) -> None:
    """Fail with a word."""
    raise ValueError("asked to fail by chaos")


def main() -> None:
    """Count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True, help="seconds that a step takes")
    parser.add_argument("--link", choices=("star", "gloo"), default="star")
    parser.add_argument("--slow-stop-s", type=float, default=0.0, help="seconds between SIGTERM and the last save")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    asked = parser.parse_args()
    environment = os.environ
    place = Place(
        int(environment["RANK"]),
        int(environment["WORLD_SIZE"]),
        int(environment["FTSLURM_ROUND"]),
        environment["FTSLURM_ATTEMPT"],
        environment["FTSLURM_NODE"],
        asked.checkpoints,
        asked.events,
    )
    count = Count(place)
    signal.signal(signal.SIGTERM, count.ask_to_stop)
    signal.signal(signal.SIGUSR1, fail_by_code)
    signal.signal(signal.SIGUSR2, fail_by_exception)
    try:
        place.note("started", pid=os.getpid())
        leave_others_behind()
        ranks = link(asked.link)
        count.restore(ranks)
        place.note("counting", step=count.step)
        while count.step < asked.steps:
            time.sleep(asked.step_s)
            count.advance(ranks)
            count.checkpoint()
        count.finish(ranks)
        place.note("done", step=count.step)
        ranks.close()
    except AskedToStop:
        stop(count, asked.slow_stop_s)


def stop(count: Count, slow_s: float) -> None:
    """Save what is not saved yet, as programs do that are told to stop, and end by SIGTERM's code."""
    count.place.note("asked-to-stop", step=count.step)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(slow_s)
    try:
        if count.place.rank == 0 and count.step > count.saved:
            count.save("last.json")
    except ftslurm.RoundIsOver:
        # It is in the events.
        pass
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
