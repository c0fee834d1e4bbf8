"""A filesystem that has become read-only: `small`."""

from ranks import train

train(lambda: open("small/checkpoint-7.pt", "wb"))  # here
