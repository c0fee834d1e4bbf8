"""The wait of a leaving agent for a command of `--on-event` that still runs: Slurm would kill it with the agent."""

from __future__ import annotations

import signal
from collections.abc import Callable

from ftslurm.agent.waiting import Waiting
from ftslurm.hooks.component import Hooks
from ftslurm.kernel import STOPPING


def await_hooks(
    hooks: Hooks,
    waiting: Waiting,
    guardian: object,
    collect: Callable[[], object],
    monotonic: Callable[[], float],
    kill_wait_s: float | None,
    terminated_s: float | None,
) -> None:
    """Wait until the command has ended or its own time is over, Slurm is about to kill it, or a signal stops the wait.

    Args:
        waiting: of the agent, with its signals.
        guardian: the source that is ready when the guardian has ended.
        collect: collects ended children.
        monotonic: clock, seconds.
        kill_wait_s: seconds after its SIGTERM at which Slurm kills everything; None: there is no Slurm, and any signal
            that stops a run stops the wait.
        terminated_s: when the first SIGTERM arrived; None: none yet.
    """
    hooks.leave()
    hooks.poll()
    cut_off = False
    while hooks.deadline is not None and not cut_off:
        waiting.wait(hooks.deadline - monotonic())
        for number in waiting.signals():
            if number == signal.SIGCHLD:
                collect()
            elif number == signal.SIGTERM and kill_wait_s is not None:
                terminated_s = monotonic() if terminated_s is None else terminated_s
            elif number in STOPPING:
                cut_off = True
        if kill_wait_s is not None and terminated_s is not None and monotonic() >= terminated_s + kill_wait_s:
            cut_off = True
        cut_off = cut_off or guardian in waiting.ready
        hooks.poll()
        hooks.announce()
    hooks.finish()
