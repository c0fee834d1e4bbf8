"""One node's view of the directory: existence, owner, mount, free space, permission to write.

Findings that a run cannot work around are judged as by `ftslurm run`.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Mapping

from ftslurm.dataclasses import dataclass
from ftslurm.doctor.barrier import Occupied, enter
from ftslurm.doctor.findings import NOTE, WARNING, WRONG, Finding, Json, some
from ftslurm.doctor.timed_filesystem import TimedFileSystem
from ftslurm.kernel import check_proc
from ftslurm.sharedfs.mounts import mount_of

LITTLE_BYTES, FEW_BYTES = 16 << 20, 1 << 30
FEW_INODES = 10_000
LOCAL_TYPES = frozenset(["btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"])
LONG_CACHE_S = 60.0


@dataclass(frozen=True)
class MountView:
    """One node's view.

    Attributes:
        machine: boot and network name space: equal on "nodes" that are one machine.
        kind: directory, file, missing or unreadable.
        made_uid: owner of a file created there by this process; None: creation failed.
        problem: why no file could be created; with its errno.
        no_proc: what is wrong with /proc, without which no run can be supervised.
        occupied: what is in the place of the session's directory, and its owner.
    """

    directory: str
    host: str
    machine: str
    uid: int
    kind: str
    owner: int = -1
    mode: int = 0
    mount_point: str = ""
    mount_source: str = ""
    fs_type: str = ""
    options: str = ""
    bytes_free: int = 0
    bytes_total: int = 0
    inodes_free: int = 0
    inodes_total: int = 0
    made_uid: int | None = None
    problem: str | None = None
    problem_errno: int | None = None
    no_proc: str | None = None
    occupied: str | None = None


def read_mount(fs: TimedFileSystem, directory: str, session_root: str) -> Json:
    """Gather the facts; creates `session_root` and, for a moment, one file in it."""
    facts: Json = {"directory": directory, "host": socket.gethostname(), "machine": _machine(), "uid": os.geteuid()}
    try:
        status = fs.during(f"stat {directory}", lambda: os.stat(directory))
        facts.update(owner=status.st_uid, mode=stat.S_IMODE(status.st_mode))
        facts["kind"] = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        real = fs.during(f"realpath {directory}", lambda: os.path.realpath(directory))
        space = fs.during(f"statfs {directory}", lambda: os.statvfs(directory))
        facts.update(bytes_free=space.f_bavail * space.f_frsize, bytes_total=space.f_blocks * space.f_frsize)
        facts.update(inodes_free=space.f_favail, inodes_total=space.f_files)
        mount = mount_of(_mountinfo(facts), real)
        facts.update(mount_point=mount.point, mount_source=mount.source, fs_type=mount.fs_type, options=mount.options)
        if facts["kind"] == "directory":
            facts["made_uid"] = _make(fs, session_root)
    except Occupied as error:
        facts.update(problem=str(error), occupied=str(error))
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        facts.setdefault("kind", "missing" if missing else "unreadable")
        facts.update(problem=f"{fs.slowest[1] if error.filename is None else error}", problem_errno=error.errno)
    return facts


def _mountinfo(facts: Json) -> str:
    """Return the kernel's list of mounts; record a missing /proc of this process."""
    try:
        check_proc()
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        facts["no_proc"] = error.strerror
        return ""


def _make(fs: TimedFileSystem, session_root: str) -> int:
    path = os.path.join(session_root, f"made.{socket.gethostname()}.{os.getpid()}")
    try:
        fs.makedirs(session_root)
        # Some filesystems accept a file and reject its content.
        fs.create(path, b" " * 4096, durable=True)
    except (FileExistsError, PermissionError):
        enter(fs, session_root)
        raise
    try:
        made_uid = fs.during(f"stat {path}", lambda: os.stat(path)).st_uid
    finally:
        fs.unlink(path)
    if made_uid == os.geteuid():
        enter(fs, session_root)
    return made_uid


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def judge(places: Mapping[str, MountView], alone: bool) -> list[Finding]:
    """Judge each node's view, and whether all views are of the same directory.

    Args:
        places: node to facts.
        alone: this is the only node.
    """
    found: list[Finding] = []
    for node, place in places.items():
        if place.no_proc is not None:
            text = f"{place.no_proc}: ftslurm run refuses to start there"
            found.append(Finding(WRONG, "proc", (node,), text, "mount it in the container: mount -t proc proc /proc"))
        found += [Finding(severity, "place", (node,), text, advice) for severity, text, advice in _view(place)]
        found += [Finding(severity, "mount", (node,), text, advice) for severity, text, advice in _mount(place, alone)]
    return found + _together(places)


Said = tuple[str, str, str]


def _view(place: MountView) -> list[Said]:
    where = place.directory
    if place.kind == "missing":
        return [(WRONG, f"{where} does not exist", f"mount it, or make it: mkdir -m 700 {where}")]
    if place.kind == "file":
        return [(WRONG, f"{where} is a file, expected a directory", "name a directory")]
    if place.problem is not None:
        return [(WRONG, *_problem(place))]
    said: list[Said] = []
    if place.made_uid is not None and place.made_uid != place.uid:
        text = f"files made by uid {place.uid} belong to uid {place.made_uid} there"
        advice = "the server maps users (root_squash, id mapping): run as a user that it knows; ftslurm refuses files"
        said.append((WRONG, text, f"{advice} of others"))
    if place.mode & 0o022 and not place.mode & 0o1000:
        text = f"others may remove and rename what is in {where} (mode {place.mode:04o}, no sticky bit)"
        said.append((WARNING, text, f"chmod go-w {where}, or chmod +t if it is for everybody"))
    return said + _room(place)


def _problem(place: MountView) -> tuple[str, str]:
    if place.occupied is not None:
        advice = "have that user or root remove it, or name a directory in which others can make nothing"
        return place.occupied, advice
    reasons = {
        errno.EACCES: (f"not writable by uid {place.uid}", f"owner uid {place.owner}, mode {place.mode:04o}"),
        errno.EPERM: ("not permitted", "look at its attributes (lsattr) and mount options"),
        errno.EROFS: ("on a read-only filesystem", f"remount {place.mount_point} read-write, or choose another one"),
        errno.ENOSPC: ("the disk is full", "free some space (or inodes: df -i), or choose another one"),
        errno.EDQUOT: ("the disk quota is used up", "free some space, or choose another one"),
    }
    text, advice = reasons.get(place.problem_errno or 0, ("cannot be used", "choose another directory"))
    return f"{place.directory}: {text} ({place.problem})", advice


def _room(place: MountView) -> list[Said]:
    said: list[Said] = []
    if place.bytes_free < FEW_BYTES:
        severity = WRONG if place.bytes_free < LITTLE_BYTES else WARNING
        text = f"only {place.bytes_free >> 20} MiB are free"
        said.append((severity, text, "logs of all ranks and reports go there: free some space"))
    if place.inodes_total and place.inodes_free < FEW_INODES:
        text = f"only {place.inodes_free} inodes are free"
        said.append((WARNING, text, "a round makes a few files for each rank: remove files (df -i)"))
    return said


def _mount(place: MountView, alone: bool) -> list[Said]:
    options = place.options.split(",")
    values = dict(option.partition("=")[::2] for option in options)
    said: list[Said] = []
    if alone and place.fs_type in LOCAL_TYPES:
        text = f"{place.fs_type} on {place.mount_point} is this machine's own: other nodes will not see it"
        said.append((NOTE, text, "a run on several nodes needs a shared filesystem"))
    if not place.fs_type.startswith("nfs"):
        return said
    if {"soft", "softerr"} & set(options):
        text = f"mounted with {'soft' if 'soft' in options else 'softerr'}: calls fail while the server is away"
        said.append((WARNING, text, "mount it hard: a stalled server then costs time, not the run"))
    if "nolock" in options or values.get("local_lock") in ("all", "flock"):
        text = "mounted without locks between nodes (nolock or local_lock)"
        said.append((NOTE, text, "ftslurm needs none; your own programs may"))
    caches = [values[name] for name in ("acdirmax", "acregmax", "actimeo") if values.get(name, "").isdigit()]
    if any(float(seconds) > LONG_CACHE_S for seconds in caches):
        text = f"attributes are cached for up to {max(map(int, caches))} s"
        said.append((WARNING, text, "mount it with a smaller actimeo (the default is 60 s at most)"))
    return said


def _together(places: Mapping[str, MountView]) -> list[Finding]:
    found = []
    uids = {place.uid for place in places.values()}
    if len(uids) > 1:
        kinds = {uid: [n for n, p in places.items() if p.uid == uid] for uid in sorted(uids)}
        text = "the user has several uids: " + "; ".join(f"{uid} on {some(n, 3)}" for uid, n in kinds.items())
        found.append(Finding(WRONG, "place", (), text, "give the user one uid on all nodes"))
    types = {place.fs_type for place in places.values() if place.fs_type}
    if len(types) > 1:
        groups = {kind: [n for n, p in places.items() if p.fs_type == kind] for kind in sorted(types)}
        text = "mounted differently: " + "; ".join(f"{kind} on {some(n, 3)}" for kind, n in groups.items())
        found.append(Finding(WARNING, "mount", (), text, "find out whether that is meant"))
    return found
