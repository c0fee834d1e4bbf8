"""Definition of a check: a name, its sets, a fetch that accesses the node, and a pure judge."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftslurm.dataclasses import asdict, dataclass, field
from ftslurm.health.verdict import Json, Judgement
from ftslurm.records.health import FAIL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

QUICK, BACKGROUND, THOROUGH = "quick", "background", "thorough"
SETS = (QUICK, BACKGROUND, THOROUGH)
"""Before a node joins a round; periodically while one runs; after a failure that the node may have caused."""
CONFIRM = "confirm"
"""Not a set of the catalogue: the failed checks again, each alone and with longer time-outs."""


class Absent(Exception):
    """The subject of the check does not exist here and is not expected to: no finding. The text names it."""


@dataclass(frozen=True)
class CheckedPath:
    """A path that the job uses: `what` it is for ("run directory", "checkpoints", "data", "/tmp")."""

    path: str
    what: str


@dataclass(frozen=True)
class Peer:
    """Another node and its address; port 0: it has none."""

    node: str
    address: str
    port: int = 0


@dataclass(frozen=True)
class Context:
    """Input of the checks about the node and the job; serialisable as JSON.

    Attributes:
        node: this node's name.
        environ: the job's environment: Slurm's allocation, visible devices.
        root: prefix of /proc, /sys and /dev in tests; empty on a real node.
        paths: paths used by the job.
        commands: the user's own checks.
        skip: names of checks to skip.
        busy: ranks are running: their resources are no leftovers, and checks must not disturb them.
        hurry: a round waits for this run: it does not wait for checks that can only warn.
        own_pid: its descendants are the job's own processes; None: there are none.
        address: this node's address as published to others; None: unknown.
        interface: name or network of the interface that this node must have; None: any.
        peers: other nodes of the job.
        job_since_s: monotonic second at which the job began on this node; None: the checks run outside a job.
    """

    node: str
    environ: Mapping[str, str] = field(default_factory=dict)
    root: str = ""
    paths: tuple[CheckedPath, ...] = ()
    commands: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    busy: bool = False
    hurry: bool = False
    own_pid: int | None = None
    address: str | None = None
    interface: str | None = None
    peers: tuple[Peer, ...] = ()
    job_since_s: float | None = None

    def to_json(self) -> Json:
        """Return it as a JSON object."""
        return asdict(self)

    @staticmethod
    def of_json(fields: Mapping[str, Any]) -> Context:
        """Read it back."""
        lists = {name: tuple(fields[name]) for name in ("commands", "skip")}
        paths = tuple(CheckedPath(**place) for place in fields["paths"])
        peers = tuple(Peer(**peer) for peer in fields["peers"])
        return Context(**{**fields, **lists, "paths": paths, "peers": peers})


def always(context: Context) -> bool:
    """It may hang on any node: it calls a driver, a filesystem, or foreign code."""
    return True


def never(context: Context) -> bool:
    """It reads only the kernel's memory (/proc, most of /sys)."""
    return False


def request_for(set_: str, names: Sequence[str], context: Context, directory: str) -> Json:
    """Return the request for one run of a check set, see `ftslurm.health.agent_run`.

    Args:
        set_, names: the set, and for CONFIRM the checks.
        directory: node-local; stores the facts for the next run.
    """
    facts = os.path.join(directory, "health-facts.json")
    return {"set": set_, "names": list(names), "context": context.to_json(), "facts": facts}


Fetch = Callable[[Context], Json]
Judge = Callable[[Json, "Json | None", Context], Judgement]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: unique, with its group in front: "gpu-ecc".
        about: a short description of its subject, for the list of checks.
        sets: the sets that contain it.
        limit_s: time-out of the fetch, in seconds, without the time spent waiting for a CPU.
        fetch: returns the facts; raises `Absent` if its subject does not exist. Any other exception makes the verdict
            UNKNOWN.
        judge: maps the facts, those of the previous run (None: the first run) and the context to the judgement; pure.
        lasting: as long as it fails, it is compared with the last run without a failure: a counter that grew too fast
            has not recovered because it pauses. False: its facts contain their own validity.
        late: the status if the fetch exceeds its time-out, on a node that is not slow as a whole.
        late_text, late_advice: the meaning of that: "the driver hangs".
        may_hang: whether the fetch may hang on this node; it then runs in a process of its own, which is killed at the
            time-out. Avoids the fork for a check whose device does not exist here. Must not hang itself: it may only
            list /sys, /proc and /dev.
        device: checks of the same device share a process, which fetches their facts one after the other; the longest
            of their time-outs is that of all. Empty: the check has a process of its own.
    """

    name: str
    about: str
    sets: frozenset[str]
    limit_s: float
    fetch: Fetch
    judge: Judge
    lasting: bool = True
    late: str = FAIL
    late_text: str = "it hangs"
    late_advice: str = "Look at the node's kernel log."
    may_hang: Callable[[Context], bool] = always
    device: str = ""
