"""A real segmentation fault, of a task and in a file that are named like errors of hardware, on the real kernel."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

NAME = "NVRM: Xid (PCI:0000:3b:00): 79, hardware memory corruption, detected hard LOCKUP on cpu 3"
CRASH = """
import ctypes, mmap, sys
ctypes.CDLL(None).prctl(15, sys.argv[2].encode()[:15], 0, 0, 0)
with open(sys.argv[1], "r+b") as file:
    code = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""


def kernel_log() -> str:
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines = []
    try:
        while True:
            try:
                lines.append(os.read(fd, 1 << 13).decode("utf-8", "replace"))
            except BrokenPipeError:
                continue
            except BlockingIOError:
                return "".join(lines)
    finally:
        os.close(fd)


def test_a_crash_in_a_file_named_like_an_error_is_no_error_of_the_node(tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("needs an x86-64 processor and a kernel's log that may be read")
    code = tmp_path / NAME
    # mov dword [0], 0
    code.write_bytes(b"\xc7\x04\x25\x00\x00\x00\x00\x00\x00\x00\x00" + b"\x90" * 4096)
    deadline = time.monotonic() + 60
    # The kernel prints ten of these in five seconds, of all users.
    while NAME not in kernel_log():
        if time.monotonic() > deadline:
            pytest.skip("this kernel does not log segmentation faults")
        subprocess.run([sys.executable, "-c", CRASH, str(code), NAME], check=False, stderr=subprocess.DEVNULL)
    command = [sys.executable, "-m", "ftslurm.cli", "health", "host-kernel-log", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # Of this machine's own log there may be more to say.
    found = [one["text"] for one in json.loads(done.stdout)["findings"] if NAME[:15] in one["text"]]
    assert found == [], done.stdout
