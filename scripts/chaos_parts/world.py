"""The lab of the jobs: its nodes, its Slurm and its shared directory. All actions are here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from chaos_parts.processes import Process, scan, stat_of
from chaos_parts.shared import CHECKOUT, SharedDirectory

LAB = CHECKOUT / "scripts" / "slurm-lab"
PREEMPTION = ("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE")
COMMAND_S = 20.0
"""Time-out of Slurm's commands, in seconds, which wait for a missing slurmctld."""
SAVED_S = 8.0
HEALED_S = 90.0


class LabError(Exception):
    """An operation of the lab failed; the text has the reason."""


class World:
    """A lab in its own directory.

    Args:
        base: an empty directory of this machine's own disk, with a short path (Unix sockets are made in it).
        nodes: number of nodes.
        settings: lines of slurm.conf that replace the lab's.
        note: logs actions.

    Attributes:
        down: nodes that are dead, frozen or cut off, with the condition.
    """

    def __init__(self, base: Path, nodes: int, settings: list[str], note: Callable[..., None]) -> None:
        self.base, self._settings, self._note = base, settings, note
        prefix = "c" + "".join(chr(ord("a") + int(digit)) for digit in str(os.getpid()))
        self.nodes = [f"{prefix}{number}" for number in range(1, nodes + 1)]
        self.shared = SharedDirectory(base, self.nodes)
        self.logs, self.events, self._tmp = base / "log", base / "events", base / "tmp"
        for directory in (self.logs, self.events, self._tmp):
            directory.mkdir()
        self.down: dict[str, str] = {}
        self.without_slurmctld = False
        self._later: list[subprocess.Popen[bytes]] = []
        foreign = ("SLURM", "FTSLURM", "SBATCH", "SRUN", "SQUEUE", "TORCHELASTIC", "PET_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        path = f"{LAB.parent}:{Path(sys.executable).parent}:{kept.get('PATH', '')}:/usr/sbin:/sbin"
        self.environment = kept | {"PATH": path, "SLURMLAB_DIR": str(base / "lab"), "SLURMLAB_PREFIX": prefix}
        self.environment["SLURM_CONF"] = str(base / "lab" / "slurm.conf")

    # The lab

    def up(self) -> None:
        """Start the lab.

        Raises:
            LabError: it cannot be started.
        """
        prolog = self.base / "task-prolog"
        # Each node appears to have its own disk for temporary files.
        prolog.write_text(
            f'#!/bin/bash\nmkdir -p "{self._tmp}/$SLURMD_NODENAME"\necho "export TMPDIR={self._tmp}/$SLURMD_NODENAME"\n'
        )
        prolog.chmod(0o755)
        try:
            self.shared.mount(self.logs / "mount.log")
        except OSError as error:
            raise LabError(str(error)) from None
        argv = ["up", str(len(self.nodes)), "--network", "--boot", self.shared.boot_command(self.logs / "mount.log")]
        for setting in (f"TaskProlog={prolog}", *PREEMPTION, *self._settings):
            argv += ["--set", setting]
        self.lab(*argv, limit_s=300.0)
        self.down.clear()
        self.without_slurmctld = False

    def take_down(self) -> None:
        """Stop the lab."""
        self._await_later(60.0)
        self.lab("down", limit_s=120.0)
        self.shared.unmount()

    def lab(self, *arguments: str, limit_s: float = 60.0) -> str:
        """Run a command of slurm-lab; return its output.

        Raises:
            LabError: it failed.
        """
        try:
            done = subprocess.run(
                [LAB, *arguments], env=self.environment, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"slurm-lab {arguments[0]} did not end within {limit_s:g} s") from None
        if done.returncode != 0:
            raise LabError(f"slurm-lab {' '.join(arguments[:2])}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def _lab_later(self, *arguments: str) -> None:
        """Start a command of slurm-lab without waiting for it."""
        with (self.logs / "slurm-lab.log").open("ab") as log:
            self._later.append(subprocess.Popen([LAB, *arguments], env=self.environment, stdout=log, stderr=log))

    def _await_later(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        for process in self._later:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._later.clear()

    def heal(self) -> None:
        """Make all nodes usable again.

        Raises:
            LabError: a node did not recover.
        """
        self.shared.move_back()
        self.shared.mend()
        self._await_later(90.0)
        if self.without_slurmctld:
            self.start_daemon("slurmctld")
        self.lab("allow-datagrams")
        for node, how in list(self.down.items()):
            {"dead": self._revive, "frozen": self._thaw, "cut": self._restore}[how](node)
        deadline = time.monotonic() + HEALED_S
        while time.monotonic() < deadline:
            self.slurm("scancel", "--user=root")
            states = dict(line.split() for line in self.slurm("sinfo", "-h", "-N", "-o", "%N %t").splitlines())
            if len(states) == len(self.nodes) and set(states.values()) == {"idle"}:
                return
            for node, state in states.items():
                if state.startswith(("down", "drain", "fail")):
                    self.slurm("scontrol", "update", f"nodename={node}", "state=resume")
            time.sleep(0.5)
        raise LabError(f"not all nodes are idle after {HEALED_S:g} s: {states}")

    # Nodes

    def namespaces(self) -> dict[int, str]:
        """Return the live nodes' names by the inode numbers of their PID namespaces."""
        found = {}
        for node, pid in self._living().items():
            try:
                found[os.stat(f"/proc/{pid}/ns/pid").st_ino] = node
            except OSError:
                # It has just died.
                continue
        return found

    def _living(self) -> dict[str, int]:
        """Return the pids of the live nodes' init processes in the host's namespace."""
        found = {}
        for node in self.nodes:
            try:
                pid, started = (self.base / "lab" / "pid" / node).read_text().split()
                if stat_of(int(pid))[2] == int(started):
                    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                    found[node] = int(children[0])
            except (OSError, ValueError, IndexError):
                continue
        return found

    def processes(self) -> list[Process]:
        """Return the processes of all nodes."""
        return scan(self.namespaces())

    def signal(self, process: Process, number: signal.Signals) -> None:
        """Signal a process, unless its pid was reused."""
        try:
            if stat_of(process.pid)[2] == process.started:
                os.kill(process.pid, number)
        except OSError:
            pass

    def kill_node(self, node: str) -> None:
        """Kill all processes of the node."""
        self.down[node] = "dead"
        self.lab("kill-node", node)

    def revive_node(self, node: str) -> None:
        """Boot it, without waiting for the end."""
        if self.down.pop(node, None) == "dead":
            self._lab_later("revive-node", node)

    def freeze_node(self, node: str) -> None:
        """Freeze all its processes."""
        self.down[node] = "frozen"
        self.lab("freeze-node", node)

    def thaw_node(self, node: str) -> None:
        """Thaw its processes."""
        if self.down.get(node) == "frozen":
            self._thaw(node)

    def cut_link(self, node: str) -> None:
        """Disconnect its network link."""
        self.down[node] = "cut"
        self.lab("cut-link", node)

    def restore_link(self, node: str) -> None:
        """Reconnect its network link."""
        if self.down.get(node) == "cut":
            self._restore(node)

    def _revive(self, node: str) -> None:
        self.lab("revive-node", node, limit_s=90.0)
        del self.down[node]

    def _thaw(self, node: str) -> None:
        self.lab("thaw-node", node)
        del self.down[node]

    def _restore(self, node: str) -> None:
        self.lab("restore-link", node)
        del self.down[node]

    # Slurm

    def slurm(self, *argv: str, cwd: Path | None = None) -> str:
        """Run a Slurm command; return its output, empty on failure."""
        try:
            done = subprocess.run(
                argv, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_S, check=False
            )
        except subprocess.TimeoutExpired:
            return ""
        if done.returncode != 0:
            self._note("command failed", command=" ".join(argv), error=done.stderr.strip()[-300:])
        return done.stdout

    def job(self, job: str) -> dict[str, str]:
        """Return slurmctld's data on a job; empty if it does not answer."""
        if self.without_slurmctld:
            return {}
        return dict(
            field.split("=", 1) for field in self.slurm("scontrol", "show", "job", "-o", job).split() if "=" in field
        )

    def kill_daemon(self, daemon: str, job: str) -> None:
        """Kill slurmctld, or the slurmd of a node."""
        if daemon == "slurmctld":
            self._have_job_saved(job)
            self.without_slurmctld = True
        self.lab("kill-daemon", daemon)

    def start_daemon(self, daemon: str) -> None:
        """Restart it."""
        if daemon not in self.down:
            self.lab("start-daemon", daemon, limit_s=90.0)
        if daemon == "slurmctld":
            self.without_slurmctld = False

    def _have_job_saved(self, job: str) -> None:
        """Make slurmctld save that the job runs, which it may otherwise not do for minutes.

        Its successor would start the job a second time.
        """
        saved, now = self.base / "lab" / "state" / "job_state", time.time()
        self.slurm("scontrol", "update", f"jobid={job}", "comment=saved")
        deadline = time.monotonic() + SAVED_S
        while time.monotonic() < deadline and not (saved.exists() and saved.stat().st_mtime > now):
            time.sleep(0.05)

    # The nodes' disks

    def leftovers(self) -> list[tuple[str, Path]]:
        """Return the files that ftslurm has left on the nodes' disks and in their /dev/shm: the node and the path."""
        found = [(path.parent.name, path) for path in self._tmp.glob("*/ftslurm-*")]
        for node, pid in self._living().items():
            found += [(node, path) for path in Path(f"/proc/{pid}/root/dev/shm").glob("ftslurm*")]
        return sorted(found)

    @staticmethod
    def remove(path: Path) -> None:
        """Remove a file or directory of a node's disk."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
