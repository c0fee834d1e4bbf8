"""The mount that a path lies on, from /proc/self/mountinfo, whose read never hangs (pure)."""

from __future__ import annotations

from ftslurm.dataclasses import dataclass


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo (proc_pid_mountinfo(5)).

    Attributes:
        point: the mount point.
        source: device, "server:/export", or the filesystem's equivalent.
        fs_type: "ext4", "nfs4", ...; "unknown" if no mount was found.
        options: of this mount and of the whole filesystem, without duplicates.
        read_only: this mount is read-only.
        made_read_only: the filesystem is read-only, but not this mount: it was mounted writable, and the kernel has
            remounted it read-only after an error.
    """

    point: str
    source: str
    fs_type: str
    options: str
    read_only: bool = False
    made_read_only: bool = False


UNKNOWN = Mount("", "", "unknown", "")


def mount_of(mountinfo: str, path: str) -> Mount:
    """Return the mount that `path` (absolute, no symbolic links) lies on; of two at one point the later one."""
    best = UNKNOWN
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = unescape(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            own, whole = fields[5].split(","), rest[2].split(",")
            options = ",".join(dict.fromkeys((*own, *whole)))
            read_only = "ro" in own
            best = Mount(point, unescape(rest[1]), rest[0], options, read_only, "ro" in whole and not read_only)
    return best


def points_of(mountinfo: str) -> list[str]:
    """Return all mount points."""
    lines = (line.split(" ") for line in mountinfo.splitlines())
    return [unescape(fields[4]) for fields in lines if len(fields) > 4]


def unescape(text: str) -> str:
    """Return a name of mountinfo or fstab with its octal escapes decoded."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
