"""A user's excluded nodes: one small JSON file per node, `<shared directory>/excluded-<uid>/<node>.json`.

Each user has a directory of them: users that share a directory of runs cannot write each other's files, and do not use
them.

One file per node needs no lock: exclusions of different nodes are different files, and `rm` allows a node again. Of two
concurrent writes for the same node the later one prevails as a whole. A node's strikes are in a separate file,
`strikes/<node>.json`, since the coordinator adds them while users, or the node itself, exclude it: neither overwrites
the other. (Of two strikes added at the same instant one may be lost, which is equivalent to a single failure.) Files
may be edited manually, consequence their content is always validated, and none of them can break a run: an unreadable
file is reported in `problems`, and its node counts as allowed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ftslurm.dataclasses import replace
from ftslurm.nodes.record import (
    Exclusion,
    Strike,
    as_line,
    decode_exclusion,
    decode_strikes,
    encode_exclusion,
    encode_strikes,
    merged,
    never_excluded,
    quoted,
)
from ftslurm.records.codec import BadFile
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import publish
from ftslurm.sharedfs.rundir import RunDirectoryError, check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

STRIKES_FOLDER = "strikes"
_FOLDER = "excluded-"

STRIKES_TO_EXCLUDE = 2
STRIKE_WINDOW_NS = 7 * 24 * 3600 * 1_000_000_000
_SUFFIX = ".json"
_LIMIT = 1 << 20
MOST = 10_000
"""Maximal number of files read; a directory with more was filled by another program."""


def folder(run_dir: str, chosen: str | None = None) -> str:
    """Return the directory of this user's files, absolute: as chosen, else beside the run directories."""
    return os.path.abspath(chosen) if chosen else folder_in(os.path.dirname(os.path.abspath(run_dir)))


def folder_in(shared: str) -> str:
    """Return the directory of this user's files in the directory of runs `shared`."""
    return os.path.join(shared, f"{_FOLDER}{os.geteuid()}")


def is_folder_name(name: str) -> bool:
    """Return whether the name is that of a user's directory of exclusions, which is not available for runs."""
    return name.startswith(_FOLDER) and name.removeprefix(_FOLDER).isdigit()


def strikes_within(known: Exclusion | None, now_ns: int, window_ns: int = STRIKE_WINDOW_NS) -> list[Strike]:
    """Return the strikes of the last `window_ns` nanoseconds, oldest first."""
    return [strike for strike in known.strikes if now_ns - strike.time_ns <= window_ns] if known else []


def why_repeat_offender(known: Exclusion | None, now_ns: int, window_ns: int = STRIKE_WINDOW_NS) -> str | None:
    """Return why the strikes suffice to exclude the node, None if they do not.

    A node that was excluded before and allowed again needs only one more strike: the old ones still count.
    """
    strikes = strikes_within(known, now_ns, window_ns)
    if len(strikes) < STRIKES_TO_EXCLUDE:
        return None
    days = round(window_ns / (24 * 3600 * 1_000_000_000))
    return (
        f"{len(strikes)} failures began here within {days} days; the last, in {strikes[-1].run}: {strikes[-1].reason}"
    )


class Exclusions:
    """The files of one directory.

    Args:
        fs: the filesystem; it should refuse files of other owners.
        directory: absolute; created when a node is excluded.

    Attributes:
        unreadable: why the last `read` could not list the directory; None: it could, or exists is none.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory
        self._problems: list[str] = []
        self.unreadable: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each file that the last `read` or `of` could not decode completely."""
        return tuple(self._problems)

    def read(self) -> dict[str, Exclusion]:
        """Return all exclusions by node, in the order of names, including expired ones and nodes with strikes only.

        Never raises: see `problems` and `unreadable`.
        """
        self._problems, self.unreadable = [], None
        try:
            self._fs.refresh(self.directory)
            names = self._fs.listdir(self.directory)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.unreadable = f"{self.directory}: {_error_text(error)}"
            return {}
        excluded, with_strikes = set(self._nodes(self.directory, names)), set(self._nodes_with_strikes())
        found = {}
        for node in sorted(excluded | with_strikes):
            known = _known(
                node,
                self._exclusion(node) if node in excluded else None,
                self._strikes(node) if node in with_strikes else (),
            )
            if known is not None:
                found[node] = known
        return found

    def known(self, node: str) -> Exclusion | None:
        """Return one node's exclusion and strikes, None without any; an unreadable file is reported in `problems`."""
        return _known(node, self._exclusion(node), self._strikes(node)) if self._refreshed() else None

    def of(self, node: str, now_ns: int) -> Exclusion | None:
        """Return the node's exclusion if it holds now; never raises, see `known`."""
        exclusion = self._exclusion(node) if self._refreshed() else None
        return (
            exclusion.with_strikes(self._strikes(node)) if exclusion is not None and exclusion.holds(now_ns) else None
        )

    def exclude(self, node: str, reason: str, by: str, until_ns: int | None, now_ns: int) -> Exclusion:
        """Exclude a node; a new exclusion replaces the reason and end of an earlier one; strikes stay.

        Raises:
            RunDirectoryError: the node name is invalid.
            OSError: it could not be written.
        """
        check_name("node name", node)
        exclusion = self._exclusion(node) if self._refreshed() else None
        since_ns = exclusion.since_ns if exclusion is not None and exclusion.holds(now_ns) else now_ns
        known = self._write(Exclusion(node, reason, by, since_ns, until_ns, exclusion.strikes if exclusion else ()))
        return known.with_strikes(self._strikes(node))

    def add_strike(self, node: str, run: str, reason: str, now_ns: int) -> Exclusion:
        """Add a strike: a failure that began on the node. This does not exclude it, see `why_repeat_offender`.

        A second call with the same run, reason and time changes nothing.

        Raises:
            RunDirectoryError: the node name is invalid.
            OSError: it could not be written.
        """
        check_name("node name", node)
        exclusion, before = (self._exclusion(node), self._strikes(node)) if self._refreshed() else (None, ())
        strike = Strike(now_ns, as_line(run), as_line(reason))
        strikes = merged(before, (strike,))
        if strike not in (*before, *(exclusion.strikes if exclusion else ())):
            self._publish(self._strikes_path(node), encode_strikes(node, strikes))
        return (exclusion or never_excluded(node, strikes[0])).with_strikes(strikes)

    def allow(self, node: str) -> bool:
        """Allow a node again and remove its strikes; return False if exists were neither.

        Raises:
            RunDirectoryError: the node name is invalid.
            OSError: it could not be removed.
        """
        check_name("node name", node)
        with_strikes, exclusion = self._remove(self._strikes_path(node)), self._remove(self._path(node))
        return with_strikes or exclusion

    def end(self, node: str, now_ns: int) -> None:
        """End a node's exclusion; its strikes stay.

        Raises:
            RunDirectoryError: the node name is invalid.
            OSError: it could not be written, or removed.
        """
        check_name("node name", node)
        exclusion = self._exclusion(node) if self._refreshed() else None
        if exclusion is not None and (exclusion.strikes or self._strikes(node)):
            self._write(replace(exclusion, until_ns=now_ns))
        elif exclusion is not None:
            self._remove(self._path(node))

    def _path(self, node: str) -> str:
        return os.path.join(self.directory, node + _SUFFIX)

    def _strikes_path(self, node: str) -> str:
        return os.path.join(self.directory, STRIKES_FOLDER, node + _SUFFIX)

    def _add_problem(self, path: str, text: str) -> None:
        self._problems.append(f"{path}: {text}")

    def _refreshed(self) -> bool:
        """Clear the problems and refresh the directories; return whether the directory exists."""
        self._problems = []
        exists = self._refresh(self.directory)
        if exists:
            self._refresh(os.path.join(self.directory, STRIKES_FOLDER))
        return exists

    def _refresh(self, directory: str) -> bool:
        try:
            # NFS caches for half a minute that a file does not exist; this drops that cache.
            self._fs.refresh(directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._add_problem(directory, _error_text(error))
            return False
        return True

    def _nodes_with_strikes(self) -> list[str]:
        """Return the nodes with a file of strikes."""
        directory = os.path.join(self.directory, STRIKES_FOLDER)
        try:
            return self._nodes(directory, self._fs.listdir(directory)) if self._refresh(directory) else []
        except OSError as error:
            self._add_problem(directory, _error_text(error))
            return []

    def _nodes(self, directory: str, names: list[str]) -> list[str]:
        # Names with a leading dot are temporaries, or leftovers of editors.
        found = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]
        if len(found) > MOST:
            self._add_problem(directory, f"{len(found)} files, expected at most {MOST}; only the first are read")
        return sorted(found)[:MOST]

    def _strikes(self, node: str) -> tuple[Strike, ...]:
        consequence = f"{node} counts as one without strikes"
        return self._file(self._strikes_path(node), node, decode_strikes, consequence) or ()

    def _exclusion(self, node: str) -> Exclusion | None:
        """Decode the node's exclusion file; only files of earlier versions contain strikes too."""
        path = self._path(node)
        known = self._file(path, node, decode_exclusion, f"{node} counts as allowed")
        if known is not None and known.node not in (node, ""):
            self._add_problem(path, f"it names node {quoted(known.node)}; the file's name counts: {node}")
        return known and replace(known, node=node)

    def _file(self, path: str, node: str, decode: Callable[[bytes, str], T], consequence: str) -> T | None:
        try:
            check_name("node name", node)
            return decode(self._fs.read(path, _LIMIT), path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._add_problem(path, f"{_error_text(error)}; {consequence}")
        except RunDirectoryError:
            self._add_problem(ascii(path), "its name is no valid node name; remove it")
        except BadFile as error:
            self._problems.append(f"{error}; {consequence}")
        return None

    def _remove(self, path: str) -> bool:
        try:
            # As for writing: files in another user's directory do not concern this user's nodes.
            for directory in dict.fromkeys((self.directory, os.path.dirname(path))):
                self._fs.check_own(directory)
                self._fs.refresh(directory)
            self._fs.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def _write(self, known: Exclusion) -> Exclusion:
        known = replace(known, reason=as_line(known.reason), by=as_line(known.by))
        self._publish(self._path(known.node), encode_exclusion(known))
        return known

    def _publish(self, path: str, data: bytes) -> None:
        # The user's own directory first: `makedirs` may create missing parents with access for others.
        for directory in dict.fromkeys((self.directory, os.path.dirname(path))):
            try:
                self._fs.check_own(directory)
            except FileNotFoundError:
                self._fs.makedirs(directory)
                self._fs.check_own(directory)
        publish(self._fs, path, data)


def _known(node: str, exclusion: Exclusion | None, strikes: tuple[Strike, ...]) -> Exclusion | None:
    if exclusion is None and not strikes:
        return None
    return (exclusion or never_excluded(node, strikes[0])).with_strikes(strikes)


def _error_text(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed"
    return error.strerror or str(error)
