"""What an agent's loop does to its node and learns from it: the only door between the loop and the world.

A node's agent implements it by processes, pipes and threads (`ftslurm.agent.node_effects`), the simulator by virtual
time and scripted workers (`scripts/simulation/agent.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ftslurm.agent.actions import Assignment, CollectStacks, RecordFailure, RecordRound, StandbyEnded
from ftslurm.agent.containment import Defect
from ftslurm.records.node import NodeRecord, Vitals
from ftslurm.records.state import State
from ftslurm.records.stop import Stop, StopVote
from ftslurm.terminal import INFO


class SpawnFailed(Exception):
    """A worker could not be started; those with higher local ranks were not tried.

    Args:
        errno: the kernel's error number; None: unknown.
    """

    def __init__(self, local_rank: int, problem: str, errno: int | None = None) -> None:
        super().__init__(problem)
        self.local_rank = local_rank
        self.problem = problem
        self.errno = errno


class Effects:
    """The effects of one agent; workers are given by their local ranks.

    Those of an agent without logs, records and standby workers may be left as they are.
    """

    # Time and events

    def monotonic(self) -> float:
        """Return the monotonic clock, seconds."""
        raise NotImplementedError

    def now_ns(self) -> int:
        """Return the wall clock, nanoseconds since the epoch."""
        raise NotImplementedError

    @property
    def deadline(self) -> float | None:
        """The monotonic second at which `events` is due, even if nothing happens before."""
        raise NotImplementedError

    def events(self, record: NodeRecord) -> Iterator[object]:
        """Yield what has happened on this node; the caller handles each event before the next is computed.

        Signals from outside come first: they explain workers that died of the same signal.

        Args:
            record: this node's, for the error records.
        """
        raise NotImplementedError

    # The user and the run directory

    def log(self, text: str, level: int = INFO) -> None:
        """Log one line for the user, unless lines of that level are left out."""
        raise NotImplementedError

    def report_defect(self, defect: Defect, round_: int) -> None:
        """Log and record a defect of ftslurm, and drop what is left of its component."""
        raise NotImplementedError

    def record_round(self, action: RecordRound, record: NodeRecord, started_ns: int) -> None:
        """Write the round's record of this node."""

    def record_failure(self, action: RecordFailure) -> None:
        """Write the error record of a worker."""

    def retry_records(self) -> None:
        """Retry the records that could not be written: the shared directory works again."""

    # The node record and the state

    def publish(self, record: NodeRecord) -> None:
        """Publish this node's record."""
        raise NotImplementedError

    def reserve_port(self) -> int:
        """Reserve another port for the next round."""
        raise NotImplementedError

    def with_health(self, record: NodeRecord) -> NodeRecord:
        """Return the record with this node's health."""
        raise NotImplementedError

    def vitals(self, round_: int) -> Vitals | None:
        """Return the progress of the ranks; None before they run."""
        return None

    def on_state(self, state: State, coordinating: bool) -> None:
        """The newest state was read; ``coordinating``: by the node that holds the lease."""

    # A round's beginning

    def make_directories(self, assignment: Assignment) -> int:
        """Make a round's directories; return the number of registered commits of past rounds.

        On the courier's thread.

        Raises:
            OSError: that failed.
        """
        raise NotImplementedError

    def revoke_commits(self, assignment: Assignment, report: Callable[[str | None], None]) -> None:
        """Revoke the commits of past rounds, without waiting for it; report a problem, or None."""
        raise NotImplementedError

    def test_connection(self, assignment: Assignment, report: Callable[[str | None], None]) -> None:
        """Test the connection to the round's master, without waiting for it; report a problem, or None."""
        raise NotImplementedError

    def spawn(self, assignment: Assignment) -> None:
        """Start all workers of a round.

        Raises:
            SpawnFailed: one cannot be started.
        """
        raise NotImplementedError

    def start_standbys(self, local_ranks: tuple[int, ...]) -> Iterable[StandbyEnded]:
        """Start standby workers in these slots; return the ends of those that could not be started, or not yet."""
        return ()

    def drop_standbys(self) -> None:
        """End all standby workers."""

    # Its workers and its end

    def running(self) -> set[int]:
        """Return the workers that have not ended."""
        raise NotImplementedError

    def signal(self, local_ranks: tuple[int, ...], number: int) -> None:
        """Send a signal to the main processes of these workers."""
        raise NotImplementedError

    def stoppable(self) -> bool:
        """Return whether a worker takes notice of an orderly stop (`ftslurm.should_stop`)."""
        return False

    def follow_stop(self, stop: Stop, kill_at: float | None) -> StopVote:
        """Pass an orderly stop, as it stands, on to the workers; return this node's answer.

        Args:
            kill_at: the monotonic second at which they are killed; None: unknown.
        """
        raise NotImplementedError

    def collect_stacks(self, round_: int, collect: CollectStacks) -> bool:
        """Begin to collect stacks and records of collectives; False: impossible, no event follows.

        Args:
            round_: the workers' round.
            collect: whose, and why; where they are stopped, SIGTERM waits for it, a bounded time.
        """
        raise NotImplementedError

    def stderr_of(self, local_rank: int) -> str | None:
        """Return the file that has the worker's stderr; None without one."""
        return None

    def name_left_behind(self) -> None:
        """Log which processes of the user's the next sweep kills although all ranks have succeeded."""

    def prepare_sweep(self) -> None:
        """Prepare the end of everything that descends from this agent, but for standby workers."""
        raise NotImplementedError

    def sweep(self) -> bool:
        """Kill and collect what descends from this agent, but for standby workers; True: nothing is left to kill."""
        raise NotImplementedError

    def on_swept(self, record: NodeRecord) -> None:
        """Nothing is left of the round's processes."""

    def survivors(self) -> str:
        """Return which processes survive `sweep`, as text."""
        raise NotImplementedError

    def forget_round(self) -> None:
        """Forget the round's workers and their node-local files."""
