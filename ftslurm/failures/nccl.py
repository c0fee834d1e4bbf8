"""NCCL's own reason for an error: its last error in torch's message, and its WARN lines in the output (pure).

The error code says little (a lack of memory on one rank surfaces as "internal error", a dead peer as "system error").
What NCCL wrote decides whether the cause is on this rank or behind a connection.
"""

from __future__ import annotations

from ftslurm.pattern import pattern

LIMIT = 64 * 1024  # characters of an output's end that are read
WARNINGS = 20
_WARN = pattern(r"\bNCCL WARN ([^\n\r]{1,600})")
_STUCK = pattern(r"watchdog got stuck for|Heartbeat monitor timed out")
_COLLECTIVE = pattern(r"[Ww]atchdog caught collective operation timeout")


def warnings(*texts: str) -> tuple[str, ...]:
    """Return the texts of the last WARN lines in these ends of output."""
    found = [line.strip() for text in texts for line in _WARN.findall(text[-LIMIT:])]
    return tuple(dict.fromkeys(found[-WARNINGS:]))


def is_stuck(text: str) -> bool:
    """Return whether torch's heartbeat monitor found its own watchdog stuck, without a collective's time-out before."""
    return _STUCK.search(text) is not None and _COLLECTIVE.search(text) is None


_LATE = (
    pattern(r"[Rr]anks? ([\d][\d, ]{0,2000}) failed to pass monitoredBarrier"),
    pattern(r"reached monitoredBarrier, but received errors while waiting for send/recv from rank (\d+)"),
    pattern(r"retrieving ncclUniqueId from \[(\d+)\]"),
    pattern(r"[Mm]issing ranks?:? \[?([\d][\d, ]{0,2000})"),
    pattern(r"\branks? (\d[\d, -]{0,2000})(?: and \d+ more)? did not answer the peer heartbeat"),
)
_RUN = pattern(r"(\d{1,6})(?:-(\d{1,6}))?")


def late_ranks(message: str) -> tuple[int, ...]:
    """Return the ranks named as missing: by a monitored barrier, the set-up of NCCL, or ftslurm's peer heartbeat."""
    found = next((match for match in (form.search(message) for form in _LATE) if match), None)
    runs = _RUN.findall(found[1]) if found else ()
    return tuple(rank for first, last in runs for rank in range(int(first), int(last or first) + 1))
