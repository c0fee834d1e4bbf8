"""A child process that crashes, as the script expects; the script fails for another reason."""

import subprocess
import sys

from ranks import train


def step() -> None:
    child = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"], check=False)
    assert child.returncode < 0
    raise ValueError("row 4711 has no label")  # here


train(step)
