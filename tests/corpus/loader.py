"""A DataLoader whose worker is killed."""

import os
import signal

from ranks import train
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return row


def read() -> None:
    for _ in DataLoader(Rows(), num_workers=1):  # here
        pass


train(read)
