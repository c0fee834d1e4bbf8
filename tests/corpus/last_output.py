"""Ends without an exception of Python's, after it has printed the reason on stderr; argv[1] is how it ends."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import traceback

from ranks import RANK, log, train

HOW = sys.argv[1]


def load() -> None:
    raise ValueError("row 4711 has no label")  # here


def run() -> int:
    try:
        load()
    except ValueError:
        if HOW == "prefix":
            logging.basicConfig(format=f"%(levelname)s rank={RANK} %(message)s")
        sys.stderr.write("\r 45%|####      | 45/100 [00:01<00:01, 33.1it/s]" if HOW == "bar" else "")
        if HOW == "ranks":
            for line in traceback.format_exc().splitlines():
                log(f"[rank{RANK}]: {line}")
        else:
            logging.exception("step failed")
        if HOW == "bar":
            sys.stderr.write("\r 46%|####      | 46/100 [00:01<00:01, 33.1it/s]")
    return 3


def harm() -> None:
    if HOW == "assertion":
        ctypes.CDLL(None).__assert_fail(b"labels == 4711", b"model.cc", 12, b"load")
    if HOW == "logged":
        logging.error("row 4711 has no label")
        os._exit(3)
    if HOW == "child":
        child = [sys.executable, __file__, "prefix"]
        sys.exit(subprocess.run(child, env=os.environ | {"CHILD": "1"}, check=False).returncode)
    code = run()
    if HOW == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "returned":
        sys.exit(code)
    os._exit(code)


if "CHILD" in os.environ:
    harm()
train(harm)
