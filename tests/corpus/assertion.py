"""A failed assertion."""

from ranks import train


def forward() -> None:
    shape = (8, 512)
    assert shape == (8, 1024), f"wrong shape {shape}"  # here


train(forward)
