"""sys.exit with a text."""

import sys

from ranks import train

train(lambda: sys.exit("the tokenizer has no padding token"))  # here
