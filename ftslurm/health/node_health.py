"""A node's health in its node record: findings, their first times, and whether the node may take part (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.health.check import CONFIRM
from ftslurm.health.verdict import FAIL, SEVERITY, WARN, Finding, Verdict, worst

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT = 16
"""Findings in a node record, the worst first; `ftslurm health` on the node shows them all."""

_TEXT_LIMIT = 300


@dataclass(frozen=True)
class HealthFinding:
    """One finding; see `verdict.Finding`.

    Attributes:
        since_ns: when it was first seen, by that node's clock.
        confirmed: a second run, alone and with longer time-outs, has found it too.
    """

    check: str
    status: str
    subject: str
    text: str
    advice: str
    since_ns: int
    confirmed: bool = False

    def line(self) -> str:
        """Return it in one line, without its advice."""
        return f"{self.subject}: {self.text}" if self.subject else self.text


@dataclass(frozen=True)
class Health:
    """Result of the last run of checks on a node.

    Attributes:
        status: the worst of the findings, OK without any.
        checked_ns: time of the run, by that node's clock.
        set: the set of checks.
        findings: WARN and FAIL, the worst first.
    """

    status: str
    checked_ns: int
    set: str
    findings: tuple[HealthFinding, ...]


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


def read_health(value: Any, where: str) -> Health:
    """Read it from JSON.

    Raises:
        ValueError: the value is invalid; the text names `where`.
    """
    try:
        findings = tuple(_finding(one) for one in _list(value["findings"])[:KEPT])
        return Health(_status(value["status"]), int(value["checked_ns"]), str(value["set"]), findings)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{where}: expected a node's health ({type(error).__name__}: {error})") from None


def _finding(value: Any) -> HealthFinding:
    subject, text, advice = (str(value[name])[:_TEXT_LIMIT] for name in ("subject", "text", "advice"))
    # Older versions did not confirm findings.
    confirmed = value.get("confirmed") is True
    status, since_ns = _status(value["status"]), int(value["since_ns"])
    return HealthFinding(str(value["check"]), status, subject, text, advice, since_ns, confirmed)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("findings are no list")
    return value


def _status(value: Any) -> str:
    if value not in SEVERITY:
        raise ValueError(f"unknown status {value!r:.40}")
    return str(value)
