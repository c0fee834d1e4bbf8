"""Findings and verdicts of checks, for display and for the node record (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.dataclasses import dataclass, field, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

OK, UNKNOWN, WARN, FAIL = "ok", "unknown", "warn", "fail"
SEVERITY = (OK, UNKNOWN, WARN, FAIL)
"""Each is worse than those before it."""

Json: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Finding:
    """One deviation from the expected state.

    Attributes:
        status: UNKNOWN (could not be determined), WARN (works, but needs attention) or FAIL (do not use the node).
        subject: "GPU 3", "mlx5_0 port 1", "/scratch"; empty: the node.
        text: the found and, if useful, the expected state; with the values, one line.
        advice: the remedy, one short sentence.
    """

    status: str
    subject: str
    text: str
    advice: str


@dataclass(frozen=True)
class Judgement:
    """A judge's result for a check's facts.

    Attributes:
        summary: the values in one short line, in any case: "8 GPUs, no uncorrected ECC errors".
        findings: deviations; empty: none.
    """

    summary: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Result of one check.

    Attributes:
        check: its name.
        status: the worst of its findings, OK without any.
        took_s: seconds until its facts were available.
        facts: the fetched facts, for comparison in the next run and between nodes; None: none.
    """

    check: str
    status: str
    summary: str
    findings: tuple[Finding, ...]
    took_s: float = 0.0
    facts: Json | None = field(default=None, compare=False)


def verdict(check: str, judgement: Judgement, took_s: float = 0.0, facts: Json | None = None) -> Verdict:
    """Return the verdict of a check with this judgement."""
    status = worst(finding.status for finding in judgement.findings)
    return Verdict(check, status, judgement.summary, judgement.findings, took_s, facts)


def worst(statuses: Iterable[str]) -> str:
    """Return the worst of some statuses, OK of none."""
    return max(statuses, key=SEVERITY.index, default=OK)


def describe(finding: Finding) -> str:
    """Return a finding in one line, without its advice."""
    return f"{finding.subject}: {finding.text}" if finding.subject else finding.text


def ordered(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts, worst first, else in their order."""
    return sorted(verdicts, key=lambda one: -SEVERITY.index(one.status))


def without_facts(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return them without their facts."""
    return [replace(one, facts=None) for one in verdicts]
