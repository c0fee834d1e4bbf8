"""Samples when this node's ranks arrive at their collectives, for status and report (`ftslurm.monitor.lateness`).

Now and then a thread asks each rank's flight recorder, which costs the rank some 25 ms of one core, and publishes the
newest steps in one file. All nodes sample at the same times of day, so that their samples are of the same steps.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from ftslurm.agent.workers import Worker, Workers
from ftslurm.monitor import heartbeat_page
from ftslurm.monitor.arrivals import arrivals_of, joined, read_calls
from ftslurm.monitor.flight_client import FETCH_S, ask
from ftslurm.monitor.flight_server import SOCKET
from ftslurm.records.arrivals import ArrivalsRecord, RankArrivals
from ftslurm.records.codec import BadFile, write_record
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectory

FIRST_STEPS = 30
"""The first sample is taken when a rank has made so many steps."""
STEPS = 24
"""Steps of one sample, at most: two samples suffice to name a slow rank, so that a short disturbance names none."""
SOON_S, SOON_SAMPLES, USUAL_S = 10.0, 3, 80.0
"""Seconds from one sample to the next: of the first ones in a round, and of the others. One divides the other."""
SHARE = 0.0005
"""Of a rank's time, at most, that usual samples take; the interval is doubled until that is so."""


class ArrivalSampler:
    """Samples the arrivals of this node's ranks while a round runs.

    Args:
        node: this node.
        workers: the agent's.
        fs, run: where the record goes.
        send: runs a task on the courier's thread.
        monotonic: clock, seconds.
        now_ns: wall clock, nanoseconds since the epoch.
        recorded: whether the ranks have a recorder; nothing is sampled otherwise.
    """

    def __init__(
        self,
        node: str,
        workers: Workers,
        fs: FileSystem,
        run: RunDirectory,
        send: Callable[[Callable[[], object]], None],
        monotonic: Callable[[], float],
        now_ns: Callable[[], int],
        recorded: bool = True,
    ) -> None:
        self._node = node
        self._workers = workers
        self._fs = fs
        self._run = run
        self._send = send
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._recorded = recorded
        self._round = 0
        self._samples = 0
        self._took_s = 0.0
        self._sample_at: float | None = None
        self._thread: threading.Thread | None = None
        self._known: dict[int, RankArrivals] = {}

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `on_time` is due; None: no round of several ranks runs."""
        return self._sample_at

    def begin(self, round_: int, world_size: int) -> None:
        """The workers of a round have been started."""
        self._round, self._samples, self._took_s = round_, 0, 0.0
        self._known = {}
        self._sample_at = self._next() if self._recorded and world_size > 1 else None

    def over(self) -> None:
        """The round is over here."""
        self._round, self._sample_at = 0, None

    def on_time(self) -> None:
        """The deadline may have passed."""
        if self._sample_at is None or self._monotonic() < self._sample_at:
            return
        alive = [worker for worker in self._workers.all if worker.ended_ns is None]
        if not (self._thread is not None and self._thread.is_alive()) and any(map(_has_trained, alive)):
            self._samples += 1
            arguments = (self._round, alive, self._known)
            self._thread = threading.Thread(target=self._sample, args=arguments, name="arrivals", daemon=True)
            self._thread.start()
        self._sample_at = self._next()

    def _next(self) -> float:
        interval_s = SOON_S
        if self._samples >= SOON_SAMPLES:
            interval_s = USUAL_S
            while self._took_s > SHARE * interval_s:
                interval_s *= 2
        # At multiples of the interval by the wall clock, which the nodes share.
        return self._monotonic() + interval_s - self._now_ns() / 1e9 % interval_s

    # On the thread

    def _sample(self, round_: int, workers: list[Worker], known: dict[int, RankArrivals]) -> None:
        took_s = [0.0]
        for worker in workers:
            # One by one: a full answer has a megabyte.
            path = os.path.join(worker.record_dir, SOCKET)
            answer = ask({0: path}, FETCH_S)[0]
            if answer.data is None or answer.took_s is None:
                continue
            took_s.append(answer.took_s)
            page = heartbeat_page.read(worker.record_dir)
            try:
                calls = read_calls(answer.data, "its recorder's document")
            except BadFile:
                continue
            ends = page.step_ends[-STEPS - 1 :] if page is not None else ()
            found = arrivals_of(worker.rank, calls, ends)
            if found is not None:
                known[worker.rank] = joined(known.get(worker.rank), found)
        self._took_s = max(took_s)
        if not known or self._round != round_:
            return
        record = ArrivalsRecord(round_, self._node, self._now_ns(), tuple(known[rank] for rank in sorted(known)))
        path = self._run.arrivals_file(round_, self._node)
        self._send(lambda: self._publish(path, write_record(record)))

    def _publish(self, path: str, content: bytes) -> None:
        # The directory is there only in rounds that train for a while.
        self._fs.makedirs(os.path.dirname(path))
        publish(self._fs, path, content)


def _has_trained(worker: Worker) -> bool:
    page = heartbeat_page.read(worker.record_dir)
    steps = (page.progress or page.optimizer_steps) if page is not None else None
    return steps is not None and steps.marks >= FIRST_STEPS
