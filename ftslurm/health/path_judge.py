"""Judgement of a probed path: existing, mounted, answering, writable, with free space (pure)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from ftslurm import user_limits
from ftslurm.health.check import CheckedPath
from ftslurm.health.probe import KILLED
from ftslurm.health.verdict import Finding, Json
from ftslurm.records.health import FAIL, UNKNOWN, WARN
from ftslurm.sharedfs.mounts import unescape
from ftslurm.text import duration, one_line, size

FEW_BYTES, FEW_SHARE = 1 << 30, 0.05
"""WARN with less than both of it free: 1 GiB, and on filesystems below 20 GiB five per cent."""
LITTLE_BYTES, LITTLE_SHARE = 16 << 20, 0.02
"""FAIL likewise: 16 MiB, two per cent below 800 MiB."""
FEW_INODES = 10_000
"""WARN with fewer, and less than five per cent of all."""
LITTLE_INODES = 16
SMALL_SHM = 1 << 30
SLOW_S = 2.0
SHM, TMP, RUN_DIRECTORY = "/dev/shm", "/tmp", "run directory"
TMPDIR = "$TMPDIR"
"""Purpose of the user's directory for temporary files: the agent can do without it (WARN at most)."""
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs")
"""Filesystems of this node's disks; the kernel makes them read-only after an error."""
_ASK = "Look at its server and at the node's kernel log."


def only_read(place: CheckedPath) -> bool:
    """Return whether the job only reads there, by the user's name for it."""
    return "data" in place.what.lower()


def shown(place: CheckedPath) -> str:
    """Return a path's name in findings."""
    path = one_line(place.path)
    return path if place.what in (place.path, "") else f"{path} ({place.what})"


def judge_path(place: CheckedPath, facts: Json, before: Json | None, busy: bool, gpus: bool) -> list[Finding]:
    """Judge the facts of a probe.

    Args:
        facts: of `probe.probe_all`, and "mount" with the mount's facts, "unmounted": the mount point in fstab without
            a mounted filesystem.
        before: those of the previous run; None: there are none.
        busy: ranks are running, which may have filled a directory or slowed a server.
        gpus: this node has GPUs.
    """
    subject = shown(place)
    fault = _hangs(facts, before, busy) or _gone(place, facts) or _fails(place, facts) or _unwritable(place, facts)
    found = [fault] if fault is not None else _free_space(place, facts, busy, gpus)
    worst = WARN if place.what == TMPDIR else FAIL
    return [Finding(worst if status == FAIL else status, subject, text, advice) for status, text, advice in found]


def is_usable(facts: Json) -> bool:
    """Return whether a directory is writable, as far as its probe got."""
    if facts["hung"] is not None or facts["error"] is not None:
        return False
    return facts["kind"] == "directory" and facts["writable"] and not facts["read_only"]


Fault = tuple[str, str, str]


def _source(facts: Json) -> str:
    mount = facts["mount"]
    return f"{mount['type']} from {one_line(mount['source'])}, mounted at {one_line(mount['point'])}"


def _hangs(facts: Json, before: Json | None, busy: bool) -> Fault | None:
    if facts["starved"]:
        return UNKNOWN, "could not be tried: the node gave it too little CPU time", "Look at the node's load."
    if facts["hung"] is None:
        return None
    mount = facts["mount"]
    text = f"no answer within {facts['limit_s']:g} s: its filesystem hangs ({mount['type']} from"
    text += f" {one_line(mount['source'])}; in {facts['hung']} of {one_line(facts['real'])})"
    if facts["stuck"] is not None:
        text += f"; process {facts['stuck']} that tried it cannot be killed"
    # Ranks that write concurrently may keep a server busy for this time, but not in two consecutive runs.
    again = before is not None and before["hung"] is not None
    return (WARN if busy and not again else FAIL, text, _ASK)


def _gone(place: CheckedPath, facts: Json) -> Fault | None:
    own = place.path in (SHM, place.what)
    if (point := facts["unmounted"]) is not None:
        status = WARN if own else FAIL
        return status, f"nothing is mounted at {one_line(point)}, which fstab wants", f"Mount it: `mount {point}`."
    if facts["kind"] == "missing":
        nearest = one_line(facts["nearest"])
        text = f"is not there; {nearest} is{', and is empty' if facts['empty'] else ''} ({_source(facts)})"
        parent = os.path.dirname(place.path.rstrip("/"))
        if only_read(place):
            lost = facts["nearest"] != parent or facts["empty"]
        else:
            lost = place.what == RUN_DIRECTORY or place.path == TMP
        return FAIL if lost else WARN, text, "Make it, or mount its filesystem on this node."
    if facts["kind"] in ("file", "other") and not (only_read(place) and facts["kind"] == "file"):
        status = FAIL if place.what == RUN_DIRECTORY or own else WARN
        what = "a file" if facts["kind"] == "file" else "a device, pipe or socket"
        return status, f"expected a directory, found {what}", "Name a directory."
    return None


_REASONS = {
    errno.ESTALE: (
        "stale file handle: its server no longer exports what is mounted here",
        "Unmount and mount it again.",
    ),
    errno.ENOTCONN: ("the program behind its mount has died", "Unmount and mount it again."),
    errno.ESHUTDOWN: ("its filesystem was shut down after an error", "Look at the node's kernel log."),
    errno.EIO: ("input/output error", "Look at the disk or server, and at the node's kernel log."),
    errno.EUCLEAN: ("its filesystem is damaged", "Have it checked (fsck)."),
    errno.ETIMEDOUT: ("its server did not answer in time", _ASK),
    errno.EHOSTDOWN: ("its server is down", _ASK),
    errno.EKEYEXPIRED: ("the Kerberos ticket has expired", "Renew it: `kinit`."),
    errno.ENOKEY: ("no Kerberos ticket", "Get one: `kinit`."),
    errno.EILSEQ: ("other bytes were read than had been written", "Do not use it; look at the disk or server."),
    errno.ELOOP: ("its symbolic links form a loop", "Check their targets."),
}


def _fails(place: CheckedPath, facts: Json) -> Fault | None:
    if facts["error"] is None:
        return None
    step, number, error = facts["error"]
    if number == KILLED:
        return UNKNOWN, f"could not be tried: {error} ({step})", "Look at the limits of this user: `ulimit -a`."
    if number in user_limits.ERRNOS:
        text = f"{user_limits.ERRNOS[number]}: {step} failed ({_source(facts)})"
        return WARN, text, "It is a limit of this user's and none of the node's: have it raised."
    if number == errno.EROFS:
        return _read_only(place, facts)
    if number in (errno.EACCES, errno.EPERM):
        return _denied(place, facts, step)
    if number == errno.ENOSPC:
        left = f"{size(facts['free'])} and {facts['inodes']} inodes are free" if facts["free"] is not None else ""
        what = "no inode is free" if facts["all_inodes"] and facts["inodes"] == 0 else f"it is full ({left})"
        return FAIL, f"{what}: {step} failed ({_source(facts)})", "Remove files there: `df -h`, `df -i`."
    text, advice = _REASONS.get(number, (error, "Look at the node's kernel log."))
    return FAIL, f"{text}: {step} failed ({_source(facts)})", advice


def _denied(place: CheckedPath, facts: Json, step: str) -> Fault:
    text = f"{step} is not permitted to user {facts['uid']} ({_source(facts)})"
    if facts["uid"] == 0 and facts["mount"]["type"] not in (*_LOCAL, "tmpfs", "overlay"):
        # Servers map root to the user nobody.
        return UNKNOWN, text, "Look as the job's user."
    return WARN if place.path == SHM else FAIL, text, "Look at its owner and mode: `ls -ld`."


def _unwritable(place: CheckedPath, facts: Json) -> Fault | None:
    if only_read(place):
        return None
    if facts["read_only"]:
        return _read_only(place, facts)
    if not facts["writable"]:
        return _denied(place, facts, "writing")
    return None


def _read_only(place: CheckedPath, facts: Json) -> Fault:
    mount = facts["mount"]
    status = WARN if place.path == SHM else FAIL
    if mount["made_read_only"] and mount["type"] in _LOCAL:
        text = f"the kernel has made its filesystem read-only, as it does after errors ({_source(facts)})"
        return status, text, "Look at the node's kernel log, have the filesystem checked."
    return status, f"it is mounted read-only ({_source(facts)})", "Mount it writable, or name another directory."


def _free_space(place: CheckedPath, facts: Json, busy: bool, gpus: bool) -> Iterable[Fault]:
    if only_read(place):
        return
    free, total, inodes, all_inodes = (facts[key] for key in ("free", "total", "inodes", "all_inodes"))
    source = _source(facts)
    worst = WARN if busy else FAIL
    advice = (
        f"Remove leftover files there, or ask their owners: `ls -la {SHM}`."
        if place.path == SHM
        else "Remove files there: `df -h`."
    )
    if total and free < min(FEW_BYTES, FEW_SHARE * total):
        little = free < min(LITTLE_BYTES, LITTLE_SHARE * total)
        yield worst if little else WARN, f"only {size(free)} of {size(total)} are free ({source})", advice
    elif place.path == SHM and gpus and total is not None and total < SMALL_SHM:
        text = f"it holds only {size(total)}: data loaders and NCCL die of bus errors when it is full"
        yield WARN, text, "Start the container with a larger one: --shm-size, --ipc=host."
    if all_inodes and inodes < min(FEW_INODES, FEW_SHARE * all_inodes):
        text = f"only {inodes} of {all_inodes} inodes are free ({source})"
        yield worst if inodes < LITTLE_INODES else WARN, text, "Remove files there: `df -i`."
    if not busy and facts["took_s"] is not None and facts["took_s"] > SLOW_S:
        yield WARN, f"slow: {duration(facts['took_s'])} for a few small calls ({source})", _ASK


def unmounted(fstab: str, points: Iterable[str], path: str) -> str | None:
    """Return the mount point in fstab(5) for a path if nothing is mounted there.

    Args:
        points: mount points, including automounters.
    """
    mounted = set(points)
    for line in fstab.splitlines():
        words = line.split()
        if len(words) < 4 or words[0].startswith("#") or words[2] == "swap" or "noauto" in words[3].split(","):
            continue
        point = unescape(words[1])
        inside = point not in ("/", "none") and (path == point or path.startswith(point.rstrip("/") + "/"))
        if inside and point.rstrip("/") not in mounted:
            return point
    return None
