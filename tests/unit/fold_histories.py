"""A coordinator and its nodes, for histories of the fold: which records are read, and the state that follows."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.records.node import NodeRecord, first_record
from ftslurm.records.stacks import StacksFile
from ftslurm.records.state import (
    FAILED,
    READY,
    RUNNING,
    Failure,
    Hang,
    State,
)
from ftslurm.rendezvous.fold import begin, fold
from ftslurm.rendezvous.observation import Observation, RunSpec, Timing

TIMING = Timing(node_timeout_s=8, join_timeout_s=600, last_call_s=30, stop_spread_s=2)
ATTEMPT = "12.0"


def failure(round_: int, node: str, rank: int, code: int | None = 1, signal: str | None = None) -> Failure:
    what = signal or f"exit code {code}"
    return Failure(round_, node, rank, 0, 5, "signal" if signal else "exit", code, signal, what, 40)


class Job:
    """Some nodes and their coordinator; `coordinate` folds their records. A node is named by its number."""

    timing = TIMING

    def __init__(self, nodes: int, low: int | None = None, high: int | None = None, restarts: int = 3) -> None:
        self.names = [f"n{i + 1}" for i in range(nodes)]
        run_spec = RunSpec("r", ATTEMPT, tuple(self.names), low or nodes, high or nodes, restarts)
        self.state = begin(None, run_spec, "n1", "i1", 0)
        self.records: dict[str, NodeRecord] = {}
        self.silent: dict[str, float] = {}
        self.forming_s = self.stop_requested_s = 0.0
        self.now_ns = 0
        self.stacks_file: StacksFile | None = None

    def join(self, *numbers: int, slots: int = 2) -> Job:
        for number in numbers or range(1, len(self.names) + 1):
            record = first_record(f"n{number}", f"i{number}", ATTEMPT, number - 1, slots)
            self.records[record.node] = replace(record, port=20_000 + number)
        return self

    def publish(self, number: int, **changes: object) -> Job:
        name = f"n{number}"
        self.records[name] = replace(self.records[name], **changes)  # type: ignore[arg-type]
        return self

    def coordinate(
        self, forming_s: float = 0.0, stop_requested_s: float = 0.0, hanging_s: float = 0.0, failing_s: float = 0.0
    ) -> State:
        waits = {"hanging_for_s": hanging_s, "failing_for_s": failing_s, "stacks_file": self.stacks_file}
        observation = Observation(self.records, self.silent, forming_s, self.now_ns, stop_requested_s, **waits)
        before = self.state
        self.state = fold(before, observation, self.timing)
        again = fold(self.state, observation, self.timing)
        assert again == self.state, "the same observation changed the state twice"
        assert again is self.state, "nothing changed and yet there is a new state"
        return self.state

    def run(self) -> Job:
        """Form the next round and start its workers."""
        assert self.coordinate().phase == RUNNING
        for p in self.state.participants:
            self.publish(int(p.node[1:]), status=RUNNING, round=self.state.round, failure=None)
        return self

    def fail(self, number: int, **kind: object) -> Job:
        p = next(p for p in self.state.participants if p.node == f"n{number}")
        return self.publish(
            number,
            status=FAILED,
            failure=failure(self.state.round, p.node, p.first_rank, **kind),  # type: ignore[arg-type]
        )

    def hang(self, number: int) -> Job:
        p = next(p for p in self.state.participants if p.node == f"n{number}")
        return self.publish(
            number, hang=Hang(self.state.round, p.node, p.first_rank, 0, 5, "no heartbeat for 30.0 s", 40)
        )

    def collect_stacks(self, *numbers: int) -> Job:
        for number in numbers:
            self.publish(number, stacks_collected=self.state.round)
        return self

    def request_stop(self, *numbers: int, name: str = "SIGTERM") -> Job:
        for number in numbers:
            self.publish(number, reason=f"{name} from outside", stop_signal=name)
        return self

    def ready(self, *numbers: int) -> Job:
        for number in numbers:
            self.publish(number, status=READY)
        return self

    @property
    def last(self):
        return self.state.history[-1]

    @property
    def closed(self):
        assert self.state.closed is not None, self.state.phase
        return self.state.closed.outcome, self.state.closed.exit_code
