"""What a check is: a name, when it is run, a fetch that touches the node, and a judge that does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftslurm.dataclasses import asdict, dataclass, field
from ftslurm.health.verdict import FAIL, Json, Judgement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

QUICK, BACKGROUND, THOROUGH = "quick", "background", "thorough"
SETS = (QUICK, BACKGROUND, THOROUGH)
"""Before a node joins a round; from time to time while one runs; after a failure that may be the node's."""
CONFIRM = "confirm"
"""No set that a check belongs to: those that failed, once more, each alone and unhurried."""


class Absent(Exception):
    """What the check is about is not here, and nothing says that it should be: all is well. The text says what."""


@dataclass(frozen=True)
class CheckedPath:
    """A path that the job uses: `what` it is for ("run directory", "checkpoints", "data", "/tmp")."""

    path: str
    what: str


@dataclass(frozen=True)
class Peer:
    """Another node, and where it can be reached; port 0: nowhere."""

    node: str
    address: str
    port: int = 0


@dataclass(frozen=True)
class Context:
    """What checks are told of the node and the job; all of it fits into JSON.

    Attributes:
        node: this node's name.
        environ: the job's environment: what Slurm gave, which devices are visible.
        root: put before /proc, /sys and /dev in tests; empty on a real node.
        paths: that the job uses.
        commands: checks of the user's own.
        skip: names of checks that are not to be run.
        busy: ranks are running: what they hold is no leftover, and nothing may get in their way.
        hurry: a round waits for this look: what is at most a warning is not waited for.
        own_pid: processes below this one are the job's own; None: nobody's are.
        address: this node's, as others are told it; None: unknown.
        peers: other nodes of the job.
        job_since_s: monotonic second at which the job began on this node; None: the node is looked at for no job.
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
    """It may hang on any node: it asks a driver, a filesystem, or what somebody else wrote."""
    return True


def never(context: Context) -> bool:
    """It asks for nothing but what the kernel has in its memory (/proc, most of /sys)."""
    return False


def request_for(set_: str, names: Sequence[str], context: Context, directory: str) -> Json:
    """Return the request for one look, see `ftslurm.health.agent_run`.

    Args:
        set_, names: the set, and for CONFIRM the checks.
        directory: node-local; the facts for the next look are kept there.
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
        about: what it looks at, in a few words, for the list of checks.
        sets: in which sets it is run.
        limit_s: how long its fetch may take, in seconds, without the time in which it waited for a CPU.
        fetch: gets the facts; `Absent` when there is nothing to look at. What it raises otherwise makes the verdict
            UNKNOWN.
        judge: from the facts, those of the look before (None: the first look) and the context to the judgement; pure.
        lasting: as long as it fails, it is compared with the last look at which it did not: a counter that grew too
            fast is not well because it rests for a moment. False: its facts say themselves for how long they count.
        late: the status when the fetch does not come back in time, on a node that is not slow as a whole.
        late_text, late_advice: what that means: "the driver hangs".
        may_hang: whether the fetch may hang on this node; it is then made in a process of its own, which is killed when
            the time is over. That costs a fork, which a check saves whose device is not here. Must not hang itself:
            names in /sys, /proc and /dev do not.
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
