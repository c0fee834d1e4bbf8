"""os._exit: no exception, no word."""

import os

from ranks import train

train(lambda: os._exit(5))
