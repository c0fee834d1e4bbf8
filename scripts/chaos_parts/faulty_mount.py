"""A mounted directory with injected faults: BACKING is mounted at MOUNT by FUSE, and CONTROL selects the fault.

``python -m chaos_parts.faulty_mount BACKING MOUNT CONTROL`` mounts, prints "mounted" and serves until SIGTERM.
Without the file CONTROL, or while it is empty, there are no faults; otherwise it contains one of:

| fault | effect |
|---|---|
| ``hang`` | no request is answered; as with a hard-mounted NFS, a blocked process reacts to SIGKILL only |
| ``hang hard`` | the same without reaction to SIGKILL, as with a driver that hangs |
| ``full`` | ENOSPC for new files and further data |
| ``write-errors`` | EIO for all changes; existing files are readable |
| ``errors`` | EIO for all requests |
| ``read-only`` | EROFS for all changes |
| ``hold-renames`` | renames are queued and executed after the fault, even if the calling process has ended |
| ``slow SECONDS`` | each answer is delayed by this time |

``hold-renames PATTERN`` holds only renames whose new name, below BACKING, matches. Names, attributes and data are not
cached, so a fault affects the next call.

Several mounts of one BACKING act as several clients of one file server: each has its own faults, and a held request of
one does not block the others, as it would within one mount (the kernel locks a directory while a name in it changes).

``--journal FILE PATTERN...`` records each file that was renamed or linked to a matching path below BACKING: a JSON
object per line with ``what`` ("renamed", or "held" for a queued rename), ``path``, ``text`` (the file's first 64 KiB),
and ``began_ns`` and ``done_ns``, the interval of its execution. Several mounts may share the file.

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

from chaos_parts.fuse import (
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
from ftslurm.dataclasses import dataclass

SIGKILL_BIT = 1 << 8
GENERIC = struct.Struct("<IIQQIIIHH")
JOURNALED_BYTES = 1 << 16

HANG, FULL, WRITE_ERRORS, ERRORS, READ_ONLY = "hang", "full", "write-errors", "errors", "read-only"
HOLD_RENAMES = "hold-renames"
RENAMED, HELD = "renamed", "held"
SLOW = "slow"
ENDING = frozenset({RELEASE, FLUSH, RELEASEDIR, INIT})
"""Never faulty: they release something opened before."""
GROWING = frozenset({MKDIR, LINK, WRITE, CREATE})
CHANGING = GROWING | {SETATTR, UNLINK, RMDIR, RENAME, RENAME2, FSYNC, FSYNCDIR}


@dataclass(frozen=True)
class Fault:
    """The active fault.

    Attributes:
        kind: HANG, FULL, WRITE_ERRORS, ERRORS, READ_ONLY, HOLD_RENAMES, SLOW; empty: none.
        hard: blocked processes cannot be killed.
        pattern: of the new names whose renames are held.
        seconds: delay of each answer.
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
        """Return the error number for a request, 0 for none.

        Args:
            opcode: FUSE's number of the request.
            writes: the request opens a file for writing.
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
        """Answer requests until the unmount."""
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
        """Return the fault in the control file."""
        try:
            with open(self.control, encoding="utf-8") as file:
                return Fault.read(file.read())
        except FileNotFoundError:
            return Fault()

    def hangs(self, request: bytes, fault: Fault) -> bool:
        """Return whether a request is held."""
        if request in self.held and fault.kind == HOLD_RENAMES:
            # Even if its process has ended.
            return True
        if fault.kind == HOLD_RENAMES:
            path = self.backing.new_name(_opcode(request), _node(request), request[40:])
            return path is not None and fnmatch.fnmatch(self.below(path), fault.pattern)
        return fault.kind == HANG and _opcode(request) not in ENDING

    def below(self, path: str) -> str:
        """Return a path of the backing directory, relative to it."""
        return os.path.relpath(path, self.root)

    def take(self, request: bytes, fault: Fault) -> None:
        """Answer a request, or hold it."""
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
        """Execute a request, or refuse it."""
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
            # Unknown node or handle: the error of a server that has dropped it.
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
            # The caller no longer waits.
            pass

    def renamed(self, directory: str, fd: int, name: bytes, began_ns: int) -> None:
        """Record that a file got this name."""
        self.note(RENAMED, os.path.join(directory, os.fsdecode(name)), _first_bytes(name, fd), began_ns)

    def note(self, what: str, path: str, text: str, began_ns: int) -> None:
        """Record an event of a path that matches the patterns."""
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


def _first_bytes(name: bytes, directory: int) -> str:
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
    parser = argparse.ArgumentParser(
        description="A mounted directory with injected faults; see the module's docstring."
    )
    for name in ("backing", "mount", "control"):
        parser.add_argument(name)
    parser.add_argument("--journal", nargs="+", default=[os.devnull], metavar=("FILE", "PATTERN"))
    options_given = parser.parse_args()
    journal_path, *patterns = options_given.journal
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    mount = os.fsencode(options_given.mount)
    # One appending write per line, so that lines of several mounts do not mix.
    journal = os.open(journal_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if libc.mount(b"faulty", mount, b"fuse.faulty", 0, options.encode()):
        sys.exit(f"cannot mount {options_given.mount}: {os.strerror(ctypes.get_errno())}")
    # MNT_DETACH; at the end of this process the kernel releases all blocked processes.
    signal.signal(signal.SIGTERM, lambda *_: (libc.umount2(mount, 2), os._exit(0)))
    print("mounted", flush=True)
    FaultyMount(options_given.backing, device, options_given.control, journal, patterns).serve()


if __name__ == "__main__":
    main()
