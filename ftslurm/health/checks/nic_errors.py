"""Do the counters of errors on InfiniBand and RoCE ports grow?

Only growth between two runs counts: all links have errors from the plugging of cables and from booting.

The limits are those of NVIDIA's NVSentinel (its NIC health monitor's documentation, "Link Counter Detection"), which
takes them from the InfiniBand specification and clouds' experience: 120 symbol errors an hour are a bit error rate of
10^-12, the specification's maximum for a link. Unlike there, most growth is a WARN here: a job survives a lost packet.
Only a link that goes down repeatedly makes the node unhealthy: each time, all ranks wait until it is trained again, or
NCCL aborts.

Some counters are ignored on purpose. `rnr_nak_retry_err`, `req_transport_retries_exceeded` and the errors of
completions (`*_cqe_error`) grow on all healthy nodes when one of their peers dies.
`out_of_sequence` and `packet_seq_err` grow on healthy fabrics with adaptive routing, and `port_xmit_wait` on busy ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ftslurm.dataclasses import dataclass
from ftslurm.health import infiniband, sysfs
from ftslurm.health.check import SETS, Absent, Context
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import FAIL, WARN
from ftslurm.text import duration

_MINUTE_S, _HOUR_S = 60.0, 3600.0

_CABLE = "Clean or replace the cable and its transceivers; look at the switch's port."
_FABRIC = "Look at the fabric's switches and at congestion control."


@dataclass(frozen=True)
class Limit:
    """The permitted growth of a counter.

    Attributes:
        counter: below the port's directory.
        what: the counted event, singular and plural.
        most: normal growth in `per_s` seconds, or in less.
        status: the status of more growth.
        busy: judged only while ranks run on, because a dying peer makes it grow too.
    """

    counter: str
    what: tuple[str, str]
    most: int
    per_s: float
    advice: str
    status: str = WARN
    busy: bool = False


LIMITS = (
    Limit("counters/link_downed", ("loss of the link", "losses of the link"), 2, _HOUR_S, _CABLE, FAIL),
    Limit("counters/link_downed", ("loss of the link", "losses of the link"), 0, _HOUR_S, _CABLE),
    Limit("counters/link_error_recovery", ("recovery of the link", "recoveries of the link"), 5, _MINUTE_S, _CABLE),
    Limit("counters/symbol_error", ("symbol error", "symbol errors"), 120, _HOUR_S, _CABLE),
    Limit("counters/port_rcv_errors", ("broken packet", "broken packets"), 10, 1.0, _CABLE),
    Limit("counters/local_link_integrity_errors", ("burst of bit errors", "bursts of bit errors"), 0, _HOUR_S, _CABLE),
    Limit("counters/excessive_buffer_overrun_errors", ("buffer overrun", "buffer overruns"), 0, _HOUR_S, _FABRIC),
    Limit("counters/port_xmit_discards", ("discarded packet", "discarded packets"), 100, 1.0, _FABRIC),
    Limit("hw_counters/rx_icrc_encapsulated", ("corrupt RoCE packet", "corrupt RoCE packets"), 0, _HOUR_S, _CABLE),
    Limit("hw_counters/local_ack_timeout_err", ("late answer", "late answers"), 1, 1.0, _FABRIC, busy=True),
    Limit("hw_counters/roce_slow_restart", ("slow restart", "slow restarts"), 10, 1.0, _FABRIC, busy=True),
)
"""The first exceeded limit of a counter is reported."""

COUNTERS = tuple(dict.fromkeys(limit.counter for limit in LIMITS))


def fetch(context: Context) -> Json:
    """Read the counters of all ports, and when."""
    found = {}
    for device, slot, number, below in infiniband.directories(context.root):
        values = {name: value for name in COUNTERS if (value := sysfs.number(below, name)) is not None}
        if values:
            found[f"{slot.address}/{number}"] = {"name": f"{device} port {number}", "counters": values}
    if not found:
        raise Absent("no InfiniBand or RoCE port that counts errors here")
    boot = sysfs.text(context.root + "/proc/sys/kernel/random/boot_id")
    return {"boot": boot, "time_s": time.clock_gettime(time.CLOCK_BOOTTIME), "ports": found}


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge the counters' growth since the previous run."""
    ports = facts["ports"]
    summary = f"{len(ports)} port{'s' * (len(ports) > 1)}"
    if before is None or before["boot"] != facts["boot"]:
        return Judgement(f"{summary}; growth is known from the next check on")
    elapsed_s = facts["time_s"] - before["time_s"]
    found: list[Finding] = []
    for key, port in ports.items():
        grown = _growth(port["counters"], before["ports"].get(key, {}).get("counters", {}))
        found += _judge(port["name"], grown, elapsed_s, context.busy)
    quiet = "errors grow on some" if found else "no errors beyond the normal"
    return Judgement(f"{summary}, {quiet} in {duration(elapsed_s)}", tuple(found))


def _growth(now: dict[str, int], was: dict[str, int]) -> dict[str, int]:
    # Reset, or the driver was reloaded: they count the link's start.
    if any(now[name] < was[name] for name in now if name in was):
        return {}
    return {name: now[name] - was[name] for name in now if name in was}


def _judge(name: str, grown: dict[str, int], elapsed_s: float, busy: bool) -> Sequence[Finding]:
    found: dict[str, Finding] = {}
    for limit in LIMITS:
        count = grown.get(limit.counter, 0)
        if limit.counter in found or (limit.busy and not busy):
            continue
        if count > limit.most * max(1.0, elapsed_s / limit.per_s):
            what = limit.what[count > 1]
            normal = f"; up to {limit.most} {_unit(limit.per_s)} are normal" if limit.most else ""
            text = f"{count} {what} in {duration(elapsed_s)} ({limit.counter.rpartition('/')[2]}){normal}"
            found[limit.counter] = Finding(limit.status, name, text, limit.advice)
    return list(found.values())


def _unit(per_s: float) -> str:
    return {1.0: "a second", _MINUTE_S: "a minute", _HOUR_S: "an hour"}[per_s]


CHECK = infiniband.check(
    "nic-errors", "the error counters of InfiniBand and RoCE ports do not grow", SETS, fetch, judge
)
