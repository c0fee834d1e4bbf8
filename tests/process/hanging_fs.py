"""A directory on a file server that can stop answering, as a hard-mounted NFS does: BACKING seen through MOUNT by FUSE.

``python hanging_fs.py BACKING MOUNT CONTROL [SECONDS]`` mounts, prints "mounted" and serves, each call in so many
seconds; while the file CONTROL exists it answers nothing. As with NFS, whoever waits can be killed (SIGKILL, the end of
its process) and not be disturbed else; with "hard" in the file, as with a driver that hangs, not even that.
Speaks the protocol itself (linux/fuse.h, version 7.31); needs /dev/fuse and root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable

SIGKILL_BIT = 1 << 8
GENERIC = struct.Struct("<IIQQIIIHH")
OPEN_DIRECT_IO = 1


class HangingFS:
    """Serves one mount, one request after the other."""

    def __init__(self, backing: str, device: int, control: str, seconds: float) -> None:
        self.device, self.control, self.seconds = device, control, seconds
        # One that is slow would be slow beyond measure if the kernel remembered nothing.
        self.valid_s = 60 if seconds else 0
        self.nodes = {1: os.open(backing, os.O_PATH)}
        self.counts = {1: 1}
        self.numbers = {self.identity(self.nodes[1]): 1}
        self.handles: dict[int, int | list[tuple[str, int]]] = {}
        self.last = 1
        self.held: list[tuple[int, bytes]] = []
        self.calls: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup,
            3: self.getattr,
            4: self.setattr,
            9: self.mkdir,
            10: self.unlink,
            11: self.rmdir,
            12: self.rename,
            13: self.link,
            14: self.open,
            15: self.read,
            16: self.write,
            18: self.release,
            26: self.init,
            27: self.opendir,
            28: self.readdir,
            29: self.release,
            35: self.create,
            45: self.rename2,
        }

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.device, select.POLLIN)
        while True:
            ready = poll.poll(20)
            hanging = os.path.exists(self.control)
            if ready:
                try:
                    request = os.read(self.device, 1 << 18)
                except OSError as error:
                    if error.errno in (errno.ENODEV, errno.EBADF):
                        return
                    continue
                self.take(request, hanging)
            if not hanging:
                waiting, self.held = self.held, []
                for _, request in waiting:
                    self.answer(request)
            soft = self.held and hanging and self.is_soft()
            for held in [h for h in self.held if soft and _dying(h[0])]:
                self.held.remove(held)
                self.reply(held[1], -errno.EINTR, b"")

    def is_soft(self) -> bool:
        try:
            return os.path.getsize(self.control) == 0
        except FileNotFoundError:
            # It has just been taken away: everybody is answered at the next turn.
            return False

    def take(self, request: bytes, hanging: bool) -> None:
        _, opcode, _, node, _, _, thread, _, _ = GENERIC.unpack_from(request)
        if opcode in (2, 36, 42):  # forget, interrupt, batch_forget: without an answer
            if opcode == 2:
                self.forget(node, *struct.unpack_from("<Q", request, 40))
            elif opcode == 42:
                for i in range(struct.unpack_from("<I", request, 40)[0]):
                    self.forget(*struct.unpack_from("<QQ", request, 48 + 16 * i))
        elif hanging and opcode not in (18, 25, 29):
            self.held.append((thread, request))
        else:
            self.answer(request)

    def answer(self, request: bytes) -> None:
        length, opcode, _, node, *_ = GENERIC.unpack_from(request)
        time.sleep(self.seconds)
        call = self.calls.get(opcode)
        if call is None:
            # Of flush and fsync the kernel takes this for "not needed" and never asks again.
            self.reply(request, -errno.ENOSYS, b"")
            return
        try:
            out = call(node, request[40:length])
        except OSError as error:
            self.reply(request, -(error.errno or errno.EIO), b"")
        else:
            self.reply(request, 0, out)

    def reply(self, request: bytes, status: int, data: bytes) -> None:
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), status, GENERIC.unpack_from(request)[2]) + data)
        except OSError:
            pass

    # Nodes

    @staticmethod
    def identity(fd: int) -> tuple[int, int]:
        facts = os.fstat(fd)
        return facts.st_dev, facts.st_ino

    def forget(self, node: int, count: int) -> None:
        self.counts[node] -= count
        if self.counts[node] <= 0 and node != 1:
            fd = self.nodes.pop(node)
            del self.counts[node], self.numbers[self.identity(fd)]
            os.close(fd)

    def entry(self, parent: int, name: bytes) -> bytes:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.nodes[parent])
        identity = self.identity(fd)
        node = self.numbers.get(identity)
        if node is None:
            self.last += 1
            node = self.numbers[identity] = self.last
            self.nodes[node], self.counts[node] = fd, 0
        else:
            os.close(fd)
        self.counts[node] += 1
        return struct.pack("<QQQQII", node, 0, self.valid_s, self.valid_s, 0, 0) + self.attributes(node)

    def attributes(self, node: int) -> bytes:
        s = os.fstat(self.nodes[node])
        times = (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)
        seconds, rest = [t // 10**9 for t in times], [t % 10**9 for t in times]
        owner = (s.st_mode, s.st_nlink, s.st_uid, s.st_gid, 0, 4096, 0)
        return struct.pack("<6Q10I", s.st_ino, s.st_size, s.st_blocks, *seconds, *rest, *owner)

    def path(self, node: int) -> str:
        return f"/proc/self/fd/{self.nodes[node]}"

    def handle(self, value: int | list[tuple[str, int]], flags: int = 0) -> bytes:
        self.last += 1
        self.handles[self.last] = value
        return struct.pack("<QII", self.last, flags, 0)

    # Requests

    def init(self, node: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("<III", body)[2]
        return struct.pack("<IIIIHHIIHH8I", 7, 31, readahead, 0, 16, 12, 1 << 17, 1, 32, 0, *[0] * 8)

    def lookup(self, node: int, body: bytes) -> bytes:
        return self.entry(node, body.split(b"\0")[0])

    def getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", self.valid_s, 0, 0) + self.attributes(node)

    def setattr(self, node: int, body: bytes) -> bytes:
        valid, size, mode = struct.unpack_from("<I", body)[0], *struct.unpack_from("<Q48xI", body, 16)
        if valid & 1:
            os.chmod(self.path(node), mode & 0o7777)
        if valid & 8:
            os.truncate(self.path(node), size)
        return self.getattr(node, body)

    def mkdir(self, node: int, body: bytes) -> bytes:
        name = body[8:].split(b"\0")[0]
        os.mkdir(name, struct.unpack_from("<I", body)[0] & 0o7777, dir_fd=self.nodes[node])
        return self.entry(node, name)

    def unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(body.split(b"\0")[0], dir_fd=self.nodes[node])
        return b""

    def rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(body.split(b"\0")[0], dir_fd=self.nodes[node])
        return b""

    def rename(self, node: int, body: bytes, offset: int = 8) -> bytes:
        old, new = body[offset:].split(b"\0")[:2]
        target = self.nodes[struct.unpack_from("<Q", body)[0]]
        os.rename(old, new, src_dir_fd=self.nodes[node], dst_dir_fd=target)
        return b""

    def rename2(self, node: int, body: bytes) -> bytes:
        return self.rename(node, body, 16)

    def link(self, node: int, body: bytes) -> bytes:
        name = body[8:].split(b"\0")[0]
        os.link(self.path(struct.unpack_from("<Q", body)[0]), name, dst_dir_fd=self.nodes[node])
        return self.entry(node, name)

    def open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return self.handle(os.open(self.path(node), flags), OPEN_DIRECT_IO)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        name = body[16:].split(b"\0")[0]
        fd = os.open(name, flags | os.O_CREAT, mode & 0o7777, dir_fd=self.nodes[node])
        return self.entry(node, name) + self.handle(fd, OPEN_DIRECT_IO)

    def read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(self.handles[handle], size, offset)  # type: ignore[arg-type]

    def write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(self.handles[handle], body[40 : 40 + size], offset), 0)  # type: ignore[arg-type]

    def opendir(self, node: int, body: bytes) -> bytes:
        with os.scandir(self.path(node)) as entries:
            return self.handle([(entry.name, entry.inode()) for entry in entries])

    def readdir(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        names, out = self.handles[handle], b""
        assert isinstance(names, list)
        for i, (name, inode) in enumerate(names[offset:], offset + 1):
            raw = os.fsencode(name)
            record = struct.pack("<QQII", inode, i, len(raw), 0) + raw + bytes(-len(raw) % 8)
            if len(out) + len(record) > size:
                break
            out += record
        return out

    def release(self, node: int, body: bytes) -> bytes:
        held = self.handles.pop(struct.unpack_from("<Q", body)[0], None)
        if isinstance(held, int):
            os.close(held)
        return b""


def _dying(thread: int) -> bool:
    try:
        with open(f"/proc/{thread}/status") as file:
            return any(int(line.split()[1], 16) & SIGKILL_BIT for line in file if line.startswith(("SigPnd", "ShdPnd")))
    except OSError:
        return True


def main(backing: str, mount: str, control: str, seconds: str = "0") -> None:
    """Mount and serve until SIGTERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    if libc.mount(b"hanging", os.fsencode(mount), b"fuse.hanging", 0, options.encode()):
        sys.exit(f"cannot mount {mount}: {os.strerror(ctypes.get_errno())}")
    # MNT_DETACH; with the end of this process the kernel lets everybody go who still waits.
    signal.signal(signal.SIGTERM, lambda *_: (libc.umount2(os.fsencode(mount), 2), os._exit(0)))
    print("mounted", flush=True)
    HangingFS(backing, device, control, float(seconds)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
