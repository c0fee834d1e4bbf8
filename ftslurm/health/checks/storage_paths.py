"""The job's directories, /tmp and /dev/shm: existing, mounted, answering, writable, with free space.

Each is probed in a process of its own, so that one that hangs does not hide the others. While ranks are running nothing
is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ftslurm.health.check import BACKGROUND, QUICK, THOROUGH, Check, CheckedPath, Context
from ftslurm.health.children import REAP_S, SLACK_S
from ftslurm.health.path_judge import SHM, TMP, TMPDIR, is_usable, judge_path, only_read, shown, unmounted
from ftslurm.health.probe import ProbeSpec, file_name, probe_all
from ftslurm.health.procfs import has_gpus
from ftslurm.health.sysfs import text
from ftslurm.health.verdict import Finding, Json, Judgement
from ftslurm.records.health import UNKNOWN
from ftslurm.sharedfs.mounts import mount_of, points_of
from ftslurm.text import size

LIMIT_S = 3.0
SMALL = 4096


def places(context: Context) -> list[CheckedPath]:
    """Return the job's paths and the node's own, each path once.

    These include the user's $TMPDIR, and /tmp, the agent's fallback.
    """
    wanted = context.environ.get("TMPDIR") or TMP
    temporary = CheckedPath(wanted, wanted if wanted in (TMP, SHM) else TMPDIR)
    fallback = () if wanted == SHM else (CheckedPath(TMP, TMP),)
    found = {place.path: place for place in (CheckedPath(SHM, SHM), *fallback, temporary, *context.paths)}
    last = [path for path in dict.fromkeys((wanted, TMP, SHM)) if path in found]
    own = [found.pop(path) for path in last if found[path].what in (path, TMPDIR)]
    return [*found.values(), *own]


def fetch(context: Context) -> Json:
    """Probe all paths."""
    return probe_places(context, LIMIT_S, "paths", 0 if context.busy else SMALL)


def probe_places(context: Context, limit_s: float, name: str, write: int, *, durable: bool = False) -> Json:
    """Probe all paths; return their facts with their mounts.

    Args:
        context: of the check.
        limit_s: for each path, in seconds.
        name: begins the names of the written files.
        write: bytes to write into each that is not only read.
        durable: whether to sync and read what is written.
    """

    def spec(place: CheckedPath, index: int) -> ProbeSpec:
        read = only_read(place)
        path = f"{context.root}{SHM}" if place.path == SHM else os.path.abspath(place.path)
        file = file_name(context.node, f"{name}{index}")
        return ProbeSpec(path, file, write=0 if read else write, durable=durable, read=read)

    found = probe_paths(places(context), limit_s, spec, context.root)
    # An agent that can work in the user's $TMPDIR does not use /tmp.
    if CheckedPath(TMP, TMP) not in context.paths and any(one["what"] == TMPDIR and is_usable(one) for one in found):
        found = [one for one in found if one["path"] != TMP or one["what"] != TMP]
    return {"places": found, "gpus": has_gpus(context.root)}


def probe_paths(
    paths: Sequence[CheckedPath], limit_s: float, spec: Callable[[CheckedPath, int], ProbeSpec], root: str = ""
) -> list[Json]:
    """Probe these paths; return the facts of each with its mount, for `judge_path`."""
    probed = probe_all([spec(place, index) for index, place in enumerate(paths)], limit_s)
    # Read after the probes: an automounter mounts on access. This file never hangs.
    mountinfo = _whole(f"{root}/proc/self/mountinfo")
    fstab = text(f"{root}/etc/fstab") or ""
    for place, facts in zip(paths, probed, strict=True):
        mount = mount_of(mountinfo, (facts["nearest"] or facts["real"]).removeprefix(root))
        facts["mount"] = {
            "point": mount.point,
            "source": mount.source,
            "type": mount.fs_type,
            "options": mount.options,
            "made_read_only": mount.made_read_only,
        }
        facts["unmounted"] = unmounted(fstab, points_of(mountinfo), facts["real"])
        facts.update(path=place.path, what=place.what, uid=os.geteuid(), limit_s=limit_s)
    return probed


def _whole(path: str) -> str:
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def judge(facts: Json, before: Json | None, context: Context) -> Judgement:
    """Judge each."""
    then = {one["path"]: one for one in before["places"]} if before is not None else {}
    found: list[Finding] = []
    summary = []
    for one in facts["places"]:
        place = CheckedPath(one["path"], one["what"])
        faults = judge_path(place, one, then.get(place.path), context.busy, facts["gpus"])
        found += faults
        free = "" if one["free"] is None else f" {size(one['free'])} free"
        summary.append(f"{shown(place)}{free}" if not faults else f"{shown(place)} {faults[0].status}")
    return Judgement(", ".join(summary), tuple(found))


CHECK = Check(
    name="storage-paths",
    about="the job's directories, /tmp and /dev/shm: existing, mounted, answering, writable, with free space",
    sets=frozenset((QUICK, BACKGROUND, THOROUGH)),
    # The time-out applies to its probes, which do the I/O.
    limit_s=LIMIT_S + SLACK_S + REAP_S + 1.0,
    fetch=fetch,
    judge=judge,
    late=UNKNOWN,
)
