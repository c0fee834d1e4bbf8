"""What PyTorch's suites get in place of c10d and torchrun: see `torch_suites.py`, which puts it into their copies."""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed.run as stock
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ftslurm.sharedfs.cell import FencedCell
from ftslurm.sharedfs.filesystem import PosixFileSystem
from ftslurm.torchrun.dynamic import SharedFSBackend


class StateBackend(SharedFSBackend):
    """The backend `sharedfs` in a new directory, with what the suites' own backends offer to them."""

    def __init__(self) -> None:
        self._cell_of_suite = FencedCell(PosixFileSystem(owner=os.geteuid()), tempfile.mkdtemp())
        super().__init__(self._cell_of_suite)

    def get_state_internal(self) -> Any:
        """Return the state, past the mock that counts the calls."""
        found = SharedFSBackend.get_state(self)
        assert found is not None
        return pickle.loads(found[0])

    def set_state_internal(self, state: object) -> None:
        """Replace the state, as another node would."""
        self._replace(pickle.dumps(state))

    def corrupt_state(self) -> None:
        """Replace the state by bytes that are no pickle."""
        self._replace(b"corrupt_state")

    def corrupt_file(self) -> None:
        """Replace the state by a value that this backend never writes."""
        found = self._cell_of_suite.get()
        self._cell_of_suite.set(b'"no base64!"', None if found is None else found.token)

    def _replace(self, state: bytes) -> None:
        found = SharedFSBackend.get_state(self)
        SharedFSBackend.set_state(self, state, None if found is None else found[1])


class torchrun:
    """`torch.distributed.run` with the rendezvous `sharedfs`, where the suite names none."""

    parse_min_max_nnodes = staticmethod(stock.parse_min_max_nnodes)

    @staticmethod
    def main(arguments: Sequence[str]) -> None:
        """Launch."""
        stock.main(["--rdzv-backend=sharedfs", f"--rdzv-endpoint={tempfile.mkdtemp()}", *arguments])


class ftslurm_run:
    """`torch.distributed.run` by `ftslurm run`: its corrected command line is taken where it asks for that."""

    parse_min_max_nnodes = staticmethod(stock.parse_min_max_nnodes)

    @staticmethod
    def main(arguments: Sequence[str]) -> None:
        """Launch.

        Raises:
            ValueError: wrong usage.
            ChildFailedError: the workers failed.
        """
        done = _ftslurm(["run", *arguments])
        corrected = done.stderr.rpartition("\nuse: ftslurm ")[2]
        if done.returncode == 2 and corrected != done.stderr:
            done = _ftslurm(shlex.split(corrected))
        print(done.stdout, done.stderr)
        if done.returncode == 2:
            raise ValueError(done.stderr)
        if done.returncode:
            failure = ProcessFailure(0, 0, done.returncode, error_file="")
            failure.timestamp = int(time.time())
            raise ChildFailedError("ftslurm run", {0: failure})


def _ftslurm(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ftslurm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
