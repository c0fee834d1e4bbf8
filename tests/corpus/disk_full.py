"""A real full disk: `small` is a small tmpfs, or a directory where there is none."""

from ranks import train


def save() -> None:
    with open("small/checkpoint-7.pt", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)  # here


train(save)
