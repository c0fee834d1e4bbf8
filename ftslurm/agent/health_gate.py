"""Whether this node is fit for a round, and when to look at it: decided from looks and failures (pure).

A look gates: before the first round, and before the next one after a failure that may be the node's, the node says that
it is being looked at, and keeps its place. Looks while ranks run only tell; what they find counts when the round ends.
A check that fails makes the node unhealthy at once, and is made once more, alone and unhurried: that confirms it, for
later jobs too, or takes it back.
"""

from __future__ import annotations

from ftslurm.health.check import BACKGROUND, CONFIRM, QUICK, THOROUGH
from ftslurm.health.node_health import Health, HealthFinding, health_of
from ftslurm.health.result import RunResult
from ftslurm.health.verdict import FAIL
from ftslurm.rendezvous.state import BY_NODE, Failure

ACT, WATCH, OFF = "act", "watch", "off"
MODES = (ACT, WATCH, OFF)

FRESH_S = 60.0
"""A look of this age still counts when the next round forms; a restart need not wait for another one."""
AGAIN_S = 30.0
"""An unhealthy node is looked at again at least so often, in seconds."""
FAILURE, XID = "failure", "gpu-xid"
HAPPENED = (FAILURE, XID)
"""Findings of these names were not looked for: they happened, and are held."""
HOLD_S = 120.0
"""What hardware said of itself (an Xid, a CUDA error) makes a node unhealthy for so long, whatever a check finds: a GPU
that fails under load is often well when it idles."""


class HealthGate:
    """One node's fitness.

    Args:
        mode: ACT on what is found, WATCH: only tell, OFF: never look.
        every_s: seconds between looks while ranks run or the node waits as a spare; 0: none.
        spread_s: added before the first of these, so that not all nodes look at the same moment.

    Attributes:
        wanted: the set of checks to run now; None: none. The caller takes it by `begun`.
        doubtful: the checks that have failed without being confirmed: what CONFIRM runs.
        health: what was found last.
        looking: whether the node's place depends on a look that is not done.
        deadline: the monotonic second at which `on_time` wants to be called.
    """

    def __init__(self, mode: str, every_s: float, spread_s: float = 0.0) -> None:
        self._mode = mode
        self._every_s = every_s
        self._spread_s = spread_s
        self._busy = False
        self._looked_at = float("-inf")
        self._held: list[tuple[float, HealthFinding]] = []
        self.wanted: str | None = None
        self.health: Health | None = None
        self.looking = False
        self.deadline: float | None = None

    @property
    def unhealthy(self) -> str | None:
        """Why this node cannot take part, in words; None: it can."""
        if self._mode != ACT or self.health is None:
            return None
        failed = [finding for finding in self.health.findings if finding.status == FAIL]
        if not failed:
            return None
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return failed[0].line() + more

    @property
    def pending(self) -> tuple[str, ...]:
        """The checks that have failed, and nobody has looked twice."""
        found = self.health.findings if self.health is not None else ()
        failed = [one.check for one in found if one.status == FAIL and not one.confirmed and one.check not in HAPPENED]
        return tuple(dict.fromkeys(failed))

    def begin(self) -> None:
        """The agent starts."""
        self._want(QUICK, gate=True)

    def begun(self) -> str:
        """Take the set that is wanted."""
        set_, self.wanted = self.wanted, None
        assert set_ is not None
        return set_

    def on_round(self, now_s: float) -> None:
        """Ranks run here from now on."""
        self._busy = True
        self.wanted, self.looking = None, False
        self._plan(now_s, self._spread_s)

    def on_swept(self, failure: Failure | None, now_s: float, now_ns: int) -> None:
        """The round is over here and nothing of it is left.

        Args:
            failure: the first one here, if any.
        """
        self._busy = False
        self.deadline = None
        self.wanted, self.looking = None, False
        if failure is not None and failure.blame == BY_NODE:
            where = f"rank {failure.rank}"
            advice = "Run `ftslurm health --all` there; exclude the node if it comes again."
            self._hold(HealthFinding(FAILURE, FAIL, where, failure.message[:200], advice, failure.time_ns), now_s)
            self._tell_held(THOROUGH, now_ns)
        suspect = failure is not None and failure.blame is not None
        if suspect or (self.health is not None and self.health.status == FAIL):
            self._want(THOROUGH, gate=True)
        elif now_s - self._looked_at > FRESH_S:
            self._want(QUICK, gate=True)
        else:
            self._plan(now_s)

    def on_event(self, finding: HealthFinding, now_s: float, now_ns: int) -> bool:
        """Something happened that a driver tells of by itself; tell whether it is news."""
        if self._mode == OFF:
            return False
        if any(_same(old, finding) for _, old in self._held):
            # It has just happened again, and is held from now on.
            self._held = [(now_s if _same(old, finding) else at, old) for at, old in self._held]
            return False
        self._hold(finding, now_s)
        self._tell_held(BACKGROUND, now_ns)
        return True

    def on_result(self, set_: str, looked: RunResult | None, now_s: float, now_ns: int) -> list[HealthFinding]:
        """A look is done; None: it came to nothing. Return the findings that are new."""
        self.looking = False
        known = {(old.check, old.subject, old.text) for old in (self.health.findings if self.health else ())}
        self._held = [(at, one) for at, one in self._held if now_s - at < HOLD_S]
        if looked is None:
            # What cannot be looked at stays as it was found; what happened is over all the same.
            if self.health is not None:
                still = [*self._held_findings(), *self._old()]
                self.health = health_of((), self.health.set, self.health.checked_ns, self.health, still)
        else:
            self._looked_at = now_s
            names = {one.check for one in looked.verdicts}
            # A smaller set says nothing of what only the larger one looks at.
            kept = [old for old in self._old() if old.check not in names]
            self.health = health_of(looked.verdicts, set_, now_ns, self.health, [*self._held_findings(), *kept])
        self._plan(now_s)
        found = self.health.findings if self.health else ()
        if self.pending and looked is not None and set_ != CONFIRM and not self._busy and self._mode == ACT:
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
            # A smaller set might not see what was found; a spare must be found fit as for a round.
            self._want(QUICK if self.unhealthy is None else THOROUGH, gate=False)

    def _want(self, set_: str, gate: bool) -> None:
        if self._mode == OFF:
            return
        self.wanted = set_
        self.looking = self.looking or (gate and self._mode == ACT)

    def _plan(self, now_s: float, more_s: float = 0.0) -> None:
        if self._mode == OFF:
            return
        wait_s = self._every_s
        if self.unhealthy is not None and not self._busy:
            wait_s = min(AGAIN_S, self._every_s or AGAIN_S)
        self.deadline = now_s + wait_s + more_s if wait_s else None

    def _hold(self, finding: HealthFinding, now_s: float) -> None:
        if self._mode != OFF:
            self._held.append((now_s, finding))

    def _held_findings(self) -> list[HealthFinding]:
        return [finding for _, finding in self._held]

    def _old(self) -> list[HealthFinding]:
        """Return what earlier looks found; what happened counts as long as it is held."""
        return [one for one in (self.health.findings if self.health else ()) if one.check not in HAPPENED]

    def _tell_held(self, set_: str, now_ns: int) -> None:
        if self._held:
            self.health = health_of((), set_, now_ns, self.health, [*self._held_findings(), *self._old()])


def _same(one: HealthFinding, other: HealthFinding) -> bool:
    return (one.check, one.subject, one.text) == (other.check, other.subject, other.text)
