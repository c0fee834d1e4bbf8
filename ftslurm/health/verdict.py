"""Findings and verdicts of checks, for display and for the node record (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ftslurm.dataclasses import asdict, dataclass, field
from ftslurm.records.health import OK, SEVERITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias, TypeVar

    F = TypeVar("F")

Json: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Finding:
    """One deviation from the expected state.

    Attributes:
        status: NOTE (good to know), UNKNOWN (could not be determined), WARN (works, but needs attention) or FAIL (do
            not use the node, or the directory).
        subject: "GPU 3", "mlx5_0 port 1", "/scratch"; empty: the node.
        text: the found and, if useful, the expected state; with the values, one line.
        advice: the remedy, one short sentence.
    """

    status: str
    subject: str
    text: str
    advice: str


@dataclass(frozen=True)
class NodeFinding:
    """A finding of one check, and its nodes; without any: it is about all of them together."""

    check: str
    nodes: tuple[str, ...]
    finding: Finding


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


def node_finding(status: str, check: str, nodes: Iterable[str], text: str, advice: str) -> NodeFinding:
    """Return a finding about these nodes themselves."""
    return NodeFinding(check, tuple(nodes), Finding(status, "", text, advice))


def node_findings(
    check: str, by_node: Mapping[str, F], judge: Callable[[F], Iterable[tuple[str, str, str]]]
) -> list[NodeFinding]:
    """Return the findings about each node by itself, of the status, text and advice from its facts."""
    return [
        node_finding(status, check, (node,), text, advice)
        for node, facts in by_node.items()
        for status, text, advice in judge(facts)
    ]


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


def verdict_json(verdict: Verdict) -> Json:
    """Return a verdict, its facts too, as a JSON object."""
    return asdict(verdict)


def read_verdict(fields: Mapping[str, object]) -> Verdict:
    """Read it back, from a node whose ftslurm version may differ.

    Raises:
        ValueError: it is no verdict.
    """
    try:
        findings = tuple(_finding(finding) for finding in fields["findings"])  # type: ignore[attr-defined]
        status, facts = str(fields["status"]), fields.get("facts")
        if any(one not in SEVERITY for one in (status, *(finding.status for finding in findings))):
            raise ValueError(f"unknown status in {fields!r:.200}")
        took_s = float(str(fields["took_s"]))
        known = facts if isinstance(facts, dict) else None
        return Verdict(str(fields["check"]), status, str(fields["summary"]), findings, took_s, known)
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected a verdict ({type(error).__name__}: {error})") from None


def _finding(fields: Mapping[str, object]) -> Finding:
    status, subject, text, advice = (str(fields[name]) for name in ("status", "subject", "text", "advice"))
    return Finding(status, subject, text, advice)
