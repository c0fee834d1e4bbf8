"""os._exit: no exception, no output."""

import os

from ranks import train

train(lambda: os._exit(5))
