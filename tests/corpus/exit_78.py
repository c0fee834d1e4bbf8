"""The exit code that asks for no restart."""

import sys

from ranks import train

train(lambda: sys.exit(78))  # here
