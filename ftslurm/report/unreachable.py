"""A round that did not begin because a node could not connect to the round's master (pure)."""

from __future__ import annotations

from typing import Any

from ftslurm.failures.causes import Evidence, classify
from ftslurm.rendezvous.state import UNREACHABLE
from ftslurm.report.evidence import FAILURE_KEYS
from ftslurm.report.facts import Failure, History


def is_unreachable(entry: History | None) -> bool:
    """Return whether that ended the round."""
    return entry is not None and entry.failure is not None and entry.failure.kind == UNREACHABLE


def unreachable_failure(entry: History, failure: Failure) -> dict[str, Any]:
    """Describe it as a first failure; the same keys as for a worker, without a rank: none was started there.

    Which end of the connection is broken is unknown: both nodes are named.
    """
    ends = list(dict.fromkeys((failure.node, *entry.nodes[:1])))
    text = failure.message
    if entry.nodes and entry.nodes[0] not in text:
        text = text.replace("the master of the round", f"{entry.nodes[0]}, the master of the round", 1)
    cause = classify(Evidence(kind=UNREACHABLE, message=text))
    described: dict[str, Any] = dict.fromkeys(FAILURE_KEYS)
    return described | {
        "round": entry.round,
        "node": failure.node,
        "nodes": ends,
        "time_ns": failure.time_ns,
        "kind": UNREACHABLE,
        "core_dumped": False,
        "cause": cause.name,
        "title": cause.title,
        "role": cause.role,
        "advice": cause.advice,
        "restart": cause.restart,
        "what": text,
        "signature": UNREACHABLE,
        "same_as_rounds": [],
        "argv": [],
        "evidence": ["state"],
        "evidence_lines": [],
    }
