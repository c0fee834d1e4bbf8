"""The doctor's findings: severity, and merging of those of many nodes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ftslurm.dataclasses import dataclass, replace

WRONG, WARNING, NOTE = "wrong", "warning", "note"
"""A run will fail or may lose its state; a run works, but slower or with less; good to know."""
SEVERITIES = (WRONG, WARNING, NOTE)

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        probe: its probe.
        nodes: the affected nodes, in node order; empty: the directory as such.
        text: the expected and the found state.
        advice: the remedy.
    """

    severity: str
    probe: str
    nodes: tuple[str, ...]
    text: str
    advice: str


def merge(findings: Iterable[Finding], order: Sequence[str]) -> list[Finding]:
    """Return the findings, worst first, merged if they differ only in their nodes."""
    merged: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.severity, finding.probe, finding.text)
        known = merged.get(key)
        merged[key] = finding if known is None else replace(known, nodes=(*known.nodes, *finding.nodes))
    place = {node: index for index, node in enumerate(order)}
    sort = [
        replace(f, nodes=tuple(sorted(set(f.nodes), key=lambda n: place.get(n, len(place))))) for f in merged.values()
    ]
    return sorted(sort, key=lambda f: SEVERITIES.index(f.severity))


def facts(kind: type[T], results: Mapping[str, Json], probe: str) -> dict[str, T]:
    """Return one probe's facts by node; `kind` is the probe's dataclass."""
    return {node: kind(**result[probe]) for node, result in results.items() if result.get(probe) is not None}


def median(values: Sequence[float]) -> float:
    """Return the median, of two middle values the lower one.

    Raises:
        IndexError: there is none.
    """
    return sorted(values)[(len(values) - 1) // 2]


def some(names: Sequence[str], limit: int = 5) -> str:
    """Name a few and count the rest."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
