"""An exception of a worker process, which its parent raises again; argv[1] says by what."""

import sys
from concurrent.futures import ProcessPoolExecutor


def load(index: int) -> int:
    return {"row": index}["label"]  # here


class Rows:
    """A data set without labels."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return load(index)


def by_loader() -> None:
    from torch.utils.data import DataLoader

    list(DataLoader(Rows(), num_workers=1))


def by_pool() -> None:
    with ProcessPoolExecutor(1) as pool:
        list(pool.map(load, range(2)))


def by_spawn() -> None:
    import torch.multiprocessing

    torch.multiprocessing.start_processes(load, nprocs=1, start_method="fork")


if __name__ == "__main__":
    from ranks import train

    train({"loader": by_loader, "pool": by_pool, "spawn": by_spawn}[sys.argv[1]])
