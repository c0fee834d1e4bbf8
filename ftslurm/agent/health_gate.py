"""Whether this node is healthy enough for a round, and when to check it: decided from check runs and failures (pure).

A run gates: before the first round, and before the next one after a failure that the node may have caused, the node is
health unconfirmed and keeps its place. Runs while ranks run only report; their findings count when the round ends. A
check that fails makes the node unhealthy at once and is repeated alone and without time pressure: that confirms the
finding, for later jobs too, or withdraws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftslurm.agent.option_groups import ACT, OFF, HealthOptions
from ftslurm.health.check import BACKGROUND, CONFIRM, QUICK, THOROUGH
from ftslurm.health.result import RunResult
from ftslurm.health.verdict import Finding, Verdict, worst
from ftslurm.records.health import FAIL, SEVERITY, WARN, Health, HealthFinding
from ftslurm.records.state import BY_NODE, Failure

FRESH_S = 60.0
"""A run of this age still counts when the next round forms; a restart need not wait for another one."""
AGAIN_S = 30.0
"""Longest interval between runs on an unhealthy node, in seconds."""
FAILURE, XID = "failure", "gpu-xid"
HAPPENED = (FAILURE, XID)
"""Findings of these names are events, not results of a check run; they are held for a while."""
HOLD_S = 120.0
"""Seconds that an error reported by hardware (an Xid, a CUDA error) keeps a node unhealthy, whatever a check finds: a
GPU that fails under load is often healthy when idle."""
KEPT = 16
"""Findings in a node record, the worst first; `ftslurm health` on the node shows them all."""
_TEXT_LIMIT = 300


class HealthGate:
    """Health gate of one node.

    Args:
        options: see `HealthOptions`.
        spread_s: added before the first of these, so that nodes do not run checks simultaneously.

    Attributes:
        wanted: the set of checks to run now; None: none. The caller takes it by `take_wanted`.
        unconfirmed: the failed checks that are not confirmed: the set CONFIRM.
        health: the newest result.
        health_pending: whether the node's participation depends on an unfinished run.
        deadline: the monotonic second at which `on_time` is due.
    """

    def __init__(self, options: HealthOptions, spread_s: float = 0.0) -> None:
        self._options = options
        self._spread_s = spread_s
        self._busy = False
        self._checked_at = float("-inf")
        self._held: list[tuple[float, HealthFinding]] = []
        self.wanted: str | None = None
        self.health: Health | None = None
        self.health_pending = False
        self.deadline: float | None = None

    @property
    def unhealthy(self) -> str | None:
        """Why this node cannot take part; None: it can."""
        if self._options.mode != ACT or self.health is None:
            return None
        failed = [finding for finding in self.health.findings if finding.status == FAIL]
        if not failed:
            return None
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return failed[0].line() + more

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """The failed checks that are not confirmed."""
        found = self.health.findings if self.health is not None else ()
        failed = [one.check for one in found if one.status == FAIL and not one.confirmed and one.check not in HAPPENED]
        return tuple(dict.fromkeys(failed))

    def begin(self) -> None:
        """The agent starts."""
        self._want(QUICK, gate=True)

    def take_wanted(self) -> str:
        """Take the set that is wanted."""
        set_, self.wanted = self.wanted, None
        assert set_ is not None
        return set_

    def on_round(self, now_s: float) -> None:
        """Ranks run here from now on."""
        self._busy = True
        self.wanted, self.health_pending = None, False
        self._plan(now_s, self._spread_s)

    def on_swept(self, failure: Failure | None, now_s: float, now_ns: int) -> None:
        """The round is over on this node and swept.

        Args:
            failure: the first one here, if any.
        """
        self._busy = False
        self.deadline = None
        self.wanted, self.health_pending = None, False
        if failure is not None and failure.blame == BY_NODE:
            where = f"rank {failure.rank}"
            advice = "Run `ftslurm health --all` there; exclude the node if it happens again."
            self._hold(HealthFinding(FAILURE, FAIL, where, failure.message[:200], advice, failure.time_ns), now_s)
            self._publish_held(THOROUGH, now_ns)
        may_be_node = failure is not None and failure.blame is not None
        if may_be_node or (self.health is not None and self.health.status == FAIL):
            self._want(THOROUGH, gate=True)
        elif now_s - self._checked_at > FRESH_S:
            self._want(QUICK, gate=True)
        else:
            self._plan(now_s)

    def on_event(self, finding: HealthFinding, now_s: float, now_ns: int) -> bool:
        """Handle an event reported by a driver; return whether it is new."""
        if self._options.mode == OFF:
            return False
        if any(_same(old, finding) for _, old in self._held):
            # It happened again: restart the hold time.
            self._held = [(now_s if _same(old, finding) else at, old) for at, old in self._held]
            return False
        self._hold(finding, now_s)
        self._publish_held(BACKGROUND, now_ns)
        return True

    def on_result(self, set_: str, result: RunResult | None, now_s: float, now_ns: int) -> list[HealthFinding]:
        """A run is done; None: it failed. Return the new findings."""
        self.health_pending = False
        known = {(old.check, old.subject, old.text) for old in (self.health.findings if self.health else ())}
        self._held = [(at, one) for at, one in self._held if now_s - at < HOLD_S]
        if result is None:
            # Without a result the old findings stay, but held events expire.
            if self.health is not None:
                still = [*self._held_findings(), *self._old()]
                self.health = _health_of((), self.health.set, self.health.checked_ns, self.health, still)
        else:
            self._checked_at = now_s
            names = {one.check for one in result.verdicts}
            # A smaller set does not withdraw findings of checks that it does not contain.
            kept = [old for old in self._old() if old.check not in names]
            self.health = _health_of(result.verdicts, set_, now_ns, self.health, [*self._held_findings(), *kept])
        self._plan(now_s)
        found = self.health.findings if self.health else ()
        if self.unconfirmed and result is not None and set_ != CONFIRM and not self._busy and self._options.mode == ACT:
            self._want(CONFIRM, gate=False)
        return [one for one in found if (one.check, one.subject, one.text) not in known]

    def on_time(self, now_s: float) -> None:
        """Its deadline may have passed."""
        if self.deadline is None or now_s < self.deadline:
            return
        self.deadline = None
        if self._busy:
            self._want(BACKGROUND, gate=False)
        else:
            # A smaller set might miss the finding; a spare must be as healthy as for a round.
            self._want(QUICK if self.unhealthy is None else THOROUGH, gate=False)

    def _want(self, set_: str, gate: bool) -> None:
        if self._options.mode == OFF:
            return
        self.wanted = set_
        self.health_pending = self.health_pending or (gate and self._options.mode == ACT)

    def _plan(self, now_s: float, more_s: float = 0.0) -> None:
        if self._options.mode == OFF:
            return
        wait_s = self._options.every_s
        if self.unhealthy is not None and not self._busy:
            wait_s = min(AGAIN_S, self._options.every_s or AGAIN_S)
        self.deadline = now_s + wait_s + more_s if wait_s else None

    def _hold(self, finding: HealthFinding, now_s: float) -> None:
        if self._options.mode != OFF:
            self._held.append((now_s, finding))

    def _held_findings(self) -> list[HealthFinding]:
        return [finding for _, finding in self._held]

    def _old(self) -> list[HealthFinding]:
        """Return the findings of earlier runs, without events, which count as long as they are held."""
        return [one for one in (self.health.findings if self.health else ()) if one.check not in HAPPENED]

    def _publish_held(self, set_: str, now_ns: int) -> None:
        if self._held:
            self.health = _health_of((), set_, now_ns, self.health, [*self._held_findings(), *self._old()])


def _same(one: HealthFinding, other: HealthFinding) -> bool:
    return (one.check, one.subject, one.text) == (other.check, other.subject, other.text)


def _health_of(
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
