"""FUSE pass-through of a directory: each request of the kernel becomes a call on the backing directory.

The protocol is that of linux/fuse.h, version 7.31. Nothing is cached: all times to live are zero, and files are opened
for direct I/O, so that each call of a process arrives here.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable

OPEN_DIRECT_IO = 1

LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, RENAME, LINK, OPEN = 1, 2, 3, 4, 9, 10, 11, 12, 13, 14
READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR, READDIR = 15, 16, 17, 18, 20, 25, 26, 27, 28
RELEASEDIR, FSYNCDIR, CREATE, INTERRUPT, BATCH_FORGET, RENAME2 = 29, 30, 35, 36, 42, 45


class Backing:
    """The backing directory of a mount.

    Args:
        path: the directory.
        renamed: called after each rename(2) or link(2) with the directory's path and its descriptor, the new name, and
            the time just before the call, in nanoseconds since the epoch.

    Attributes:
        calls: handlers by the request's number: given the node and the request's body, each returns the answer's body,
            or raises `OSError`.
    """

    def __init__(self, path: str, renamed: Callable[[str, int, bytes, int], None]) -> None:
        self._renamed = renamed
        self._nodes = {1: os.open(path, os.O_PATH)}
        self._counts = {1: 1}
        self._numbers = {_identity(self._nodes[1]): 1}
        self._files: dict[int, int] = {}
        self._listings: dict[int, list[tuple[str, int]]] = {}
        self._last = 1
        self.calls: dict[int, Callable[[int, bytes], bytes]] = {
            LOOKUP: self._lookup,
            GETATTR: self._getattr,
            SETATTR: self._setattr,
            MKDIR: self._mkdir,
            UNLINK: self._unlink,
            RMDIR: self._rmdir,
            RENAME: self._rename,
            LINK: self._link,
            OPEN: self._open,
            READ: self._read,
            WRITE: self._write,
            STATFS: self._statfs,
            RELEASE: self._release,
            FSYNC: self._nothing,
            FLUSH: self._nothing,
            INIT: self._init,
            OPENDIR: self._opendir,
            READDIR: self._readdir,
            RELEASEDIR: self._release,
            FSYNCDIR: self._nothing,
            CREATE: self._create,
            RENAME2: self._rename2,
        }

    def forget(self, node: int, count: int) -> None:
        """Decrement the kernel's lookup count of a node."""
        self._counts[node] -= count
        if self._counts[node] <= 0 and node != 1:
            fd = self._nodes.pop(node)
            del self._counts[node], self._numbers[_identity(fd)]
            os.close(fd)

    def _entry(self, parent: int, name: bytes) -> bytes:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._nodes[parent])
        identity = _identity(fd)
        node = self._numbers.get(identity)
        if node is None:
            self._last += 1
            node = self._numbers[identity] = self._last
            self._nodes[node], self._counts[node] = fd, 0
        else:
            os.close(fd)
        self._counts[node] += 1
        return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + self._attributes(node)

    def _attributes(self, node: int) -> bytes:
        s = os.fstat(self._nodes[node])
        times = (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)
        seconds, rest = [t // 10**9 for t in times], [t % 10**9 for t in times]
        owner = (s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0)
        return struct.pack("<6Q10I", s.st_ino, s.st_size, s.st_blocks, *seconds, *rest, *owner)

    def _path(self, node: int) -> str:
        return f"/proc/self/fd/{self._nodes[node]}"

    def _handle(self) -> int:
        self._last += 1
        return self._last

    def _opened(self, fd: int) -> bytes:
        handle = self._handle()
        self._files[handle] = fd
        return struct.pack("<QII", handle, OPEN_DIRECT_IO, 0)

    def _nothing(self, node: int, body: bytes) -> bytes:
        return b""

    def new_name(self, opcode: int, node: int, body: bytes) -> str | None:
        """Return the new path of a rename or link request; None for other requests."""
        if opcode == LINK:
            directory, name = node, body[8:].split(b"\0")[0]
        elif opcode in (RENAME, RENAME2):
            directory, name = struct.unpack_from("<Q", body)[0], body[8 if opcode == RENAME else 16 :].split(b"\0")[1]
        else:
            return None
        return os.path.join(os.readlink(self._path(directory)), os.fsdecode(name))

    def _report_rename(self, directory: int, new: bytes, began_ns: int) -> None:
        self._renamed(os.readlink(self._path(directory)), self._nodes[directory], new, began_ns)

    # Requests

    def _init(self, node: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("<III", body)[2]
        return struct.pack("<IIIIHHIIHH8I", 7, 31, readahead, 0, 16, 12, 1 << 17, 1, 32, 0, *[0] * 8)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(node, body.split(b"\0")[0])

    def _getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(node)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, size, mode = struct.unpack_from("<I", body)[0], *struct.unpack_from("<Q48xI", body, 16)
        if valid & 1:
            os.chmod(self._path(node), mode & 0o7777)
        if valid & 8:
            os.truncate(self._path(node), size)
        return self._getattr(node, body)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        name = body[8:].split(b"\0")[0]
        os.mkdir(name, struct.unpack_from("<I", body)[0] & 0o7777, dir_fd=self._nodes[node])
        return self._entry(node, name)

    def _unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(body.split(b"\0")[0], dir_fd=self._nodes[node])
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(body.split(b"\0")[0], dir_fd=self._nodes[node])
        return b""

    def _rename(self, node: int, body: bytes, offset: int = 8) -> bytes:
        old, new = body[offset:].split(b"\0")[:2]
        directory = struct.unpack_from("<Q", body)[0]
        began_ns = time.time_ns()
        os.rename(old, new, src_dir_fd=self._nodes[node], dst_dir_fd=self._nodes[directory])
        self._report_rename(directory, new, began_ns)
        return b""

    def _rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _link(self, node: int, body: bytes) -> bytes:
        name = body[8:].split(b"\0")[0]
        linked = self._path(struct.unpack_from("<Q", body)[0])
        began_ns = time.time_ns()
        os.link(linked, name, dst_dir_fd=self._nodes[node])
        self._report_rename(node, name, began_ns)
        return self._entry(node, name)

    def _open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return self._opened(os.open(self._path(node), flags))

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        name = body[16:].split(b"\0")[0]
        fd = os.open(name, flags | os.O_CREAT, mode & 0o7777, dir_fd=self._nodes[node])
        return self._entry(node, name) + self._opened(fd)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(self._files[handle], size, offset)

    def _write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(self._files[handle], body[40 : 40 + size], offset), 0)

    def _statfs(self, node: int, body: bytes) -> bytes:
        s = os.statvfs(self._path(1))
        blocks = (s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree)
        return struct.pack("<5Q4I24x", *blocks, s.f_bsize, s.f_namemax, s.f_frsize, 0)

    def _opendir(self, node: int, body: bytes) -> bytes:
        with os.scandir(self._path(node)) as entries:
            handle = self._handle()
            self._listings[handle] = [(entry.name, entry.inode()) for entry in entries]
        return struct.pack("<QII", handle, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        names, out = self._listings[handle], b""
        for i, (name, inode) in enumerate(names[offset:], offset + 1):
            raw = os.fsencode(name)
            record = struct.pack("<QQII", inode, i, len(raw), 0) + raw + bytes(-len(raw) % 8)
            if len(out) + len(record) > size:
                break
            out += record
        return out

    def _release(self, node: int, body: bytes) -> bytes:
        handle = struct.unpack_from("<Q", body)[0]
        self._listings.pop(handle, None)
        if (fd := self._files.pop(handle, None)) is not None:
            os.close(fd)
        return b""


def _identity(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_dev, facts.st_ino
