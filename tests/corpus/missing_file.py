"""A data file that is not there."""

from ranks import train

train(lambda: open("data/train-00007.parquet"))  # here
