"""Settings of one agent."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ftslurm.agent.environment import Program, RunFacts
from ftslurm.agent.option_groups import RunOptions
from ftslurm.dataclasses import dataclass

TROUBLE_S = 60.0


@dataclass(frozen=True)
class AgentSettings:
    """Settings that stay the same for this agent's life.

    Attributes:
        options: as given by the user.
        facts: see `RunFacts`.
        program: what the workers run.
        logs: directory under which the ranks' log files lie (the run directory, or --log-dir's).
        local_dir: node-local directory of this agent alone.
        inherited: the environment that workers start from.
        guardian: pidfd of the guardian; when the guardian ends, so does this agent.
        job_id, nodes: the job, for Slurm's commands, and its nodes; None: there is no Slurm.
        kill_wait_s: seconds after its SIGTERM at which Slurm kills everything; None: there is no Slurm.
        cpus: those that the worker of each local rank is bound to, None: it is not (`--numa-binding`); empty: none is.
    """

    options: RunOptions
    facts: RunFacts
    program: Program
    logs: str
    local_dir: str
    inherited: Mapping[str, str]
    guardian: int
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    kill_wait_s: float | None = None
    cpus: tuple[frozenset[int] | None, ...] = ()

    def cpus_of(self, local_rank: int) -> frozenset[int] | None:
        """Return the CPUs that a worker is bound to, None: it is not."""
        return self.cpus[local_rank] if self.cpus else None

    @property
    def trouble_s(self) -> float:
        """Seconds of failed access to the shared directory after which an agent without workers gives up.

        A directory that *hangs* is waited for without limit.
        """
        return min(TROUBLE_S, self.options.timing.join_timeout_s)

    @property
    def warm_imports(self) -> tuple[str, ...]:
        """Modules that standby workers import ahead, or `AUTO`; empty: there are none."""
        # With --no-python there is nothing to import ahead.
        return self.options.program.warm_imports if self.program.kind != "exec" else ()

    @property
    def imports_list(self) -> str:
        """Node-local file with what a rank has imported, see `ftslurm.monitor.imports`."""
        return os.path.join(self.local_dir, "imports")
