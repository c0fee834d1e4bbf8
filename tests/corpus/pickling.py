"""Something that cannot be pickled, given to a spawned child."""

import multiprocessing

from ranks import train


def spawn() -> None:
    child = multiprocessing.get_context("spawn").Process(target=lambda: None)
    child.start()  # here


if __name__ == "__main__":
    train(spawn)
