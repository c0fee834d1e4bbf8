"""A run's status as metrics in Prometheus' text format, and their file for the node exporter's textfile collector.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/; the metrics are described in docs/metrics.md.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ftslurm.dataclasses import dataclass

STATUSES = ("running", "hanging", "ending", "forming", "closed", "ended", "silent", "unknown")
ROLES = ("rank", "spare", "gone", "missing", "earlier")
OUTCOMES = ("succeeded", "failed", "node-lost", "stopped")
MODE = 0o644
"""The collector is another user."""

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """One gauge: its name without the prefix `ftslurm_`, its meaning, and the values by their labels."""

    name: str
    help: str
    values: tuple[tuple[Labels, float | None], ...]


def metrics(status: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics of a status, see `ftslurm.status.summary` (pure); values that are None are unknown."""
    restarts, world, steps = status["restarts"] or {}, status["world"] or {}, status["steps"] or {}
    made = steps.get("optimizer") or {}
    closed, nodes = status["closed"] or {}, status["nodes"]
    roles = Counter(node["role"] for node in nodes)
    outcomes = Counter(entry["outcome"] for entry in status["rounds"])

    def one(name: str, text: str, value: float | None) -> Metric:
        return Metric(name, text, (({}, value),))

    def by_node(name: str, text: str, values: Iterable[tuple[str, float | None]]) -> Metric:
        return Metric(name, text, tuple(({"node": node}, value) for node, value in values))

    return [
        Metric(
            "run_status",
            "1 for the run's present status, 0 for the others",
            tuple(({"status": name}, float(status["status"] == name)) for name in STATUSES),
        ),
        one("status_timestamp_seconds", "when the run directory was read, since the epoch", status["made_ns"] / 1e9),
        one("last_activity_seconds", "age of the newest node record", status["newest_s"]),
        one("attempts", "starts by Slurm so far", status["attempts"]),
        one("round", "number of the newest round", status["round"]),
        one("round_seconds", "how long the present round has run", status["formed_s"]),
        one("restarts_used", "restarts of this attempt so far", restarts.get("used")),
        one("restarts_allowed", "restarts that each attempt has", restarts.get("allowed")),
        Metric(
            "rounds_ended",
            "ended rounds of the last 100 by outcome",
            tuple(({"outcome": name}, float(outcomes[name])) for name in OUTCOMES),
        ),
        one("ranks", "ranks of the round", world.get("ranks")),
        Metric("nodes", "nodes by role", tuple(({"role": name}, float(roles[name])) for name in ROLES)),
        one("nodes_needed", "least number of nodes of a round", world.get("min_nodes")),
        one("step_highest", "highest last training step of a rank", steps.get("last")),
        one("step_lowest", "lowest last training step of a rank", steps.get("first")),
        one("optimizer_step_highest", "where no rank reports steps: highest step of an optimizer", made.get("last")),
        one("step_seconds", "usual time of a training step", steps.get("step_s")),
        one("ranks_with_steps", "ranks that report steps", steps.get("reporting")),
        one("ranks_behind", "ranks whose step is behind the others'", len(status["behind"])),
        one("ranks_slow", "ranks that are persistently slower", len(status["slow"])),
        one("ranks_late", "ranks that arrive late at collectives", len(status["late"]["ranks"])),
        one("ranks_failed", "ranks that have failed in the present round", len(status["failures"])),
        one("hanging", "1 while a rank hangs", float(status["hang"] is not None)),
        one("exit_code", "exit code of an attempt that has ended", closed.get("exit_code")),
        by_node("node_silent_seconds", "least time since a node's last write", _silent(nodes)),
        by_node(
            "node_unhealthy", "1: a node cannot take part", ((n["node"], float(bool(n["unhealthy"]))) for n in nodes)
        ),
        by_node(
            "node_excluded", "1: other nodes are preferred", ((n["node"], float(bool(n["excluded"]))) for n in nodes)
        ),
    ]


def _silent(nodes: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, float | None]]:
    return ((node["node"], node["silent_s"]) for node in nodes if node["role"] in ("rank", "spare"))


def exposition(status: Mapping[str, Any]) -> str:
    """Return the text; each value has the run's name as the label `run` (pure)."""
    lines: list[str] = []
    for metric in metrics(status):
        known = [(labels, value) for labels, value in metric.values if value is not None]
        if known:
            lines += [f"# HELP ftslurm_{metric.name} {metric.help}", f"# TYPE ftslurm_{metric.name} gauge"]
        for labels, value in known:
            written = ",".join(f'{name}="{_escaped(text)}"' for name, text in {"run": status["run"], **labels}.items())
            lines.append(f"ftslurm_{metric.name}{{{written}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Escape a label's value; it may come from a file."""
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_file(path: str, text: str) -> None:
    """Replace the file at one moment; the collector reads no half of it.

    Raises:
        OSError: it cannot be written; the old one is kept.
    """
    directory, name = os.path.split(os.path.abspath(path))
    # Not *.prom, which the collector would read.
    temporary = os.path.join(directory, f".{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, MODE)
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
