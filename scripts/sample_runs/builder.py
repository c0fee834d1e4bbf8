"""Run directories with given histories, for tests: no agent, no Slurm, no waiting; times by a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ftslurm.failures.retryability import blame
from ftslurm.records.codec import write_record
from ftslurm.records.flight import DUMP, NONE, SOCKET, FlightRecord, Trace
from ftslurm.text import duration
from sample_runs.contents import START_NS, RunContents
from sample_runs.files import write_run
from sample_runs.records import (
    SECOND_NS,
    attempt_record,
    error_record,
    one_line,
    progress,
    round_record,
    stacks_text,
)

__all__ = ["FRAMES", "SECOND_NS", "START_NS", "RunBuilder"]

FRAMES = (
    ("/home/ann/lm/train.py", 61, "<module>", "main()"),
    ("/home/ann/lm/train.py", 42, "train_step", "loss = model(batch).mean()"),
)


class RunBuilder(RunContents):
    """Build a run's history, then write it as a run directory.

    Every method returns the builder, so that a history is one expression::

        run = RunBuilder(tmp_path).round().fail(3, ValueError("boom"), step=120).round().succeed()
        path = run.close("succeeded", "all ranks succeeded").write()

    Time advances only by `wait` and the ``after_s`` arguments.

    Args:
        parent: the shared directory; the run directory is made in it.
        nodes: number of nodes, named n1, n2, ...
        nproc: workers per node.
        run_id: the run's name.
        job_id: the Slurm job id; the first attempt is ``<job_id>.0``.
        max_restarts: the restart budget.
        summaries: whether the round records contain summaries of the error records.
    """

    def __init__(
        self,
        parent: Path,
        *,
        nodes: int = 2,
        nproc: int = 2,
        run_id: str = "job-123",
        job_id: str = "123",
        max_restarts: int = 3,
        summaries: bool = True,
    ) -> None:
        super().__init__(parent / run_id, run_id, job_id, nodes, nproc, max_restarts, summaries)
        self.attempt()

    def wait(self, seconds: float) -> RunBuilder:
        """Advance the time."""
        self.now_ns += int(seconds * SECOND_NS)
        return self

    def clock(self, node: str, ahead_s: float = 0.0, *, error_s: float | None = 0.002) -> RunBuilder:
        """Set a node's clock ahead of the true time; all its files have its times.

        Args:
            node: the clock's node; n1 coordinates, so the state has its times.
            ahead_s: offset in seconds; negative: behind.
            error_s: error of its agent's measurement of the offset, in seconds; None: not measured.
        """
        error_ns = None if error_s is None else int(error_s * SECOND_NS)
        self.clocks[node] = (int(ahead_s * SECOND_NS), error_ns)
        return self

    def attempt(self, *, logs: str | None = None, cwd: str = "/home/ann/lm") -> RunBuilder:
        """Begin an attempt (the constructor begins the first)."""
        number = len(self.attempts)
        facts = (self.job_id, number, self.node_names, self.max_restarts)
        self.attempts.append(attempt_record(*facts, self.now_ns, logs, cwd))
        return self

    def round(self, *, nodes: list[str] | None = None, after_s: float = 1.0) -> RunBuilder:
        """Form the next round, on all nodes or on the given ones."""
        self.wait(after_s)
        number = len(self.history) + 1
        names = nodes or self.node_names
        world = len(names) * self.nproc
        attempt = self.attempts[-1]["attempt"]
        self.history.append(
            {
                "round": number,
                "attempt": attempt,
                "nodes": names,
                "world_size": world,
                "formed_ns": self.now_ns,
                "ended_ns": None,
                "outcome": "running",
                "reason": None,
                "failure": None,
            }
        )
        for group_rank, name in enumerate(names):
            self.round_nodes[number, name] = round_record(
                number, attempt, name, group_rank, self.nproc, names[0], world, self.now_ns, self.health_of(name)
            )
        return self

    def steps(
        self, first: int, last: int, *, startup_s: float = 0.0, over_s: float = 0.0, reported: bool = True
    ) -> RunBuilder:
        """Set the training steps of all ranks of this round, from ``first`` to ``last``.

        Args:
            first, last: the steps.
            startup_s: time until the first one was reported.
            over_s: time from the first to the last one.
            reported: by the script; False: they are those of its optimizer.
        """
        self.wait(startup_s)
        first_ns = self.now_ns
        self.wait(over_s)
        for node in self.newest_nodes():
            for worker in node["workers"]:
                worker["progress" if reported else "optimizer_steps"] = progress(first, first_ns, last, self.now_ns)
        return self

    def find(
        self,
        node: str,
        text: str,
        *,
        subject: str = "",
        check: str = "gpu-ecc",
        status: str = "fail",
        advice: str = "Have the GPU replaced.",
        after_s: float = 0.0,
    ) -> RunBuilder:
        """Add a finding of a health check on a node, for the records of this round and later ones.

        Args:
            node: the node.
            text: the finding's text.
            subject: such as "GPU 3"; empty: the node.
            check: the check's name.
            status: "warn" or "fail".
            advice: the remedy.
            after_s: time to advance before.
        """
        self.wait(after_s)
        finding = {"check": check, "status": status, "subject": subject, "text": text, "advice": advice}
        self.found.setdefault(node, []).append(finding | {"since_ns": self.now_ns})
        for name_of in self.newest_nodes():
            if name_of["node"] == node and name_of["ended_ns"] is None:
                name_of["health"] = self.health_of(node)
        return self

    def exclude(self, node: str, *, unhealthy: str | None = None, excluded: str | None = None) -> RunBuilder:
        """Set why a node takes part in no round (unhealthy), or only if others do not suffice (excluded)."""
        self.exclusions[node] = {"unhealthy": unhealthy, "excluded": excluded}
        return self

    def pace(self, rank: int, bucket: int, intervals: int = 100) -> RunBuilder:
        """Add `intervals` step intervals of a rank in one bucket of `ftslurm.monitor.heartbeat_page`."""
        for node in self.newest_nodes():
            for worker in node["workers"]:
                if worker["rank"] == rank:
                    worker["pace"] = [[bucket, intervals]]
        return self

    def fail(
        self,
        rank: int,
        exception: BaseException | None = None,
        *,
        signal: str | None = None,
        exit_code: int | None = None,
        step: int | None = None,
        after_s: float = 0.0,
        frames: tuple[tuple[str, int, str, str | None], ...] = FRAMES,
        module: str | None = None,
        record: bool = True,
        core_dumped: bool = False,
        log: str | None = None,
    ) -> RunBuilder:
        """Let a rank fail: with an exception, by a signal, or with an exit code (default: 1).

        Args:
            exception: its exception; type, message and cause are recorded.
            signal: the signal that ended it, such as "SIGKILL".
            exit_code: its exit code.
            step: the last training step it reported.
            after_s: time to advance before.
            frames: the traceback: file, line, function, source, outermost first.
            module: the exception type's module, if different from its own.
            record: whether an error.json was written.
            core_dumped: whether it left a core file.
            log: the end of its stderr.
        """
        self.wait(after_s)
        node, worker = self.worker_of(rank)
        if signal is None and exit_code is None:
            exit_code = 1
        kind = "exception" if exception is not None else "signal" if signal else "exit"
        worker |= {
            "ended_ns": self.now_ns,
            "exit_code": exit_code if signal is None else None,
            "signal": signal,
            "core_dumped": core_dumped,
            "failed": True,
        }
        if step is not None:
            worker["progress"] = progress(step, self.now_ns, step, self.now_ns)
            self.keep_first_step(worker, step)
        message = (one_line(exception) if exception is not None else signal or f"exit code {exit_code}")[:500]
        failure = {
            "round": node["round"],
            "node": node["node"],
            "rank": rank,
            "local_rank": worker["local_rank"],
            "time_ns": self.now_ns,
            "kind": kind,
            "exit_code": worker["exit_code"],
            "signal": signal,
            "message": message,
            "step": step,
        }
        error = error_record(self.run_id, node, failure, exception, frames, module)
        if self.history[-1]["failure"] is None:
            self.history[-1]["failure"] = {**failure, "blame": blame(error)}
        if record:
            self.errors[node["round"], rank] = error
        if log is not None:
            self.log(rank, log)
        return self

    def hang(
        self,
        rank: int,
        message: str = "no heartbeat for 30 s (time-out 30 s)",
        *,
        places: Mapping[int, Sequence[tuple[str, int, str]] | str],
        step: int | None = None,
        after_s: float = 0.0,
        silent_s: float = 30.0,
    ) -> RunBuilder:
        """Let a rank's time-out expire, and collect the stacks of all ranks.

        Args:
            rank: the hung rank.
            message: the expired time-out.
            places: for each rank its main thread's calls (file, line, function), outermost first, or why they could
                not be collected, such as "stopped (SIGSTOP)". Without a call, its script is over.
            step: the last training step that it reported.
            after_s: time to advance before.
            silent_s: time since its last heartbeat.
        """
        self.wait(after_s)
        node, worker = self.worker_of(rank)
        where = {"round": node["round"], "node": node["node"], "rank": rank, "local_rank": worker["local_rank"]}
        end = {
            "time_ns": self.now_ns,
            "kind": "hang",
            "exit_code": None,
            "signal": None,
            "message": message,
            "step": step,
            "since_ns": self.now_ns - int(silent_s * SECOND_NS),
            "blame": "perhaps",
        }
        if self.history[-1]["failure"] is None:
            self.history[-1]["failure"] = {**where, **end}
        for each, place in places.items():
            its_node, its_worker = self.worker_of(each)
            of = (each, its_worker["local_rank"], its_node["node"], self.now_ns)
            text = stacks_text(*of, place, message if each == rank else None)
            self.outputs[node["round"], each, "stacks"] = text
        return self

    def collectives(self, rank: int, trace: Trace | None, *, left: bool = False) -> RunBuilder:
        """Add the record of a rank's collectives, as collected now.

        Args:
            rank: of the newest round.
            trace: what torch's flight recorder held; None: the rank gave no answer.
            left: whether the rank left it when an exception ended it, and was not asked.
        """
        node, worker = self.worker_of(rank)
        trouble = "no answer within 2 s" if trace is None else None
        source = NONE if trace is None else DUMP if left else SOCKET
        where = (self.run_id, node["round"], node["node"], rank, self.now_ns)
        record = FlightRecord(*where, source, trouble, trace=trace)
        self.outputs[node["round"], worker["rank"], "collectives"] = write_record(record).decode()
        return self

    def log(self, rank: int, text: str, stream: str = "stderr") -> RunBuilder:
        """Add text to the output of a rank of this round."""
        key = (len(self.history), rank, stream)
        self.outputs[key] = self.outputs.get(key, "") + text
        self.written_ns[key] = self.now_ns
        return self

    def finish(self, rank: int) -> RunBuilder:
        """Let a rank succeed."""
        _, worker = self.worker_of(rank)
        worker |= {"ended_ns": self.now_ns, "exit_code": 0}
        return self

    def stop(
        self,
        *,
        reason: str | None = None,
        after_s: float = 0.2,
        killed: tuple[int, ...] = (),
        outcome: str = "failed",
        stopping_s: float | None = None,
    ) -> RunBuilder:
        """Let ftslurm stop all running ranks, and end the round; ``killed`` are ranks that needed SIGKILL.

        ``stopping_s``: time from the stop request to the end of the ranks; None: its start is not recorded.
        """
        self.wait(after_s)
        stop_ns = None if stopping_s is None else self.now_ns
        self.wait(stopping_s or 0.0)
        failure = self.history[-1]["failure"]
        reason_text = reason
        if failure is not None:
            what = f"rank {failure['rank']} on {failure['node']} {'hung' if failure['kind'] == 'hang' else 'failed'}"
            reason = reason or what
            reason_text = f"{what} at step {failure['step']}: {failure['message']}"
        for node in self.newest_nodes():
            if node["outcome"] == "gone":
                continue
            own = any(w["failed"] for w in node["workers"])
            for worker in node["workers"]:
                if worker["ended_ns"] is None:
                    signal = "SIGKILL" if worker["rank"] in killed else "SIGTERM"
                    stopped = {"ended_ns": self.now_ns, "signal": signal, "stop_signal": signal}
                    worker.update(stopped, stopped_by_ftslurm=True)
            node |= {
                "ended_ns": self.now_ns,
                "outcome": "failed" if own else "stopped",
                "stop_reason": reason,
                "stop_ns": stop_ns,
            }
        self.history[-1] |= {"ended_ns": self.now_ns, "outcome": outcome, "reason": reason_text}
        return self

    def lose(self, *names: str, silent_s: float = 30.0) -> RunBuilder:
        """Lose nodes now; the coordinator detects it ``silent_s`` later and stops the others."""
        for name in names:
            node = self.round_nodes[len(self.history), name]
            node["outcome"] = "gone"
            self.last_record_ns[name] = self.now_ns
        self.wait(silent_s)
        for name in names:
            self.lost.append(
                {
                    "node": name,
                    "incarnation": f"{name}-1",
                    "round": len(self.history),
                    "time_ns": self.now_ns,
                    "silent_s": silent_s,
                }
            )
        reason_text = "; ".join(f"{n} was lost: no heartbeat of its agent for {duration(silent_s)}" for n in names)
        self.stop(reason=reason_text, outcome="node-lost", after_s=0)
        for name in names:
            self.round_nodes[len(self.history), name]["outcome"] = "running"
        return self

    def kill_agent(self, node: str, *, after_s: float = 0.0) -> RunBuilder:
        """Let a node's agent be killed, and its ranks with it; its guardian records it at once."""
        self.wait(after_s)
        self.round_nodes[len(self.history), node]["outcome"] = "gone"
        self.last_record_ns[node] = self.now_ns
        return self.leave(node, "its agent was killed by SIGKILL")

    def replace_agent(self, node: str) -> RunBuilder:
        """Let a killed agent's guardian start a new one, whose record replaces the record of the end."""
        reason, time_ns = self.reasons.pop(node), self.last_record_ns.pop(node)
        self.status[node] = "ready"
        predecessor = {"incarnation": f"{node}-1", "reason": reason, "time_ns": time_ns}
        self.exclusions.setdefault(node, {}).update(incarnation=f"{node}-2", predecessor=predecessor)
        return self

    def succeed(self, *, after_s: float = 60.0) -> RunBuilder:
        """Let all ranks succeed."""
        self.wait(after_s)
        for node in self.newest_nodes():
            for worker in node["workers"]:
                worker |= {"ended_ns": self.now_ns, "exit_code": 0}
            node |= {"ended_ns": self.now_ns, "outcome": "succeeded"}
        self.history[-1] |= {"ended_ns": self.now_ns, "outcome": "succeeded"}
        self.status = dict.fromkeys(self.node_names, "succeeded")
        return self

    def leave(self, node: str, reason: str) -> RunBuilder:
        """Let a node leave."""
        self.status[node] = "left"
        self.reasons[node] = reason
        return self

    def close(self, outcome: str, reason: str, exit_code: int | None = None) -> RunBuilder:
        """Record the run's end."""
        code = exit_code if exit_code is not None else {"succeeded": 0, "stopped": 143}.get(outcome, 1)
        self.closed = {"outcome": outcome, "reason": reason, "exit_code": code, "time_ns": self.now_ns}
        return self

    def write(self) -> Path:
        """Write the run directory and return its path."""
        return write_run(self)
