"""Run directories of given histories, for tests: no agent, no Slurm, no waiting; times as the story tells."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ftslurm.failures.short import in_table, short
from ftslurm.monitor.stacksfile import Stacks, encode

Dict = dict[str, Any]

SECOND_NS = 10**9
# 2026-03-01 12:00:00 UTC
START_NS = 1_772_366_400 * SECOND_NS
FRAMES = (
    ("/home/ann/lm/train.py", 61, "<module>", "main()"),
    ("/home/ann/lm/train.py", 42, "train_step", "loss = model(batch).mean()"),
)


class RunBuilder:
    """Tell a run's history, then write it as a run directory.

    Every method returns the builder, so that a history reads in one breath::

        run = RunBuilder(tmp_path).round().fail(3, ValueError("boom"), step=120).round().succeed()
        path = run.close("succeeded", "all ranks succeeded").write()

    Time stands still unless it is told to go: `wait` moves it, and so do the ``after_s`` arguments.

    Args:
        parent: the shared directory; the run directory is made in it.
        nodes: how many nodes, named n1, n2, ...
        nproc: workers per node.
        run_id: the run's name.
        job_id: the Slurm job id; the first attempt is ``<job_id>.0``.
        max_restarts: the restart budget.
        shorts: whether the nodes' files tell of the error records in short.
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
        shorts: bool = True,
    ) -> None:
        self.path = parent / run_id
        self.run_id = run_id
        self.job_id = job_id
        self.nproc = nproc
        self.max_restarts = max_restarts
        self.shorts = shorts
        self.node_names = [f"n{i + 1}" for i in range(nodes)]
        self.now_ns = START_NS
        self.attempts: list[Dict] = []
        self.history: list[Dict] = []
        self.lost: list[Dict] = []
        self.round_nodes: dict[tuple[int, str], Dict] = {}
        self.errors: dict[tuple[int, int], Dict] = {}
        self.outputs: dict[tuple[int, int, str], str] = {}
        self.status: dict[str, str] = dict.fromkeys(self.node_names, "running")
        self.reasons: dict[str, str] = {}
        self.last_words: dict[str, int] = {}
        self.found: dict[str, list[Dict]] = {}
        self.aside: dict[str, Dict] = {}
        self.closed: Dict | None = None
        self.clocks: dict[str, tuple[int, int | None]] = {}
        # Of the newest round, by rank: a search for each of 16,384 ranks would take minutes.
        self._index: tuple[int, dict[int, tuple[Dict, Dict]]] = (0, {})
        self.attempt()

    def wait(self, seconds: float) -> RunBuilder:
        """Let time pass."""
        self.now_ns += int(seconds * SECOND_NS)
        return self

    def clock(self, node: str, ahead_s: float = 0.0, *, error_s: float | None = 0.002) -> RunBuilder:
        """Let a node's clock be ahead of the story's; all that it writes has its times.

        Args:
            node: whose clock; n1 coordinates, so the state's times are its.
            ahead_s: by how much, in seconds; negative: behind.
            error_s: how well its agent has measured that, in seconds; None: it could not.
        """
        error_ns = None if error_s is None else int(error_s * SECOND_NS)
        self.clocks[node] = (int(ahead_s * SECOND_NS), error_ns)
        return self

    def attempt(self, *, logs: str | None = None, cwd: str = "/home/ann/lm") -> RunBuilder:
        """Begin an attempt (the constructor begins the first)."""
        number = len(self.attempts)
        self.attempts.append(
            {
                "schema": "ftslurm/attempt",
                "version": 1,
                "attempt": f"{self.job_id}.{number}",
                "created_ns": self.now_ns,
                "job_id": self.job_id,
                "restart_count": number,
                "node_list": self.node_names,
                "options": {"max_restarts": self.max_restarts},
                "command": ["train.py"],
                "cwd": cwd,
                "python": "/usr/bin/python3",
                "logs": logs,
            }
        )
        return self

    def round(self, *, nodes: list[str] | None = None, after_s: float = 1.0) -> RunBuilder:
        """Form the next round, on all nodes or on those named."""
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
            self.round_nodes[number, name] = {
                "schema": "ftslurm/round-node",
                "version": 1,
                "round": number,
                "attempt": attempt,
                "node": name,
                "incarnation": f"{name}-1",
                "group_rank": group_rank,
                "world_size": world,
                "host": name,
                "agent_pid": 100,
                "master": {"address": names[0], "port": 29500 + number},
                "started_ns": self.now_ns,
                "ended_ns": None,
                "outcome": "running",
                "stop_reason": None,
                "health": self._health(name),
                "workers": [self._worker(group_rank * self.nproc + i, i) for i in range(self.nproc)],
            }
        return self

    def steps(self, first: int, last: int, *, startup_s: float = 0.0, over_s: float = 0.0) -> RunBuilder:
        """Let all ranks of this round have reported steps from ``first`` to ``last``.

        Args:
            first: the first step.
            last: the last step.
            startup_s: how long after the moment of the story the first one was reported.
            over_s: how long after that the last one was.
        """
        self.wait(startup_s)
        first_ns = self.now_ns
        self.wait(over_s)
        for node in self._nodes():
            for worker in node["workers"]:
                worker["progress"] = {
                    "first_step": first,
                    "first_ns": first_ns,
                    "last_step": last,
                    "last_ns": self.now_ns,
                }
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
        """Let a health check find something on a node; the files of this round, and of later ones, have it.

        Args:
            node: the node.
            text: what was found.
            subject: what is meant, such as "GPU 3"; empty: the node.
            check: the check's name.
            status: "warn" or "fail".
            advice: what to do.
            after_s: how long after the moment of the story.
        """
        self.wait(after_s)
        finding = {"check": check, "status": status, "subject": subject, "text": text, "advice": advice}
        self.found.setdefault(node, []).append(finding | {"since_ns": self.now_ns})
        for name_of in self._nodes():
            if name_of["node"] == node and name_of["ended_ns"] is None:
                name_of["health"] = self._health(node)
        return self

    def set_aside(self, node: str, *, unfit: str | None = None, excluded: str | None = None) -> RunBuilder:
        """Let a node's last word say why it takes part in no round, or only where others do not suffice."""
        self.aside[node] = {"unfit": unfit, "excluded": excluded}
        return self

    def _health(self, node: str) -> Dict | None:
        found = self.found.get(node)
        if found is None:
            return None
        worst = "fail" if any(each["status"] == "fail" for each in found) else "warn"
        return {"status": worst, "looked_ns": self.now_ns, "set": "background", "findings": list(found)}

    def pace(self, rank: int, bucket: int, intervals: int = 100) -> RunBuilder:
        """Let so many intervals between a rank's steps have fallen into that bucket (`ftslurm.monitor.mark`)."""
        for node in self._nodes():
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
        """Let a rank fail: with an exception, by a signal, or with an exit code (1 if nothing is said).

        Args:
            rank: the rank.
            exception: what it raised; its type, message and cause are recorded.
            signal: the signal that ended it, such as "SIGKILL".
            exit_code: how it exited.
            step: the last step it reported.
            after_s: how long after the moment of the story.
            frames: the traceback: file, line, function, source, outermost first.
            module: the exception type's module, if another than its own.
            record: whether an error.json was written.
            core_dumped: whether it left a core file.
            log: the end of its stderr.
        """
        self.wait(after_s)
        node, worker = self._find(rank)
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
            worker["progress"] = {
                "first_step": step,
                "first_ns": self.now_ns,
                "last_step": step,
                "last_ns": self.now_ns,
            }
            self._keep_first_step(node, worker, step)
        message = _one_line(exception) if exception is not None else signal or f"exit code {exit_code}"
        failure = {
            "round": node["round"],
            "node": node["node"],
            "rank": rank,
            "local_rank": worker["local_rank"],
            "time_ns": self.now_ns,
            "kind": kind,
            "exit_code": worker["exit_code"],
            "signal": signal,
            "message": message[:500],
            "step": step,
        }
        if self.history[-1]["failure"] is None:
            self.history[-1]["failure"] = failure
        if record:
            self.errors[node["round"], rank] = self._error(node, failure, exception, frames, module)
        if log is not None:
            self.log(rank, log)
        return self

    def hang(
        self,
        rank: int,
        message: str = "no heartbeat for 30.0 s (time-out 30.0 s)",
        *,
        places: Mapping[int, Sequence[tuple[str, int, str]] | str],
        step: int | None = None,
        after_s: float = 0.0,
        silent_s: float = 30.0,
    ) -> RunBuilder:
        """Let a rank's time-out expire, and all ranks show where they are.

        Args:
            rank: whose time-out it was.
            message: what expired.
            places: for each rank its main thread's calls (file, line, function), outermost first, or why it cannot
                show them, such as "stopped (SIGSTOP)".
            step: the last step that it reported.
            after_s: how long after the moment of the story.
            silent_s: for how long it had not moved.
        """
        self.wait(after_s)
        node, worker = self._find(rank)
        where = {"round": node["round"], "node": node["node"], "rank": rank, "local_rank": worker["local_rank"]}
        end = {
            "time_ns": self.now_ns,
            "kind": "hang",
            "exit_code": None,
            "signal": None,
            "message": message,
            "step": step,
            "since_ns": self.now_ns - int(silent_s * SECOND_NS),
        }
        if self.history[-1]["failure"] is None:
            self.history[-1]["failure"] = {**where, **end}
        for each, place in places.items():
            shower, its_worker = self._find(each)
            local_rank = its_worker["local_rank"]
            if isinstance(place, str):
                found = Stacks(local_rank, problem=place, facts=(("State", "?"),))
            else:
                calls = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in reversed(place))
                found = Stacks(local_rank, f"Current thread 0x00007f4f70cb3b80 (most recent call first):\n{calls}")
            why = message if each == rank else None
            data = encode(found, rank=each, node=shower["node"], time_ns=self.now_ns, why=why)
            self.outputs[node["round"], each, "stacks"] = data.decode()
        return self

    def log(self, rank: int, text: str, stream: str = "stderr") -> RunBuilder:
        """Let a rank of this round have written this to its output."""
        key = (len(self.history), rank, stream)
        self.outputs[key] = self.outputs.get(key, "") + text
        return self

    def finish(self, rank: int) -> RunBuilder:
        """Let a rank end well."""
        _, worker = self._find(rank)
        worker |= {"ended_ns": self.now_ns, "exit_code": 0}
        return self

    def stop(
        self,
        *,
        reason: str | None = None,
        after_s: float = 0.2,
        killed: tuple[int, ...] = (),
        outcome: str = "failed",
    ) -> RunBuilder:
        """Let ftslurm stop whoever still runs, and the round end; ``killed`` are ranks that needed SIGKILL."""
        self.wait(after_s)
        failure = self.history[-1]["failure"]
        told = reason
        if failure is not None:
            what = f"rank {failure['rank']} on {failure['node']} {'hung' if failure['kind'] == 'hang' else 'failed'}"
            reason = reason or what
            told = f"{what} at step {failure['step']}: {failure['message']}"
        for node in self._nodes():
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
            }
        self.history[-1] |= {"ended_ns": self.now_ns, "outcome": outcome, "reason": told}
        return self

    def lose(self, *names: str, silent_s: float = 30.0) -> RunBuilder:
        """Let nodes vanish now; the coordinator notices ``silent_s`` later and stops the others."""
        for name in names:
            node = self.round_nodes[len(self.history), name]
            node["outcome"] = "gone"
            self.last_words[name] = self.now_ns
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
        told = "; ".join(f"{n} was lost: its agent gave no sign of life for {silent_s:.1f} s" for n in names)
        self.stop(reason=told, outcome="node-lost", after_s=0)
        for name in names:
            self.round_nodes[len(self.history), name]["outcome"] = "running"
        return self

    def succeed(self, *, after_s: float = 60.0) -> RunBuilder:
        """Let all ranks end well."""
        self.wait(after_s)
        for node in self._nodes():
            for worker in node["workers"]:
                worker |= {"ended_ns": self.now_ns, "exit_code": 0}
            node |= {"ended_ns": self.now_ns, "outcome": "succeeded"}
        self.history[-1] |= {"ended_ns": self.now_ns, "outcome": "succeeded"}
        self.status = dict.fromkeys(self.node_names, "succeeded")
        return self

    def leave(self, node: str, reason: str) -> RunBuilder:
        """Let a node have left in good order."""
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
        run = {
            "schema": "ftslurm/run",
            "version": 1,
            "run_id": self.run_id,
            "created_ns": START_NS,
            "user": "ann",
        }
        _put(self.path / "run.json", run | {"uid": os.getuid(), "ftslurm": "0.1.0"})
        for attempt in self.attempts:
            _put(self.path / "attempts" / attempt["attempt"] / "attempt.json", attempt)
        self._write_state(7)
        for position, name in enumerate(self.node_names):
            _put(self.path / "nodes" / f"{name}.json", self._by_clock_of(name, self._word(name, position)))
        for (number, name), node in self.round_nodes.items():
            told = self._with_shorts(number, node) if self.shorts else node
            _put(self._round_path(number) / "nodes" / f"{name}.json", self._by_clock_of(name, told))
            for worker in node["workers"]:
                self._rank_path(number, worker["rank"]).mkdir(parents=True, exist_ok=True)
        for (number, rank), error in self.errors.items():
            by_clock = self._shifted(error, error["ftslurm"]["node"]) if self.clocks else error
            _put(self._rank_path(number, rank) / "error.json", by_clock)
        for (number, rank, stream), text in self.outputs.items():
            name = "stacks.txt" if stream == "stacks" else f"{stream}.log"
            folder = self._rank_path(number, rank) if stream == "stacks" else self._log_path(number, rank)
            (folder / name).write_text(text)
        return self.path

    def _with_shorts(self, number: int, node: Dict) -> Dict:
        records = {
            w["rank"]: self.errors[number, w["rank"]] for w in node["workers"] if (number, w["rank"]) in self.errors
        }
        try:
            table, entries = in_table({rank: short(record) for rank, record in records.items()})
        except (AttributeError, KeyError, TypeError):
            # A test has made one what no agent would.
            return node
        return node | {"errors": table, "workers": [{**w, "error": entries.get(w["rank"])} for w in node["workers"]]}

    def _by_clock_of(self, name: str, value: Dict) -> Dict:
        """What a node writes, as its clock has it, with what it knows of that."""
        ahead_ns, error_ns = self.clocks.get(name, (0, None))
        shifted: Dict = self._shifted(value, name)
        if error_ns is None:
            return shifted
        return shifted | {"clock": {"offset_ns": -ahead_ns, "error_ns": error_ns, "at_ns": self.now_ns + ahead_ns}}

    def _shifted(self, value: Any, name: str) -> Any:
        ahead_ns = self.clocks.get(name, (0, None))[0]
        if not self.clocks:
            return value
        if isinstance(value, list):
            return [self._shifted(each, name) for each in value]
        if not isinstance(value, dict):
            return value
        shifted = {}
        for key, each in value.items():
            if key == "failure" and each is not None:
                shifted[key] = self._shifted(each, each["node"])
            elif key.endswith("_ns") and each is not None:
                shifted[key] = each + ahead_ns
            else:
                shifted[key] = self._shifted(each, name)
        return shifted

    def _write_state(self, token: int) -> None:
        current = self.history[-1] if self.history else None
        state = {
            "schema": "ftslurm/state",
            "version": 1,
            "run_id": self.run_id,
            "attempt": self.attempts[-1]["attempt"],
            "attempts": [a["attempt"] for a in self.attempts],
            "min_nodes": len(self.node_names),
            "max_nodes": len(self.node_names),
            "max_restarts": self.max_restarts,
            "restarts_used": max(0, len(self.history) - 1),
            "coordinator": {"node": "n1", "incarnation": "n1-1", "term": 1},
            "phase": "closed" if self.closed else "running" if current else "forming",
            "round": current["round"] if current else 0,
            "participants": [
                {
                    "node": name,
                    "incarnation": f"{name}-1",
                    "slots": self.nproc,
                    "first_rank": i * self.nproc,
                    "group_rank": i,
                }
                for i, name in enumerate(current["nodes"] if current else [])
            ],
            "world_size": current["world_size"] if current else 0,
            "master": None,
            "lost": self.lost,
            "history": self.history,
            "closed": self.closed,
        }
        header = json.dumps({"schema": "ftslurm/cell", "version": 1, "token": token, "nonce": "00ff"})
        path = self.path / "state" / f"{token:012d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{header}\n{json.dumps(self._shifted(state, 'n1'))}\n")
        (path.parent / "current").write_text(str(token))

    def _word(self, name: str, position: int) -> Dict:
        number = len(self.history)
        failure = self.history[-1]["failure"] if self.history else None
        return {
            "schema": "ftslurm/node",
            "version": 1,
            "node": name,
            "incarnation": f"{name}-1",
            "counter": 99,
            "attempt": self.attempts[-1]["attempt"],
            "position": position,
            "slots": self.nproc,
            "host": name,
            "pid": 100,
            "address": name,
            "port": 29400,
            "status": self.status[name],
            "round": number,
            "failure": failure if failure is not None and failure["node"] == name else None,
            "reason": self.reasons.get(name),
            "token": 7,
            "time_ns": self.last_words.get(name, self.now_ns),
            "health": self._health(name),
            **self.aside.get(name, {}),
        }

    def _error(
        self,
        node: Dict,
        failure: Dict,
        exception: BaseException | None,
        frames: tuple[tuple[str, int, str, str | None], ...],
        module: str | None,
    ) -> Dict:
        exc = None if exception is None else _exc(exception, frames, module)
        return {
            "message": {
                "message": failure["message"] if exception is None else f"{exc['type']}: {exception}" if exc else "",
                "extraInfo": {
                    "py_callstack": "" if exc is None else _traceback(exc),
                    "timestamp": str(failure["time_ns"] // SECOND_NS),
                },
            },
            "ftslurm": {
                "schema": "ftslurm/error",
                "version": 1,
                "run_id": self.run_id,
                "attempt": node["attempt"],
                "host": node["host"],
                "world_size": node["world_size"],
                "pid": 1000 + failure["rank"],
                "argv": ["train.py", "--lr", "0.1"],
                "exception": exc,
                "stacks": None,
                **{k: v for k, v in failure.items() if k != "message"},
            },
        }

    def _worker(self, rank: int, local_rank: int) -> Dict:
        return {
            "rank": rank,
            "local_rank": local_rank,
            "pid": 1000 + rank,
            "started_ns": self.now_ns,
            "ended_ns": None,
            "exit_code": None,
            "signal": None,
            "core_dumped": False,
            "stopped_by_ftslurm": False,
            "stop_signal": None,
            "progress": None,
            "failed": False,
        }

    def _keep_first_step(self, node: Dict, worker: Dict, step: int) -> None:
        others = [w["progress"] for n in self._nodes() for w in n["workers"] if w["progress"] and w is not worker]
        if others:
            worker["progress"]["first_step"] = min([step, *(p["first_step"] for p in others)])

    def _nodes(self) -> list[Dict]:
        return [node for (number, _), node in self.round_nodes.items() if number == len(self.history)]

    def _find(self, rank: int) -> tuple[Dict, Dict]:
        if self._index[0] != len(self.history):
            self._index = (len(self.history), {w["rank"]: (n, w) for n in self._nodes() for w in n["workers"]})
        if rank not in self._index[1]:
            raise ValueError(f"no rank {rank} in round {len(self.history)}")
        return self._index[1][rank]

    def _round_path(self, number: int) -> Path:
        return self.path / "rounds" / f"{number:06d}"

    def _rank_path(self, number: int, rank: int) -> Path:
        return self._round_path(number) / "ranks" / f"{rank:05d}"

    def _log_path(self, number: int, rank: int) -> Path:
        attempt = self.history[number - 1]["attempt"]
        logs = next((a["logs"] for a in self.attempts if a["attempt"] == attempt), None)
        if logs is None:
            return self._rank_path(number, rank)
        path = Path(logs) / "rounds" / f"{number:06d}" / "ranks" / f"{rank:05d}"
        path.mkdir(parents=True, exist_ok=True)
        return path


def _exc(exception: BaseException, frames: tuple[tuple[str, int, str, str | None], ...], module: str | None) -> Dict:
    cause, context = exception.__cause__, exception.__context__
    return {
        "type": type(exception).__name__,
        "module": module if module is not None else type(exception).__module__,
        "message": str(exception),
        "notes": [],
        "frames": [{"file": f, "line": n, "function": fn, "source": s} for f, n, fn, s in frames],
        "cause": None if cause is None else _exc(cause, frames, None),
        "context": None if context is None or exception.__suppress_context__ else _exc(context, frames, None),
        "exceptions": [],
    }


def _traceback(exc: Dict) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in exc["frames"]:
        lines.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["function"]}')
        lines += [f"    {frame['source']}"] if frame["source"] else []
    name = exc["type"] if exc["module"] == "builtins" else f"{exc['module']}.{exc['type']}"
    return "\n".join([*lines, f"{name}: {exc['message']}", ""])


def _one_line(exception: BaseException) -> str:
    return f"{type(exception).__name__}: {exception}".split("\n", 1)[0]


def _put(path: Path, value: Dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
