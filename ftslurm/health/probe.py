"""Probes of directories, each in a process of its own: one whose filesystem hangs does not hide the others.

A probe records each step before it begins, so that the path and the call of a hang are known. It writes under one name
for each node, user and purpose; leftovers of a killed probe are removed by the next one.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ftslurm.dataclasses import dataclass
from ftslurm.health.children import ENDED, LATE, STARVED, Child, during, run_children, send_bytes
from ftslurm.health.device_time import own_clock
from ftslurm.health.verdict import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

KILLED = -1
"""Instead of an errno: the probe ended without a report."""
_LINKS = 40


@dataclass(frozen=True)
class ProbeSpec:
    """A path to probe.

    Attributes:
        path: a directory, or a file that is only read.
        name: of the temporary file.
        write: bytes to write; 0: only the permissions are checked.
        durable: sync the written file, and read it again by its name.
        read: open and read it; for paths that are only read.
    """

    path: str
    name: str
    write: int = 0
    durable: bool = False
    read: bool = False


def file_name(node: str, purpose: str) -> str:
    """Return the file name of this node's and user's probes: hidden, and with its owner."""
    return f".ftslurm-health-{re.sub('[^A-Za-z0-9.-]', '_', node)[:80]}-{os.geteuid()}-{purpose}"


def probe_all(specs: Sequence[ProbeSpec], limit_s: float, clock: Callable[[], float] = time.monotonic) -> list[Json]:
    """Run all probes concurrently; return the facts of each.

    Args:
        limit_s: time-out of each, without the time spent waiting for a CPU.

    Returns:
        Of each: "kind" ("directory", "file", "other", "missing"), "real" (without symbolic links, as far as
        known), "nearest" (the innermost existing directory), "empty" (whether that is), "free", "total", "inodes",
        "all_inodes", "read_only", "writable", "write_s", "read_s", "took_s"; "error": step, errno and text, or None;
        "hung": the step in which it hangs, or None; "starved": it got too little CPU time; "stuck": the pid of
        a process that cannot be killed, or None.
    """
    children = [Child(_Probe(spec).send_facts, limit_s, clock) for spec in specs]
    run_children(children, clock)
    return [_facts(spec, child) for spec, child in zip(specs, children, strict=True)]


def _facts(spec: ProbeSpec, child: Child) -> Json:
    """Return a probe's facts, or the step in which it hangs."""
    if child.values:
        return {**child.values[-1], "hung": None, "starved": False, "stuck": None}
    step, _, real = (child.call or f"start {spec.path}").partition(" ")
    killed = [step, KILLED, "the process that tried it was killed"] if child.outcome == ENDED else None
    return {
        **_NOTHING,
        "real": real,
        "error": killed,
        "hung": step if child.outcome == LATE else None,
        "starved": child.outcome == STARVED,
        "stuck": None if child.reaped else child.pid,
    }


_NOTHING: Json = {
    **dict.fromkeys(("kind", "nearest", "empty", "free", "total", "inodes", "all_inodes", "read_only", "writable")),
    **dict.fromkeys(("write_s", "read_s", "took_s", "error")),
}


class _Failed(Exception):
    """A step that failed."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(step)
        self.step = step
        self.number = error.errno or 0
        self.text = error.strerror or str(error)


class _Probe:
    """The steps of one probe, each recorded before it begins."""

    def __init__(self, spec: ProbeSpec) -> None:
        self.spec = spec
        self.facts: Json = dict(_NOTHING)
        self.real = "/"

    def do(self, step: str, call: Callable[[], T]) -> T:
        """Record a step, and run it."""
        try:
            return during(f"{step} {self.real}", call)
        except OSError as error:
            raise _Failed(step, error) from None

    def send_facts(self, send: Callable[[Json], None]) -> None:
        """Run all steps, stop at the first failure, and send the facts."""
        began = own_clock()
        try:
            self.resolve()
            self.inspect()
        except _Failed as failed:
            self.facts["error"] = [failed.step, failed.number, failed.text]
        self.facts.update(real=self.real, took_s=own_clock() - began)
        send(self.facts)

    def resolve(self) -> None:
        """Resolve the path one name at a time, so that the mount of a hang is known."""
        todo = _parts(self.spec.path)
        links = 0
        while todo:
            part = todo.pop()
            above = self.real
            if part in (".", ".."):
                self.real = os.path.dirname(above) if part == ".." else above
                continue
            self.real = os.path.join(above, part)
            try:
                mode = self.do("lstat", lambda: os.lstat(self.real).st_mode)
            except _Failed as failed:
                if failed.number not in (errno.ENOENT, errno.ENOTDIR):
                    raise
                self.missing(above, todo)
                return
            if stat.S_ISLNK(mode):
                target = self.do("readlink", lambda: os.readlink(self.real))
                links += 1
                if links > _LINKS:
                    raise _Failed("readlink", OSError(errno.ELOOP, os.strerror(errno.ELOOP)))
                todo += _parts(target)
                self.real = "/" if target.startswith("/") else above

    def missing(self, nearest: str, rest: list[str]) -> None:
        """Record that the path is missing, and the nearest existing directory."""
        whole = os.path.join(self.real, *rest[::-1])
        self.real = nearest
        self.facts.update(kind="missing", nearest=nearest)
        if self.do("stat", lambda: os.path.isdir(nearest)):
            self.facts["empty"] = self.do("list", lambda: _is_empty(nearest))
        self.read_space(nearest)
        self.real = whole

    def read_space(self, place: str) -> None:
        """Read the filesystem's free space and the permissions."""
        try:
            space = self.do("statfs", lambda: os.statvfs(place))
        except _Failed as failed:
            if failed.number != errno.ENOSYS:
                raise
            # Some FUSE filesystems do not report their free space.
        else:
            self.facts.update(free=space.f_bavail * space.f_frsize, total=space.f_blocks * space.f_frsize)
            self.facts.update(inodes=space.f_favail, all_inodes=space.f_files)
            self.facts["read_only"] = bool(space.f_flag & os.ST_RDONLY)
        self.facts["writable"] = self.do("access", lambda: os.access(place, os.W_OK | os.X_OK, effective_ids=True))

    def inspect(self) -> None:
        """Inspect an existing path: its type, its free space, whether it is readable or writable."""
        if self.facts["kind"] == "missing":
            return
        mode = self.do("stat", lambda: os.stat(self.real).st_mode)
        self.facts["kind"] = "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
        self.read_space(self.real)
        if self.spec.read and self.facts["kind"] == "directory":
            self.facts["empty"] = self.do("list", lambda: _is_empty(self.real))
        elif self.spec.read and self.facts["kind"] == "file":
            # Permission to stat does not imply permission to read.
            self.do("read", lambda: _read(self.real, 1))
        elif self.spec.write and self.facts["kind"] == "directory":
            self.write(os.path.join(self.real, self.spec.name), os.urandom(self.spec.write))

    def write(self, path: str, data: bytes) -> None:
        """Write a file, read it again by its name and remove it."""
        began = own_clock()
        fd, path = self.do("create", lambda: _create(path))
        try:
            try:
                self.do("write", lambda: send_bytes(fd, data))
                if self.spec.durable:
                    self.do("fsync", lambda: os.fsync(fd))
                    # Read from the server, not from this node's cache.
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            except _Failed:
                with suppress(_Failed):
                    self.do("close", lambda: os.close(fd))
                raise
            # NFS reports here what the server rejected.
            self.do("close", lambda: os.close(fd))
            self.facts["write_s"] = own_clock() - began
            if self.spec.durable:
                self.compare(path, data)
        except _Failed:
            with suppress(_Failed):
                self.remove(path)
            raise
        self.remove(path)

    def compare(self, path: str, data: bytes) -> None:
        """Read it again."""
        began = own_clock()
        found = self.do("read", lambda: _read(path, len(data) + 1))
        self.facts["read_s"] = own_clock() - began
        if found != data:
            raise _Failed("read", OSError(errno.EILSEQ, "other bytes were read than were written"))

    def remove(self, path: str) -> None:
        """Remove it; a concurrent probe of the same name may have done so."""
        try:
            self.do("unlink", lambda: os.unlink(path))
        except _Failed as failed:
            if failed.number != errno.ENOENT:
                raise


def _parts(path: str) -> list[str]:
    """Return the names of a path, the first one last."""
    return [part for part in path.split("/") if part][::-1]


def _is_empty(directory: str) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def _create(path: str) -> tuple[int, str]:
    """Create the file; return its descriptor and its path."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600), path
    except FileExistsError:
        pass
    try:
        # Leftover of a killed probe.
        os.unlink(path)
        return os.open(path, flags, 0o600), path
    except (FileExistsError, FileNotFoundError, IsADirectoryError, PermissionError):
        # In a world-writable directory any user can place an unremovable file: no evidence about the directory.
        path += f"-{os.urandom(4).hex()}"
        return os.open(path, flags, 0o600), path


def _read(path: str, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while len(found) < limit and (chunk := os.read(fd, limit - len(found))):
            found += chunk
        return found
    finally:
        os.close(fd)
