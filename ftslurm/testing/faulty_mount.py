"""A directory on a file server with faults on command: BACKING seen through MOUNT by FUSE, and a CONTROL file.

``python -m ftslurm.testing.faulty_mount BACKING MOUNT CONTROL`` mounts, prints "mounted" and serves until SIGTERM.
Without the file CONTROL, or while it is empty, all is well; its first word is a fault:

| word | what happens |
|---|---|
| ``hang`` | nothing is answered; as with a hard-mounted NFS, a waiting process heeds SIGKILL alone |
| ``hang hard`` | not even that, as where a driver hangs |
| ``full`` | no new file and no further byte: ENOSPC |
| ``write-errors`` | EIO for all that would change something; what is there can be read |
| ``errors`` | EIO for everything |
| ``read-only`` | EROFS for all that would change something |
| ``hold-renames`` | a rename has arrived and is done when the fault is over, whatever became of who asked for it |
| ``slow SECONDS`` | each answer takes so long |

``hold-renames PATTERN`` holds only those whose new name, below BACKING, matches. Nothing is cached, neither names nor
attributes nor bytes, so a fault is met by the next call.

Several mounts of one BACKING are as many clients of one file server: each has its own faults, and what one of them
holds up does not hold up the others, as it would within one mount (the kernel locks a directory while a name in it
changes).

``--journal FILE PATTERN...`` writes down each file that was renamed or linked to a path below BACKING that matches: a
JSON object per line with ``what`` ("renamed", or "held" when a rename is put off), ``path``, ``text`` (the file's first
64 KiB), and ``began_ns`` and ``done_ns``, between which it happened. Several mounts may share the file.

Needs /dev/fuse and root.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fnmatch
import json
import os
import select
import signal
import struct
import sys
import time

from ftslurm.dataclasses import dataclass
from ftslurm.testing.fuse import (
    BATCH_FORGET,
    CREATE,
    FLUSH,
    FORGET,
    FSYNC,
    FSYNCDIR,
    INIT,
    INTERRUPT,
    LINK,
    MKDIR,
    OPEN,
    RELEASE,
    RELEASEDIR,
    RENAME,
    RENAME2,
    RMDIR,
    SETATTR,
    STATFS,
    UNLINK,
    WRITE,
    Backing,
)

SIGKILL_BIT = 1 << 8
GENERIC = struct.Struct("<IIQQIIIHH")
JOURNALED_BYTES = 1 << 16

HANG, FULL, WRITE_ERRORS, ERRORS, READ_ONLY = "hang", "full", "write-errors", "errors", "read-only"
HOLD_RENAMES = "hold-renames"
RENAMED, HELD = "renamed", "held"
SLOW = "slow"
ENDING = frozenset({RELEASE, FLUSH, RELEASEDIR, INIT})
"""Never faulty: the end of something that was opened before."""
GROWING = frozenset({MKDIR, LINK, WRITE, CREATE})
CHANGING = GROWING | {SETATTR, UNLINK, RMDIR, RENAME, RENAME2, FSYNC, FSYNCDIR}


@dataclass(frozen=True)
class Fault:
    """What is wrong with the directory now.

    Attributes:
        kind: HANG, FULL, WRITE_ERRORS, ERRORS, READ_ONLY, HOLD_RENAMES, SLOW; empty: nothing is.
        hard: who waits cannot even be killed.
        pattern: of the new names whose renames are held.
        seconds: that each answer takes.
    """

    kind: str = ""
    hard: bool = False
    pattern: str = "*"
    seconds: float = 0.0

    @staticmethod
    def read(text: str) -> Fault:
        """Read it from the control file's text."""
        kind, *rest = text.split() or [""]
        pattern = rest[0] if kind == HOLD_RENAMES and rest else "*"
        return Fault(kind, kind == HANG and rest == ["hard"], pattern, float(rest[0]) if kind == SLOW else 0.0)

    def error(self, opcode: int, writes: bool) -> int:
        """Return the error number that a request gets, 0 for none.

        Args:
            opcode: FUSE's number of the request.
            writes: it opens a file for writing.
        """
        if opcode in ENDING:
            return 0
        if self.kind == FULL:
            return errno.ENOSPC if opcode in GROWING else 0
        if self.kind == READ_ONLY:
            return errno.EROFS if opcode in CHANGING or writes else 0
        if self.kind == WRITE_ERRORS:
            return errno.EIO if opcode in CHANGING else 0
        return errno.EIO if self.kind == ERRORS else 0


class FaultyMount:
    """Serves one mount, one request after the other."""

    def __init__(self, backing: str, device: int, control: str, journal: int, patterns: list[str]) -> None:
        self.root = os.path.realpath(backing)
        self.backing = Backing(backing, self.renamed)
        self.device, self.control = device, control
        self.journal, self.patterns = journal, patterns
        self.held: list[bytes] = []

    def serve(self) -> None:
        """Answer requests until the mount is gone."""
        poll = select.poll()
        poll.register(self.device, select.POLLIN)
        while True:
            ready = poll.poll(20)
            fault = self.fault()
            if ready:
                try:
                    request = os.read(self.device, 1 << 18)
                except OSError as error:
                    if error.errno in (errno.ENODEV, errno.EBADF):
                        return
                    continue
                self.take(request, fault)
            for held in list(self.held):
                if not self.hangs(held, fault):
                    self.held.remove(held)
                    self.answer(held, fault)
                elif fault.kind == HANG and not fault.hard and _dying(_thread(held)):
                    self.held.remove(held)
                    self.reply(held, -errno.EINTR, b"")

    def fault(self) -> Fault:
        """Return what the control file says now."""
        try:
            with open(self.control, encoding="utf-8") as file:
                return Fault.read(file.read())
        except FileNotFoundError:
            return Fault()

    def hangs(self, request: bytes, fault: Fault) -> bool:
        """Tell whether a request is to wait."""
        if request in self.held and fault.kind == HOLD_RENAMES:
            # Its process may be gone by now, which changes nothing.
            return True
        if fault.kind == HOLD_RENAMES:
            path = self.backing.new_name(_opcode(request), _node(request), request[40:])
            return path is not None and fnmatch.fnmatch(self.below(path), fault.pattern)
        return fault.kind == HANG and _opcode(request) not in ENDING

    def below(self, path: str) -> str:
        """Return a path of the directory beneath, relative to that."""
        return os.path.relpath(path, self.root)

    def take(self, request: bytes, fault: Fault) -> None:
        """Answer a request, or keep it."""
        opcode, node = _opcode(request), _node(request)
        if opcode == FORGET:
            self.backing.forget(node, *struct.unpack_from("<Q", request, 40))
        elif opcode == BATCH_FORGET:
            for i in range(struct.unpack_from("<I", request, 40)[0]):
                self.backing.forget(*struct.unpack_from("<QQ", request, 48 + 16 * i))
        elif opcode == INTERRUPT:
            pass
        elif self.hangs(request, fault):
            self.held.append(request)
            path = self.backing.new_name(opcode, node, request[40:])
            if path is not None:
                self.note(HELD, path, "", time.time_ns())
        else:
            self.answer(request, fault)

    def answer(self, request: bytes, fault: Fault) -> None:
        """Do what a request asks for, or refuse it."""
        opcode, node = _opcode(request), _node(request)
        call, body = self.backing.calls.get(opcode), request[40 : GENERIC.unpack_from(request)[0]]
        writes = opcode == OPEN and bool(struct.unpack_from("<I", body)[0] & (os.O_WRONLY | os.O_RDWR))
        if fault.seconds:
            time.sleep(fault.seconds)
        refusal = fault.error(opcode, writes)
        if refusal:
            self.reply(request, -refusal, b"")
            return
        if call is None:
            self.reply(request, -errno.ENOSYS, b"")
            return
        try:
            out = call(node, body)
        except OSError as error:
            self.reply(request, -(error.errno or errno.EIO), b"")
        except KeyError:
            # A node or handle that is not known here: what a server says that has forgotten it.
            self.reply(request, -errno.ESTALE, b"")
        else:
            if opcode == STATFS and fault.kind == FULL:
                out = out[:8] + bytes(16) + out[24:]
            self.reply(request, 0, out)

    def reply(self, request: bytes, status: int, data: bytes) -> None:
        """Answer with a negative error number, or 0 and data."""
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(data), status, GENERIC.unpack_from(request)[2]) + data)
        except OSError:
            # Nobody waits for it any more.
            pass

    def renamed(self, directory: str, fd: int, name: bytes, began_ns: int) -> None:
        """Write down that a file got this name."""
        self.note(RENAMED, os.path.join(directory, os.fsdecode(name)), _beginning(name, fd), began_ns)

    def note(self, what: str, path: str, text: str, began_ns: int) -> None:
        """Write down what happened to a path that is of interest."""
        path = self.below(path)
        if any(fnmatch.fnmatch(path, pattern) for pattern in self.patterns):
            line = {"began_ns": began_ns, "done_ns": time.time_ns(), "what": what, "path": path, "text": text}
            os.write(self.journal, f"{json.dumps(line)}\n".encode())


def _opcode(request: bytes) -> int:
    return int(GENERIC.unpack_from(request)[1])


def _node(request: bytes) -> int:
    return int(GENERIC.unpack_from(request)[3])


def _thread(request: bytes) -> int:
    return int(GENERIC.unpack_from(request)[6])


def _beginning(name: bytes, directory: int) -> str:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
        try:
            return os.read(fd, JOURNALED_BYTES).decode(errors="replace")
        finally:
            os.close(fd)
    except OSError as error:
        return f"<{error.strerror}>"


def _dying(thread: int) -> bool:
    try:
        with open(f"/proc/{thread}/status") as file:
            return any(int(line.split()[1], 16) & SIGKILL_BIT for line in file if line.startswith(("SigPnd", "ShdPnd")))
    except OSError:
        return True


def main() -> None:
    """Mount and serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="A directory with faults on command; see the module's text.")
    for name in ("backing", "mount", "control"):
        parser.add_argument(name)
    parser.add_argument("--journal", nargs="+", default=[os.devnull], metavar=("FILE", "PATTERN"))
    asked = parser.parse_args()
    journal_path, *patterns = asked.journal
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    mount = os.fsencode(asked.mount)
    # One write for each line, at the end of the file: those of several mounts do not mix.
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if libc.mount(b"faulty", mount, b"fuse.faulty", 0, options.encode()):
        sys.exit(f"cannot mount {asked.mount}: {os.strerror(ctypes.get_errno())}")
    # MNT_DETACH; with the end of this process the kernel lets everybody go who still waits.
    signal.signal(signal.SIGTERM, lambda *_: (libc.umount2(mount, 2), os._exit(0)))
    print("mounted", flush=True)
    FaultyMount(asked.backing, device, asked.control, journal, patterns).serve()


if __name__ == "__main__":
    main()
