"""`ftslurm nodes list|exclude|allow|pass-on`: the command line of `exclude.py` and `pass_on.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ftslurm.terminal import UsageError, print_error

if TYPE_CHECKING:
    import argparse

    from ftslurm.nodes.exclude import Exclusions

DONE, FAILED, USAGE = 0, 1, 2
SLURM_S = 10.0
"""Time-out of each Slurm command, in seconds."""

NOTES = """\
An excluded node takes part in a round only if there are not enough others. To keep Slurm from allocating it to a new
job:
  sbatch --exclude="$(ftslurm nodes list --hostlist)" job.sbatch
which also works with an empty list, and overrides an --exclude in the script. For a pending job:
  ftslurm nodes pass-on JOB
which ftsrun does automatically when its job is requeued while it runs.

Each exclusion is a file of its own, DIR/excluded-UID/NODE.json, which may be read, edited and removed (rm allows the
node again). Failures of the node's hardware are in DIR/excluded-UID/strikes/NODE.json; `allow` removes both.

Exit codes: 0 done, 1 the files cannot be read or written, or Slurm refused, 2 wrong usage.
"""


def main(argv: Sequence[str], now_ns: Callable[[], int] = time.time_ns) -> int:
    """Run the command; return the exit code: 0 done, 1 the files cannot be read or written, 2 wrong usage."""
    from ftslurm.host_lock import CommandLock, LockHeld
    from ftslurm.nodes.exclude import Exclusions
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.sharedfs.filesystem import PosixFileSystem
    from ftslurm.sharedfs.ownership import ForeignFile

    try:
        options = _parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else USAGE
    directory = directory_of(options.shared_dir, options.exclude_dir, os.environ, os.getcwd())
    files = Exclusions(PosixFileSystem(owner=os.geteuid()), directory)
    try:
        if options.action == "list":
            return _list(options, files, now_ns())
        if options.action == "pass-on":
            return _pass_on(options.jobs, files, now_ns())
        nodes = names(options.nodes)
        # A file is read, changed and written: of two commands at once, one change would be lost.
        with AnswerLimit("nodes", directory), CommandLock("nodes", directory):
            return _exclude(options, files, nodes, now_ns()) if options.action == "exclude" else _allow(files, nodes)
    except UsageError as error:
        _print_message(str(error))
        return USAGE
    except LockHeld as holder:
        _print_message(f"{directory}: {holder} is changing it; nothing was changed; try again when that has ended")
        return FAILED
    except ForeignFile as error:
        _print_message(
            f"{error.filename}: {error.strerror}; nothing was changed; choose your own directory with --exclude-dir"
        )
        return FAILED
    except OSError as error:
        _print_message(f"{error.filename or directory}: {error.strerror or error}")
        return FAILED


def directory_of(shared_dir: str | None, exclude_dir: str | None, environ: Mapping[str, str], cwd: str) -> str:
    """Return the directory of the files: as chosen, else this user's in the directory of `ftslurm run`'s runs.

    Args:
        shared_dir, exclude_dir: the options, if given; else FTSLURM_SHARED_DIR and FTSLURM_EXCLUDE_DIR apply.
        environ: the environment.
        cwd: absolute.
    """
    from ftslurm.nodes.exclude import folder_in

    base = os.path.join(cwd, environ.get("SLURM_SUBMIT_DIR") or "")
    chosen = exclude_dir or (None if shared_dir else environ.get("FTSLURM_EXCLUDE_DIR"))
    if chosen:
        return os.path.normpath(os.path.join(base, chosen))
    shared = shared_dir or environ.get("FTSLURM_SHARED_DIR") or "ftslurm-runs"
    return os.path.normpath(folder_in(os.path.join(base, shared)))


def names(arguments: Iterable[str]) -> list[str]:
    """Return the nodes of names and Slurm hostlists such as n[1-3,7], each once.

    Raises:
        UsageError: an argument is neither.
    """
    from ftslurm.sharedfs.rundir import RunDirectoryError, check_name
    from ftslurm.slurm.nodelist import NodeListError, expand

    try:
        found = [check_name("node name", name) for argument in arguments for name in expand(argument)]
    except (NodeListError, RunDirectoryError) as error:
        raise UsageError(str(error)) from None
    if not found:
        raise UsageError("expected a node name or a list such as n[1-3], found an empty text")
    return list(dict.fromkeys(found))


def _list(options: argparse.Namespace, files: Exclusions, now_ns: int) -> int:
    from ftslurm.nodes import table
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.slurm.nodelist import compress
    from ftslurm.terminal import show

    with AnswerLimit("nodes", files.directory):
        known = files.read()
    for problem in files.problems:
        _print_message(problem)
    if files.unreadable is not None:
        _print_message(f"cannot list {files.unreadable}")
        return FAILED
    if options.hostlist:
        holding, invalid = table.names(known.values(), now_ns)
        if invalid:
            _print_message(f"omitted, not valid as a Slurm node name: {', '.join(invalid)}")
        unknown = _unknown_to_slurm(holding)
        if unknown:
            # sbatch rejects the whole job for one of them.
            _print_message(f"omitted, unknown to Slurm: {', '.join(unknown)}")
        listed = compress(node for node in holding if node not in unknown)
        show(f"{listed}\n" if listed else "")
    elif options.json:
        show(table.to_json(known, files.directory, files.problems, now_ns))
    else:
        show(table.render(known, files.directory, now_ns))
    return DONE


def _exclude(options: argparse.Namespace, files: Exclusions, nodes: Sequence[str], now_ns: int) -> int:
    from ftslurm.sharedfs.ownership import user_name
    from ftslurm.terminal import show
    from ftslurm.text import duration

    until_ns = None if options.time is None else now_ns + options.time
    for node in nodes:
        files.exclude(node, options.reason or "excluded manually", user_name(), until_ns, now_ns)
        until = "until it is allowed again" if options.time is None else f"for {duration(options.time / 1e9)}"
        show(f"{node}: excluded {until}\n")
    return DONE


def _allow(files: Exclusions, nodes: Sequence[str]) -> int:
    from ftslurm.terminal import show
    from ftslurm.text import safe

    nothing = f"no exclusion and no strikes in {safe(files.directory)}"
    for node in nodes:
        show(f"{node}: {'allowed again' if files.allow(node) else nothing}\n")
    return DONE


def _unknown_to_slurm(nodes: Sequence[str]) -> list[str]:
    """Return the nodes that Slurm does not know; none if Slurm does not answer."""
    from ftslurm.slurm.commands import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    if not nodes:
        return []
    try:
        known = CommandSlurm(timeout_s=SLURM_S).node_states(nodes)
    except SlurmError:
        return []
    return [node for node in nodes if node not in known]


def _pass_on(jobs: Sequence[str], files: Exclusions, now_ns: int) -> int:
    from ftslurm.nodes import table
    from ftslurm.nodes.pass_on import pass_on
    from ftslurm.sharedfs.answer_limit import AnswerLimit
    from ftslurm.slurm.commands import CommandSlurm
    from ftslurm.slurm.errors import SlurmError

    with AnswerLimit("nodes", files.directory):
        holding, _ = table.names(files.read().values(), now_ns)
    code = DONE
    for job in jobs:
        try:
            note = pass_on(CommandSlurm(timeout_s=SLURM_S), job, holding)
        except ValueError as error:
            raise UsageError(str(error)) from None
        except SlurmError as error:
            note, code = str(error), FAILED
        if note:
            _print_message(note)
    return code


def _print_message(text: str) -> None:

    print_error(f"ftslurm nodes: {text}")


def _parser() -> argparse.ArgumentParser:
    from ftslurm.command_line import CommandParser, add_shared_dir, duration_ns

    common = CommandParser(add_help=False)
    add_shared_dir(common)
    common.add_argument(
        "--exclude-dir",
        metavar="DIR",
        help="where the exclusions are (default: $FTSLURM_EXCLUDE_DIR, excluded-UID/ in the shared directory)",
    )
    parser = CommandParser(
        prog="ftslurm nodes",
        description="List excluded nodes, exclude nodes, or allow them again.",
        notes=NOTES,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|exclude|allow|pass-on")
    listing = actions.add_parser("list", parents=[common], help="list excluded nodes with the reasons")
    form = listing.add_mutually_exclusive_group()
    form.add_argument(
        "--hostlist",
        action="store_true",
        help="print the nodes excluded now as Slurm's hostlist; nothing if there are none",
    )
    form.add_argument("--json", action="store_true", help="print all exclusions and strikes as JSON")
    exclude = actions.add_parser("exclude", parents=[common], help="exclude nodes")
    exclude.add_argument("nodes", nargs="+", metavar="NODE", help="a name, or a Slurm hostlist: n[1-3,7]")
    exclude.add_argument("--reason", metavar="TEXT", help="reason, one line")
    exclude.add_argument(
        "--for", dest="time", type=duration_ns, metavar="TIME", help="90m, 24h, 7d; default: until it is allowed again"
    )
    allow = actions.add_parser("allow", parents=[common], help="allow nodes again, remove their strikes")
    allow.add_argument("nodes", nargs="+", metavar="NODE", help="a name, or a Slurm hostlist: n[1-3,7]")
    pass_on = actions.add_parser("pass-on", parents=[common], help="exclude the excluded nodes from a pending job")
    pass_on.add_argument("jobs", nargs="+", metavar="JOB", help="a job that is pending or being requeued: 123, 123_4")
    return parser
