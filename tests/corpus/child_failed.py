"""A child process fails, and the script raises CalledProcessError; argv[1] says how it fails."""

import subprocess
import sys

from ranks import train

FAILS = "raise ValueError('row 4711 has no label')"
FULL = "open('/dev/full', 'w', 1).write('x\\n')"
CRASHES = "import ctypes; ctypes.string_at(0)"


def harm() -> None:
    code = {"captured": FAILS, "inherited": FAILS, "disk": FULL, "crashed": CRASHES}[sys.argv[1]]
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=sys.argv[1] == "captured")  # here


train(harm)
