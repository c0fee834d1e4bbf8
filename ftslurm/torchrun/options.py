"""Options of this backend in `--rdzv-conf`: torch's names and meanings; unknown ones are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ftslurm.dataclasses import dataclass

FOLD, DYNAMIC = "fold", "dynamic"


class WrongOption(SystemExit, ValueError):
    """Wrong usage; the message is one line.

    A `ValueError` for callers from Python; also a `SystemExit`, because torchrun would print a traceback of its own
    frames above the message.
    """

    def __init__(self, text: str) -> None:
        super().__init__(f"ftslurm: {text}")


@dataclass(frozen=True)
class HandlerOptions:
    """The options; times in seconds; torch's defaults except for the keep-alive.

    Attributes:
        protocol: FOLD, the rendezvous of `ftslurm run`; DYNAMIC, torch's own on the shared directory.
        join_timeout_s: wait for the minimum number of nodes.
        last_call_s: wait for more nodes once the minimum has joined.
        close_timeout_s: wait for the shared directory when the rendezvous is closed.
        read_timeout_s: time-out of an operation on the agents' store.
        keep_alive_interval_s: heartbeat interval of a node.
        keep_alive_max_attempt: a node that misses this number of heartbeats is lost.
    """

    protocol: str = FOLD
    join_timeout_s: float = 600.0
    last_call_s: float = 30.0
    close_timeout_s: float = 30.0
    read_timeout_s: float = 60.0
    keep_alive_interval_s: float = 1.0
    keep_alive_max_attempt: int = 8

    @property
    def node_timeout_s(self) -> float:
        """A node that is silent for this time is lost, in seconds."""
        return self.keep_alive_interval_s * self.keep_alive_max_attempt


_SECONDS = {
    "join_timeout": "join_timeout_s",
    "last_call_timeout": "last_call_s",
    "close_timeout": "close_timeout_s",
    "read_timeout": "read_timeout_s",
    "keep_alive_interval": "keep_alive_interval_s",
}
# Only for torch's dynamic rendezvous; "timeout" is set by torchrun itself and never read.
_DYNAMIC_ONLY = {"heartbeat_timeout"}
_IGNORED = {"timeout"}
_OF_C10D = ("is_host", "store_type")
_QUOTES = "'\""
_NODE_TIMEOUT_S = 8.0
_FEWEST_ATTEMPTS = 3


def without_quotes(config: Mapping[str, object]) -> dict[str, object]:
    """Return the configuration without the quotes of a line such as `ARGS="--rdzv-conf='join_timeout=5,timeout=5'"`.

    A shell does not remove quotes that come out of a variable. torch's own backends silently ignore an option so named.
    """
    bare = {name.strip(_QUOTES): value for name, value in config.items()}
    return {name: value.strip(_QUOTES) if isinstance(value, str) else value for name, value in bare.items()}


def read_options(config: Mapping[str, object]) -> HandlerOptions:
    """Parse the rendezvous configuration.

    Raises:
        WrongOption: an option is unknown, or its value is invalid.
    """
    protocol = str(config.get("protocol", FOLD)).lower()
    if protocol not in (FOLD, DYNAMIC):
        raise WrongOption(f"--rdzv-conf protocol={protocol}: expected {FOLD} or {DYNAMIC}")
    _refuse_unknown(config, protocol)
    values: dict[str, float] = {}
    for name, attribute in _SECONDS.items():
        if name in config:
            # Zero is valid only for the last call.
            values[attribute] = _seconds(name, config[name], whole=protocol == DYNAMIC, least_zero=name[:4] == "last")
    interval = values.get("keep_alive_interval_s", HandlerOptions.keep_alive_interval_s)
    attempts = max(_FEWEST_ATTEMPTS, math.ceil(_NODE_TIMEOUT_S / interval))
    if "keep_alive_max_attempt" in config:
        attempts = _count("keep_alive_max_attempt", config["keep_alive_max_attempt"])
    return HandlerOptions(protocol, **values, keep_alive_max_attempt=attempts)


def ignored_options(config: Mapping[str, object]) -> str | None:
    """Return a line about options that only torch's backend c10d has a use for; None: there are none."""
    found = ", ".join(name for name in _OF_C10D if name in config)
    return f"--rdzv-conf {found}: ignored, the backend sharedfs has no store on a host" if found else None


def _refuse_unknown(config: Mapping[str, object], protocol: str) -> None:
    known = {"protocol", *_SECONDS, "keep_alive_max_attempt"}
    if protocol == DYNAMIC:
        known |= _DYNAMIC_ONLY
    for name in config:
        if name not in known | _IGNORED | set(_OF_C10D):
            raise WrongOption(f"--rdzv-conf {name}: the backend sharedfs supports only {', '.join(sorted(known))}")


def _seconds(name: str, value: object, whole: bool, least_zero: bool) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = math.nan
    if not (0 <= seconds < 1e9) or (seconds == 0 and not least_zero):
        raise WrongOption(f"--rdzv-conf {name}={value}: expected seconds, a number above 0")
    if whole and not str(value).isdecimal():
        raise WrongOption(f"--rdzv-conf {name}={value}: torch's dynamic rendezvous takes whole seconds")
    return seconds


def _count(name: str, value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= 2):
        raise WrongOption(f"--rdzv-conf {name}={value}: expected a whole number of at least 2")
    return int(text)
