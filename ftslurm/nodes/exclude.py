"""The nodes that are set aside: one small JSON file for each, `<shared directory>/excluded/<node>.json`.

A file per node needs no lock: whoever sets another node aside writes another file, and `rm` allows a node again. Two
that write about the same node at the same moment are one after the other: the later one's file stands, whole. Files
may be edited by hand, so nothing in them is believed unseen, and none of them can break a run: what cannot be read is
told in `problems`, and its node counts as allowed.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ftslurm.sharedfs.filesystem import FileSystem
from ftslurm.sharedfs.publish import BadFile, decode, publish
from ftslurm.sharedfs.rundir import RunDirectoryError, check_name

SCHEMA, VERSION = "ftslurm/excluded", 1
FOLDER = "excluded"
KEPT_STRIKES = 16
"""Strikes that a file keeps, the newest; years of them help nobody."""

LEMON_STRIKES = 2
LEMON_WINDOW_NS = 7 * 24 * 3600 * 1_000_000_000
_SUFFIX = ".json"
_LIMIT = 1 << 20
_TEXT = 400
_SHOWN = 60


@dataclass(frozen=True)
class Strike:
    """A failure that began on the node.

    Attributes:
        time_ns: when, nanoseconds since the epoch.
        run: the run's id.
        reason: what happened, one line.
    """

    time_ns: int
    run: str
    reason: str


@dataclass(frozen=True)
class Exclusion:
    """What one file says.

    Attributes:
        reason: why the node is set aside, one line.
        by: who did it: a user's name, or "run <id>".
        since_ns: since when, nanoseconds since the epoch.
        until_ns: when it ends by itself; None: when somebody allows the node again. Not after `since_ns`: the node was
            never set aside, the file holds strikes alone.
        strikes: oldest first.
    """

    node: str
    reason: str
    by: str
    since_ns: int
    until_ns: int | None
    strikes: tuple[Strike, ...] = ()

    def holds(self, now_ns: int) -> bool:
        """Tell whether the node is set aside at that time."""
        return self.until_ns is None or now_ns < self.until_ns


def folder(run_dir: str, chosen: str | None = None) -> str:
    """Return the directory of these files, absolute: as chosen, else beside the run directories."""
    return os.path.abspath(chosen) if chosen else os.path.join(os.path.dirname(os.path.abspath(run_dir)), FOLDER)


def strikes_within(known: Exclusion | None, now_ns: int, window_ns: int = LEMON_WINDOW_NS) -> list[Strike]:
    """Return the strikes of the last `window_ns` nanoseconds, oldest first."""
    return [strike for strike in known.strikes if now_ns - strike.time_ns <= window_ns] if known else []


def lemon(known: Exclusion | None, now_ns: int, window_ns: int = LEMON_WINDOW_NS) -> str | None:
    """Return why the strikes are reason enough to set the node aside, None if they are not.

    Whoever was set aside before and comes back needs only one more strike: the old ones still count.
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
        directory: absolute; it need not be there, and is made when a node is set aside.

    Attributes:
        problems: a line for each file that the last `read` or `of` could not understand, or not fully.
        unreadable: why the last `read` could not even list the directory; None: it could, or there is none.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.directory = directory
        self.problems: tuple[str, ...] = ()
        self.unreadable: str | None = None

    def read(self) -> dict[str, Exclusion]:
        """Return what is known, by node, in the order of names; also what has expired, and mere strikes.

        It never raises: see `problems` and `unreadable`.
        """
        self.problems, self.unreadable = (), None
        try:
            self._fs.refresh(self.directory)
            names = self._fs.listdir(self.directory)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.unreadable = f"{self.directory}: {_words(error)}"
            return {}
        # A dot begins what is being written, and what editors leave behind.
        nodes = sorted(n.removesuffix(_SUFFIX) for n in names if n.endswith(_SUFFIX) and not n.startswith("."))
        found = {node: self._file(node) for node in nodes}
        return {node: known for node, known in found.items() if known is not None}

    def known(self, node: str) -> Exclusion | None:
        """Return what is known of one node: a file that cannot be read is told in `problems`, and is None."""
        self.problems = ()
        try:
            # NFS hides a file for half a minute that was looked for before it was there; this makes it visible.
            self._fs.refresh(self.directory)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._note(self.directory, _words(error))
            return None
        return self._file(node)

    def of(self, node: str, now_ns: int) -> Exclusion | None:
        """Return the node's exclusion if it holds now; it never raises, see `known`."""
        known = self.known(node)
        return known if known is not None and known.holds(now_ns) else None

    def exclude(self, node: str, reason: str, by: str, until_ns: int | None, now_ns: int) -> Exclusion:
        """Set a node aside, or do so anew: this reason and end replace those before; strikes stay.

        Raises:
            RunDirectoryError: the name cannot be a node's.
            OSError: it could not be written.
        """
        check_name("node name", node)
        known = self.known(node)
        since_ns = known.since_ns if known is not None and known.holds(now_ns) else now_ns
        strikes = known.strikes if known is not None else ()
        return self._write(Exclusion(node, reason, by, since_ns, until_ns, strikes))

    def strike(self, node: str, run: str, reason: str, now_ns: int) -> Exclusion:
        """Note that a failure began on the node; whether it is set aside stays as it is. `lemon` judges the result.

        The second call with the same run, reason and time changes nothing.

        Raises:
            RunDirectoryError: the name cannot be a node's.
            OSError: it could not be written.
        """
        check_name("node name", node)
        known = self.known(node) or Exclusion(node, "", f"run {run}", now_ns, now_ns)
        strike = Strike(now_ns, as_line(run), as_line(reason))
        if strike in known.strikes:
            return known
        return self._write(replace(known, strikes=(*known.strikes, strike)[-KEPT_STRIKES:]))

    def allow(self, node: str) -> bool:
        """Allow a node again and forget its strikes; False: there was nothing about it.

        Raises:
            RunDirectoryError: the name cannot be a node's.
            OSError: it could not be removed.
        """
        check_name("node name", node)
        try:
            self._fs.refresh(self.directory)
            self._fs.unlink(self._path(node))
        except FileNotFoundError:
            return False
        return True

    def end(self, node: str, now_ns: int) -> None:
        """End a node's exclusion; its strikes stay.

        Raises:
            RunDirectoryError: the name cannot be a node's.
            OSError: it could not be written, or removed.
        """
        known = self.known(node)
        if known is not None and known.strikes:
            self._write(replace(known, until_ns=now_ns))
        elif known is not None:
            self.allow(node)

    def _path(self, node: str) -> str:
        return os.path.join(self.directory, node + _SUFFIX)

    def _note(self, path: str, text: str) -> None:
        self.problems = (*self.problems, f"{path}: {text}")

    def _file(self, node: str) -> Exclusion | None:
        path = self._path(node)
        try:
            check_name("node name", node)
            known = _decode(node, self._fs.read(path, _LIMIT), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note(path, f"{_words(error)}; {node} counts as allowed")
        except RunDirectoryError:
            self._note(ascii(path), "its name is no node's; remove it")
        except BadFile as error:
            self.problems = (*self.problems, f"{error}; {node} counts as allowed")
        else:
            if known[1] != node:
                self._note(path, f"it names node {ascii(known[1])[:_SHOWN]}; the file's name counts: {node}")
            return known[0]
        return None

    def _write(self, known: Exclusion) -> Exclusion:
        known = replace(known, reason=as_line(known.reason), by=as_line(known.by))
        try:
            publish(self._fs, self._path(known.node), _encode(known))
        except FileNotFoundError:
            self._fs.makedirs(self.directory)
            publish(self._fs, self._path(known.node), _encode(known))
        return known


def _encode(known: Exclusion) -> bytes:
    fields = {
        "schema": SCHEMA,
        "version": VERSION,
        "node": known.node,
        "reason": known.reason,
        "by": known.by,
        "since_ns": known.since_ns,
        "until_ns": known.until_ns,
        "strikes": [{"time_ns": s.time_ns, "run": s.run, "reason": s.reason} for s in known.strikes],
    }
    # Indented: people open these.
    return json.dumps(fields, indent=2).encode("ascii") + b"\n"


def _decode(node: str, data: bytes, path: str) -> tuple[Exclusion, str]:
    """Return what the file says and the node that it names.

    What may well be left out by hand is: a reason, an author, strikes; no end is until allowed.
    """
    fields = decode(data, path, SCHEMA, VERSION)
    strikes = fields.get("strikes", [])
    if not isinstance(strikes, list) or not all(isinstance(strike, dict) for strike in strikes):
        raise BadFile(f"{path}: its strikes are {_found(strikes)}, expected a list of objects")
    until = fields.get("until_ns")
    since_ns, until_ns = _time(fields, "since_ns", path), None if until is None else _time(fields, "until_ns", path)
    strikes_alone = until_ns is not None and until_ns <= since_ns
    known = Exclusion(
        node=node,
        reason=_text(fields, "reason", path) or ("" if strikes_alone else "no reason given"),
        by=_text(fields, "by", path),
        since_ns=since_ns,
        until_ns=until_ns,
        strikes=tuple(
            Strike(_time(strike, "time_ns", path), _text(strike, "run", path), _text(strike, "reason", path))
            for strike in strikes[-KEPT_STRIKES:]
        ),
    )
    return known, _text(fields, "node", path) or node


def _text(fields: Mapping[str, Any], name: str, path: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise BadFile(f"{path}: its {name} is {_found(value)}, expected a text")
    return as_line(value)


def _time(fields: Mapping[str, Any], name: str, path: str) -> int:
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise BadFile(f"{path}: its {name} is {_found(value)}, expected nanoseconds since the epoch")
    return value


def as_line(text: str) -> str:
    """Return a text as these files keep it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_TEXT]


def _found(value: object) -> str:
    return ascii(value)[:_SHOWN]


def _words(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, which is not followed"
    return error.strerror or str(error)
