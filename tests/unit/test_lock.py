"""The lock between rivals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from ftslurm.sharedfs.lock import rivals_lock


def test_who_cannot_have_the_lock_in_time_goes_on_without_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with rivals_lock(path, 0.0) as first, rivals_lock(path, 0.0) as second:
        assert (first, second) == (True, False)
    with rivals_lock(path, 0.0) as again:
        assert again


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        with rivals_lock(path, 0.0):
            os.write(told, b"x")
            signal.pause()
        os._exit(0)
    assert os.read(ready, 1) == b"x"
    with rivals_lock(path, 0.0) as held:
        assert not held
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with rivals_lock(path, 0.0) as held:
        assert held
