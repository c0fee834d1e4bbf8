"""Machine code that a CPU refuses: argv[1] is SIGILL or SIGFPE."""

import ctypes
import mmap
import platform
import signal
import sys

from ranks import train

CODE = {
    ("SIGILL", "x86_64"): b"\x0f\x0b",  # ud2
    ("SIGFPE", "x86_64"): b"\x31\xc9\x31\xd2\x31\xc0\xf7\xf1",  # 0 / 0
    ("SIGILL", "aarch64"): b"\x00\x00\x00\x00",  # udf; a division by 0 is no trap there
}


def step() -> None:
    code = CODE.get((sys.argv[1], platform.machine()))
    if code is None:
        signal.raise_signal(signal.Signals[sys.argv[1]])
        return
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()  # here


train(step)
