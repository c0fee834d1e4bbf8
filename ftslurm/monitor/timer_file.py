"""Path by which the ranks' torch timers reach the node's pipe, chosen as torch's own agent does.

torch's agent (LocalElasticAgent._setup_local_watchdog, torch 2.13) reads two variables of its *own* environment and
hands one to its workers: with TORCHELASTIC_ENABLE_FILE_TIMER=1 it serves timers, at TORCHELASTIC_TIMER_FILE if that is
set, else at a path of its own; the workers get that path as TORCHELASTIC_TIMER_FILE, and the first variable only if it
was in the environment all the same. So a launcher that runs within a rank serves timers itself only where the user has
asked for them; then it removes what lies at that path, and makes a pipe of its own there.

Here timers are served by default, unless TORCHELASTIC_ENABLE_FILE_TIMER disables that. And what a rank
gets is a name of its own, a symbolic link to the pipe: a launcher within the rank takes away no more than that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

ENABLE, FILE = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"


class TimerFile:
    """The names by which torch's timers reach a pipe.

    Args:
        inherited: the agent's environment, which its workers inherit.
        pipe: the pipe's path; the ranks' names are made beside it.
    """

    def __init__(self, inherited: Mapping[str, str], pipe: str) -> None:
        enabled, path = inherited.get(ENABLE), inherited.get(FILE)
        self._pipe = pipe
        self._per_rank = path is None and enabled in (None, "1")
        self._users = path if enabled == "1" else None
        self._names: set[str] = set()

    def environment(self, local_rank: int) -> dict[str, str]:
        """Return what that rank gets beside what it inherits, and make its name anew."""
        if not self._per_rank:
            return {}
        name = os.path.join(os.path.dirname(self._pipe), f"timer-{local_rank}")
        self._names.add(name)
        try:
            # Of a round before: a launcher that was killed has left its pipe there.
            os.unlink(name)
        except OSError:
            pass
        self.restore()
        return {FILE: name}

    def restore(self) -> None:
        """Restore missing links: a launcher within a rank removes the one that it used."""
        for name in self._names:
            try:
                os.symlink(self._pipe, name)
            except OSError:
                # It is there, or some launcher's pipe is; or it cannot be made, as then the pipe itself cannot.
                continue

    def serve(self) -> str | None:
        """Let the path that the user has chosen lead to the pipe; return what is wrong, None if nothing is.

        Not for the agent's loop: that path may lie anywhere.
        """
        if self._users is None:
            return None
        try:
            if os.path.lexists(self._users):
                if not _is_pipe_or_link(self._users):
                    return (
                        f"{FILE}={self._users}: expected a path for a pipe, found another file; timers are not received"
                    )
                os.unlink(self._users)
            os.symlink(self._pipe, self._users)
        except OSError as error:
            return f"{FILE}={self._users}: {error.strerror or error}; torch's timers are not received"
        return None

    def withdraw(self) -> None:
        """Remove that again; see `serve`."""
        try:
            if self._users is not None and os.readlink(self._users) == self._pipe:
                os.unlink(self._users)
        except OSError:
            pass


def _is_pipe_or_link(path: str) -> bool:
    mode = os.lstat(path).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISLNK(mode)
