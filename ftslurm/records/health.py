"""A node's health, as its node record and its records of rounds hold it."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass

OK, NOTE, UNKNOWN, WARN, FAIL = "ok", "note", "unknown", "warn", "fail"
SEVERITY = (OK, NOTE, UNKNOWN, WARN, FAIL)
"""Each is worse than those before it."""


@dataclass(frozen=True)
class HealthFinding:
    """One finding; see `ftslurm.health.verdict.Finding`.

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

    CHOICES = (("status", SEVERITY),)

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

    CHOICES = (("status", SEVERITY),)
