"""A data loader whose worker takes longer than its time-out."""

import time

from ranks import train


class Slow:
    """Rows on a slow disk."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        time.sleep(60)
        return index


def harm() -> None:
    from torch.utils.data import DataLoader

    for _ in DataLoader(Slow(), num_workers=1, timeout=1):  # here
        pass


train(harm)
