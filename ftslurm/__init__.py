"""Fault-tolerant multi-node PyTorch on Slurm: keeps the job alive and explains the failure."""

from __future__ import annotations

import os as _os

__version__ = "0.1.0"

_is_forked = False
"""This process is a forked child, such as one that loads data: it is not its rank, and its calls have no effect."""


def _note_fork() -> None:
    global _is_forked
    _is_forked = True


# Here, since a rank's child may be the first to call, and to import the rest.
_os.register_at_fork(after_in_child=_note_fork)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftslurm import peer as peer
    from ftslurm.failures.decorator import record as record
    from ftslurm.fencing import RoundIsOver as RoundIsOver
    from ftslurm.fencing import commit as commit
    from ftslurm.fencing import fence as fence
    from ftslurm.monitor.client import end_all_sections as end_all_sections
    from ftslurm.monitor.client import end_section as end_section
    from ftslurm.monitor.client import heartbeat as heartbeat
    from ftslurm.monitor.client import load_state_dict as load_state_dict
    from ftslurm.monitor.client import loading as loading
    from ftslurm.monitor.client import progress as progress
    from ftslurm.monitor.client import section as section
    from ftslurm.monitor.client import set_timeouts as set_timeouts
    from ftslurm.monitor.client import start_section as start_section
    from ftslurm.monitor.client import state_dict as state_dict
    from ftslurm.monitor.client import workload_finished as workload_finished
    from ftslurm.monitor.stop_client import on_stop as on_stop
    from ftslurm.monitor.stop_client import should_stop as should_stop
    from ftslurm.monitor.stop_client import stop_reason as stop_reason
    from ftslurm.monitor.stop_client import time_left as time_left

_HOMES = {
    "RoundIsOver": "ftslurm.fencing",
    "commit": "ftslurm.fencing",
    "fence": "ftslurm.fencing",
    "end_all_sections": "ftslurm.monitor.client",
    "end_section": "ftslurm.monitor.client",
    "heartbeat": "ftslurm.monitor.client",
    "load_state_dict": "ftslurm.monitor.client",
    "on_stop": "ftslurm.monitor.stop_client",
    "loading": "ftslurm.monitor.client",
    "progress": "ftslurm.monitor.client",
    "record": "ftslurm.failures.decorator",
    "section": "ftslurm.monitor.client",
    "set_timeouts": "ftslurm.monitor.client",
    "should_stop": "ftslurm.monitor.stop_client",
    "start_section": "ftslurm.monitor.client",
    "state_dict": "ftslurm.monitor.client",
    "stop_reason": "ftslurm.monitor.stop_client",
    "time_left": "ftslurm.monitor.stop_client",
    "workload_finished": "ftslurm.monitor.client",
}


if not TYPE_CHECKING:  # else a misspelt name would pass as an object

    def __getattr__(name: str) -> object:
        """Load the public names when one is first asked for, so that ``import ftslurm`` costs nothing (PEP 562).

        All of them, and without interruption: a handler for SIGTERM that saves by ``commit`` must find it loaded, not
        half imported.
        """
        import signal
        from importlib import import_module

        if name == "peer":
            # Alone: the one part that needs torch, which the script has imported.
            return import_module("ftslurm.peer")
        if name not in _HOMES:
            raise AttributeError(f"module 'ftslurm' has no attribute {name!r}")
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for public, home in _HOMES.items():
                globals()[public] = getattr(import_module(home), public)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return globals()[name]
