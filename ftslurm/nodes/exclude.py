"""The nodes that a user has excluded: one small JSON file for each, `<shared directory>/excluded-<uid>/<node>.json`.

Each user has a directory of them: users who share a directory of runs cannot write into each other's files, and do not
believe them.

A file per node needs no lock: whoever excludes another node writes another file, and `rm` allows a node again. Two
that write about the same node at the same moment are one after the other: the later one's file stands, whole. A node's
strikes are in a file of their own, `strikes/<node>.json` there, for the coordinator notes them while people, or the
node itself, exclude it: neither overwrites the other. (Of two strikes noted at the very same instant one may be lost,
which is as good as one failure.) Files may be edited by hand, so nothing in them is believed unseen, and none of them
can break a run: what cannot be read is told in `problems`, and its node counts as allowed.
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
    shown,
)
from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile, publish
from ftslurm.sharedfs.rundir import RunDirectoryError, check_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

STRIKES_FOLDER = "strikes"
_FOLDER = "excluded-"

LEMON_STRIKES = 2
LEMON_WINDOW_NS = 7 * 24 * 3600 * 1_000_000_000
_SUFFIX = ".json"
_LIMIT = 1 << 20
MOST = 10_000
"""So many nodes' files are read; a directory with more was filled by something else."""


def folder(run_dir: str, chosen: str | None = None) -> str:
    """Return the directory of this user's files, absolute: as chosen, else beside the run directories."""
    return os.path.abspath(chosen) if chosen else folder_in(os.path.dirname(os.path.abspath(run_dir)))


def folder_in(shared: str) -> str:
    """Return the directory of this user's files in the directory of runs `shared`."""
    return os.path.join(shared, f"{_FOLDER}{os.geteuid()}")


def is_folder_name(name: str) -> bool:
    """Whether that is the name of some user's directory of these files, so that no run can have it."""
    return name.startswith(_FOLDER) and name.removeprefix(_FOLDER).isdigit()


def strikes_within(known: Exclusion | None, now_ns: int, window_ns: int = LEMON_WINDOW_NS) -> list[Strike]:
    """Return the strikes of the last `window_ns` nanoseconds, oldest first."""
    return [strike for strike in known.strikes if now_ns - strike.time_ns <= window_ns] if known else []


def why_repeat_offender(known: Exclusion | None, now_ns: int, window_ns: int = LEMON_WINDOW_NS) -> str | None:
    """Return why the strikes are reason enough to exclude the node, None if they are not.

    Whoever was excluded before and comes back needs only one more strike: the old ones still count.
    """
    strikes = strikes_within(known, now_ns, window_ns)
    if len(strikes) < LEMON_STRIKES:
        return None
    days = round(window_ns / (24 * 3600 * 1_000_000_000))
    return (
        f"{len(strikes)} failures began here within {days} days; the last, in {strikes[-1].run}: {strikes[-1].reason}"
    )


class Exclusions:
    """The files of one directory.

    Args:
        fs: the filesystem; let it refuse files of other owners.
        directory: absolute; it need not be there, and is made when a node is excluded.

    Attributes:
        unreadable: why the last `read` could not even list the directory; None: it could, or there is none.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory
        self._problems: list[str] = []
        self.unreadable: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each file that the last `read` or `of` could not understand, or not fully."""
        return tuple(self._problems)

    def read(self) -> dict[str, Exclusion]:
        """Return what is known, by node, in the order of names; also what has expired, and mere strikes.

        It never raises: see `problems` and `unreadable`.
        """
        self._problems, self.unreadable = [], None
        try:
            self._fs.refresh(self.directory)
            names = self._fs.listdir(self.directory)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.unreadable = f"{self.directory}: {_words(error)}"
            return {}
        excluded, struck = set(self._nodes(self.directory, names)), set(self._struck())
        found = {}
        for node in sorted(excluded | struck):
            known = _known(
                node,
                self._exclusion(node) if node in excluded else None,
                self._strikes(node) if node in struck else (),
            )
            if known is not None:
                found[node] = known
        return found

    def known(self, node: str) -> Exclusion | None:
        """Return what is known of one node: a file that cannot be read is told in `problems`, and is None."""
        return _known(node, self._exclusion(node), self._strikes(node)) if self._refreshed() else None

    def of(self, node: str, now_ns: int) -> Exclusion | None:
        """Return the node's exclusion if it holds now; it never raises, see `known`."""
        exclusion = self._exclusion(node) if self._refreshed() else None
        return (
            exclusion.with_strikes(self._strikes(node)) if exclusion is not None and exclusion.holds(now_ns) else None
        )

    def exclude(self, node: str, reason: str, by: str, until_ns: int | None, now_ns: int) -> Exclusion:
        """Exclude a node, or do so anew: this reason and end replace those before; strikes stay.

        Raises:
            RunDirectoryError: the name cannot be a node's.
            OSError: it could not be written.
        """
        check_name("node name", node)
        exclusion = self._exclusion(node) if self._refreshed() else None
        since_ns = exclusion.since_ns if exclusion is not None and exclusion.holds(now_ns) else now_ns
        known = self._write(Exclusion(node, reason, by, since_ns, until_ns, exclusion.strikes if exclusion else ()))
        return known.with_strikes(self._strikes(node))

    def add_strike(self, node: str, run: str, reason: str, now_ns: int) -> Exclusion:
        """Note that a failure began on the node; whether it is excluded stays as it is: see `why_repeat_offender`.

        The second call with the same run, reason and time changes nothing.

        Raises:
            RunDirectoryError: the name cannot be a node's.
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
        """Allow a node again and forget its strikes; False: there was nothing about it.

        Raises:
            RunDirectoryError: the name cannot be a node's.
            OSError: it could not be removed.
        """
        check_name("node name", node)
        struck, exclusion = self._remove(self._strikes_path(node)), self._remove(self._path(node))
        return struck or exclusion

    def end(self, node: str, now_ns: int) -> None:
        """End a node's exclusion; its strikes stay.

        Raises:
            RunDirectoryError: the name cannot be a node's.
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

    def _note(self, path: str, text: str) -> None:
        self._problems.append(f"{path}: {text}")

    def _refreshed(self) -> bool:
        """Forget the problems before; tell whether there is anything to read."""
        self._problems = []
        there = self._refresh(self.directory)
        if there:
            self._refresh(os.path.join(self.directory, STRIKES_FOLDER))
        return there

    def _refresh(self, directory: str) -> bool:
        try:
            # NFS hides a file for half a minute that was looked for before it was there; this makes it visible.
            self._fs.refresh(directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._note(directory, _words(error))
            return False
        return True

    def _struck(self) -> list[str]:
        """Return the nodes that have a file of strikes."""
        directory = os.path.join(self.directory, STRIKES_FOLDER)
        try:
            return self._nodes(directory, self._fs.listdir(directory)) if self._refresh(directory) else []
        except OSError as error:
            self._note(directory, _words(error))
            return []

    def _nodes(self, directory: str, names: list[str]) -> list[str]:
        # A dot begins what is being written, and what editors leave behind.
        found = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]
        if len(found) > MOST:
            self._note(directory, f"{len(found)} files, expected at most {MOST}; only the first are read")
        return sorted(found)[:MOST]

    def _strikes(self, node: str) -> tuple[Strike, ...]:
        so = f"{node} counts as one without strikes"
        return self._file(self._strikes_path(node), node, decode_strikes, so) or ()

    def _exclusion(self, node: str) -> Exclusion | None:
        """Return what the node's own file says; only files of earlier versions hold strikes too."""
        path = self._path(node)
        known = self._file(path, node, decode_exclusion, f"{node} counts as allowed")
        if known is not None and known.node not in (node, ""):
            self._note(path, f"it names node {shown(known.node)}; the file's name counts: {node}")
        return known and replace(known, node=node)

    def _file(self, path: str, node: str, decode: Callable[[bytes, str], T], so: str) -> T | None:
        try:
            check_name("node name", node)
            return decode(self._fs.read(path, _LIMIT), path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._note(path, f"{_words(error)}; {so}")
        except RunDirectoryError:
            self._note(ascii(path), "its name is no node's; remove it")
        except BadFile as error:
            self._problems.append(f"{error}; {so}")
        return None

    def _remove(self, path: str) -> bool:
        try:
            # As for writing: what others keep in a directory of theirs says nothing of this user's nodes.
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
        # First this user's own: what is made above what is asked for may be for others, too.
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


def _words(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed"
    return error.strerror or str(error)
