"""One row of the catalogue of causes, and the words for its properties."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass
from ftslurm.failures.evidence import Evidence
from ftslurm.failures.predicates import Match

PRIMARY, CASCADE = "primary", "cascade"
SAME_NODE, OTHER_NODE, OLDER_CHECKPOINT, POINTLESS = "same-node", "other-node", "older-checkpoint", "pointless"
RESTARTS = (SAME_NODE, OTHER_NODE, OLDER_CHECKPOINT, POINTLESS)
GPU, NETWORK = "gpu", "network"


@dataclass(frozen=True)
class Cause:
    """One row of the registry.

    Attributes:
        name: the row's key in reports, stable.
        title: text for use after "rank 3 on n2: ".
        role: PRIMARY: an independent failure; CASCADE: a consequence of another rank's failure.
        matches: the predicate that selects it.
        advice: what the user can do, one or two short sentences; may be empty.
        proof: evidence required beyond the match; None: the match is sufficient.
        not_for: similar cases that it must not match.
        restart: which restart makes sense: SAME_NODE, OTHER_NODE, OLDER_CHECKPOINT or POINTLESS.
        blame: BY_NODE: it is a fault of the node's hardware; PERHAPS: the node may be the cause; None: hardly. The
            agents' quick rule (`ftslurm.failures.retryability`) agrees; a test verifies it.
        symptom_of: GPU or NETWORK: broken hardware of this kind often causes it, so that a failed check of such a
            device on its node explains it; empty: a cause of its own.
        behind: it also matches an exception that was only being handled when the one that ended the worker was raised;
            rows without this match only the cause of a "raise ... from".
        vague: so unspecific that a better row for the exception's cause is used instead.
        silent: the end of the process says nothing of its reason: the end of its stderr may.
    """

    name: str
    title: str
    role: str
    matches: Match
    advice: str = ""
    proof: Match | None = None
    not_for: str = ""
    restart: str = SAME_NODE
    blame: str | None = None
    symptom_of: str = ""
    behind: bool = False
    vague: bool = False
    silent: bool = False

    @property
    def cascade(self) -> bool:
        """Whether it is a consequence of another rank's failure."""
        return self.role == CASCADE

    @property
    def retryable(self) -> bool:
        """Whether a restart can help."""
        return self.restart != POINTLESS

    def fits(self, evidence: Evidence) -> bool:
        """Whether it matches and has its proof."""
        return self.matches(evidence) and (self.proof is None or self.proof(evidence))
