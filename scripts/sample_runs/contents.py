"""What the files of a run contain that is built with `sample_runs.builder`, before they are written."""

from __future__ import annotations

from pathlib import Path

from ftslurm.records.error import ErrorRecord
from sample_runs.records import SECOND_NS, Dict

# 2026-03-01 12:00:00 UTC
START_NS = 1_772_366_400 * SECOND_NS


class RunContents:
    """The contents; tests may change them before they are written.

    Args:
        path: the run directory.
        run_id, job_id, nodes, nproc, max_restarts, summaries: see `RunBuilder`.

    Attributes:
        history, lost, closed: as in the state.
        round_nodes: the round records, by round and node.
        errors: the error records, by round and rank.
        outputs: the text of each file, by round, rank and "stdout", "stderr", "stacks" or "collectives".
        written_ns: when they were written last; absent: as the test writes them.
        status, reasons: of the node records.
        last_record_ns: when a node published its last record; absent: at the end.
        exclusions: further values of a node record.
        damaged: write the records as changed by a test, instead of by the agents' encoder, which refuses wrong values.
        clocks: by node, how far its clock is ahead, and the error of the measurement (None: not measured).
    """

    def __init__(
        self, path: Path, run_id: str, job_id: str, nodes: int, nproc: int, max_restarts: int, summaries: bool
    ) -> None:
        self.path = path
        self.run_id = run_id
        self.job_id = job_id
        self.nproc = nproc
        self.max_restarts = max_restarts
        self.summaries = summaries
        self.damaged = False
        self.node_names = [f"n{i + 1}" for i in range(nodes)]
        self.began_ns = self.now_ns = START_NS
        self.attempts: list[Dict] = []
        self.history: list[Dict] = []
        self.lost: list[Dict] = []
        self.round_nodes: dict[tuple[int, str], Dict] = {}
        self.errors: dict[tuple[int, int], ErrorRecord] = {}
        self.outputs: dict[tuple[int, int, str], str] = {}
        self.written_ns: dict[tuple[int, int, str], int] = {}
        self.status: dict[str, str] = dict.fromkeys(self.node_names, "running")
        self.reasons: dict[str, str] = {}
        self.last_record_ns: dict[str, int] = {}
        self.found: dict[str, list[Dict]] = {}
        self.exclusions: dict[str, Dict] = {}
        self.closed: Dict | None = None
        self.clocks: dict[str, tuple[int, int | None]] = {}
        # Workers of the newest round, by rank: a linear search for each of 16,384 ranks would take minutes.
        self._index: tuple[int, dict[int, tuple[Dict, Dict]]] = (0, {})

    def health_of(self, node: str) -> Dict | None:
        """Return a node's health; None: not checked."""
        found = self.found.get(node)
        if found is None:
            return None
        worst = "fail" if any(each["status"] == "fail" for each in found) else "warn"
        return {"status": worst, "checked_ns": self.now_ns, "set": "background", "findings": list(found)}

    def keep_first_step(self, worker: Dict, step: int) -> None:
        """Begin a worker's steps with those of the other workers, if these began before `step`."""
        others = [w["progress"] for n in self.newest_nodes() for w in n["workers"] if w["progress"] and w is not worker]
        if others:
            worker["progress"]["first_step"] = min([step, *(p["first_step"] for p in others)])

    def newest_nodes(self) -> list[Dict]:
        """Return the records of the newest round."""
        return [node for (number, _), node in self.round_nodes.items() if number == len(self.history)]

    def worker_of(self, rank: int) -> tuple[Dict, Dict]:
        """Return the round record and the entry of a rank in the newest round.

        Raises:
            ValueError: there is no such rank.
        """
        if self._index[0] != len(self.history):
            self._index = (len(self.history), {w["rank"]: (n, w) for n in self.newest_nodes() for w in n["workers"]})
        if rank not in self._index[1]:
            raise ValueError(f"no rank {rank} in round {len(self.history)}")
        return self._index[1][rank]
