"""A node's health in its node record: findings, their first times, and whether the node may take part (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.health.check import CONFIRM
from ftslurm.health.verdict import Finding, Verdict, worst
from ftslurm.records.health import FAIL, SEVERITY, WARN, Health, HealthFinding

KEPT = 16
"""Findings in a node record, the worst first; `ftslurm health` on the node shows them all."""

_TEXT_LIMIT = 300


def health_of(
    verdicts: Iterable[Verdict], set_: str, now_ns: int, before: Health | None, more: Sequence[HealthFinding] = ()
) -> Health:
    """Return the health for the node record from a run's verdicts.

    Args:
        before: the previous health: persistent findings keep their first time, and stay confirmed.
        more: findings from events instead of checks (an Xid event).
    """
    known = {(old.check, old.subject): old for old in (before.findings if before else ())}
    found = [
        HealthFinding(
            one.check,
            finding.status,
            finding.subject[:_TEXT_LIMIT],
            finding.text[:_TEXT_LIMIT],
            finding.advice[:_TEXT_LIMIT],
            *_past(known.get((one.check, finding.subject)), finding, now_ns, set_),
        )
        for one in verdicts
        for finding in one.findings
    ]
    wrong = [one for one in (*more, *found) if one.status in (WARN, FAIL)]
    kept = sorted(wrong, key=lambda one: -SEVERITY.index(one.status))[:KEPT]
    return Health(worst(one.status for one in kept), now_ns, set_, tuple(kept))


def _past(old: HealthFinding | None, finding: Finding, now_ns: int, set_: str) -> tuple[int, bool]:
    """Return the finding's first time, and whether it is confirmed."""
    if old is None:
        return now_ns, set_ == CONFIRM
    return old.since_ns, set_ == CONFIRM or (old.confirmed and old.status == finding.status)
