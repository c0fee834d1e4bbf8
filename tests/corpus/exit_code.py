"""sys.exit with a number."""

import sys

from ranks import train

train(lambda: sys.exit(3))  # here
