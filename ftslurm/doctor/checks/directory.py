"""One node's view of the directory: existence, mount, free space, permission to write, and the owner of new files.

The path is probed and judged as by the storage checks of `ftslurm health`, as a run directory: what a run cannot work
around fails.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping

from ftslurm.dataclasses import replace
from ftslurm.health.barrier import Session, SessionPathTaken, enter_session
from ftslurm.health.check import CheckedPath
from ftslurm.health.checks.storage_paths import probe_paths
from ftslurm.health.multi_node import CALL_LIMIT_S
from ftslurm.health.path_judge import RUN_DIRECTORY, judge_path
from ftslurm.health.probe import ProbeSpec, file_name
from ftslurm.health.timed_filesystem import Outcome, TimedFileSystem, run_all
from ftslurm.health.verdict import Finding, Json, NodeFinding, node_finding
from ftslurm.kernel import check_proc
from ftslurm.records.health import FAIL, NOTE, WARN
from ftslurm.text import names

NAME = "directory"
WRITTEN = 4096
LOCAL_TYPES = frozenset(["btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"])
LONG_CACHE_S = 60.0


def fetch(directory: str, session: Session) -> tuple[Json, Outcome]:
    """Probe the directory, and create the session's directory and for a moment one file in it.

    Returns:
        The facts: those of `probe.probe_all`, "mount", "host"; "machine": boot and network name space, equal on
        "nodes" that are one machine; "no_proc": what is wrong with /proc, without which no run can be supervised;
        "owner", "mode"; "made_uid": owner of what this process creates there; "taken": what is in the place of the
        session's directory, and its owner. And the outcome of the creating process.
    """
    spec = ProbeSpec(directory, file_name(session.node, "doctor"), write=WRITTEN, durable=True)
    (facts,) = probe_paths([CheckedPath(directory, RUN_DIRECTORY)], CALL_LIMIT_S, lambda place, index: spec)
    facts.update(host=socket.gethostname(), machine=_machine(), no_proc=_proc_problem())
    if not is_usable(facts):
        return facts, Outcome()
    (outcome,) = run_all([lambda fs: _create(fs, directory, session.root)], 3 * CALL_LIMIT_S, CALL_LIMIT_S)
    return {**facts, **(outcome.value or {})}, outcome


def is_usable(facts: Json) -> bool:
    """Return whether the nodes can join there."""
    return facts["kind"] == "directory" and facts["took_s"] is not None and not (facts["error"] or facts.get("taken"))


def _create(fs: TimedFileSystem, directory: str, session_root: str) -> Json:
    status = fs.during(f"stat {directory}", lambda: os.stat(directory))
    facts: Json = {"owner": status.st_uid, "mode": stat.S_IMODE(status.st_mode)}
    path = os.path.join(session_root, f"made.{socket.gethostname()}.{os.getpid()}")
    try:
        try:
            fs.makedirs(session_root)
            fs.create(path, b"", durable=False)
        except (FileExistsError, PermissionError):
            enter_session(fs, session_root)
            raise
        try:
            facts["made_uid"] = fs.during(f"stat {path}", lambda: os.stat(path)).st_uid
        finally:
            fs.unlink(path)
        if facts["made_uid"] == os.geteuid():
            enter_session(fs, session_root)
    except SessionPathTaken as error:
        facts["taken"] = str(error)
    return facts


def _proc_problem() -> str | None:
    try:
        check_proc()
    except OSError as error:
        return error.strerror
    return None


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()


def judge(by_node: Mapping[str, Json], alone: bool) -> list[NodeFinding]:
    """Judge each node's view, and whether all views are of the same directory.

    Args:
        alone: this is the only node.
    """
    found = [
        NodeFinding(NAME, (node,), finding)
        for node, facts in by_node.items()
        for finding in (*_path(facts), *_owner(facts), *_mount(facts, alone))
    ]
    return found + _together(by_node)


def _path(facts: Json) -> list[Finding]:
    """Judge the path as a run directory; whatever keeps a run from writing there fails."""
    unusable = facts["took_s"] is None or facts["error"] is not None
    found = judge_path(CheckedPath(facts["path"], RUN_DIRECTORY), facts, None, busy=False, gpus=False)
    return [replace(one, subject=facts["path"], status=FAIL if unusable else one.status) for one in found]


def _owner(facts: Json) -> list[Finding]:
    found = []
    if facts["no_proc"] is not None:
        text = f"{facts['no_proc']}: ftslurm run refuses to start there"
        found.append(Finding(FAIL, "/proc", text, "mount it in the container: mount -t proc proc /proc"))
    if facts.get("taken") is not None:
        advice = "have that user or root remove it, or name a directory in which others can make nothing"
        found.append(Finding(FAIL, "", facts["taken"], advice))
    if facts.get("made_uid", facts["uid"]) != facts["uid"]:
        text = f"files made by uid {facts['uid']} belong to uid {facts['made_uid']} there"
        advice = "the server maps users (root_squash, id mapping): run as a user that it knows; ftslurm refuses files"
        found.append(Finding(FAIL, "", text, f"{advice} of others"))
    mode = facts.get("mode", 0)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        text = f"others may remove and rename files in {facts['path']} (mode {mode:04o}, no sticky bit)"
        found.append(Finding(WARN, "", text, f"chmod go-w {facts['path']}, or chmod +t if all users need it"))
    return found


def _mount(facts: Json, alone: bool) -> list[Finding]:
    mount = facts["mount"]
    options = mount["options"].split(",")
    values = dict(option.partition("=")[::2] for option in options)
    found = []
    if alone and mount["type"] in LOCAL_TYPES:
        text = f"{mount['type']} on {mount['point']} is this machine's own: other nodes do not see it"
        found.append(Finding(NOTE, "", text, "a run on several nodes needs a shared filesystem"))
    if not mount["type"].startswith("nfs"):
        return found
    if {"soft", "softerr"} & set(options):
        text = f"mounted with {'soft' if 'soft' in options else 'softerr'}: calls fail while the server is away"
        found.append(Finding(WARN, "", text, "mount it hard: a stalled server then costs time, not the run"))
    if "nolock" in options or values.get("local_lock") in ("all", "flock"):
        text = "mounted without locks between nodes (nolock or local_lock)"
        found.append(Finding(NOTE, "", text, "ftslurm needs none; your own programs may"))
    caches = [values[name] for name in ("acdirmax", "acregmax", "actimeo") if values.get(name, "").isdigit()]
    if any(float(seconds) > LONG_CACHE_S for seconds in caches):
        text = f"attributes are cached for up to {max(map(int, caches))} s"
        found.append(Finding(WARN, "", text, "mount it with a smaller actimeo (the default is 60 s at most)"))
    return found


def _together(by_node: Mapping[str, Json]) -> list[NodeFinding]:
    found = []
    uids = _nodes_by({node: facts["uid"] for node, facts in by_node.items()})
    if len(uids) > 1:
        text = "the user has several uids: " + "; ".join(f"{uid} on {names(nodes, 3)}" for uid, nodes in uids.items())
        found.append(node_finding(FAIL, NAME, (), text, "give the user one uid on all nodes"))
    types = _nodes_by({node: facts["mount"]["type"] for node, facts in by_node.items() if facts["mount"]["type"]})
    if len(types) > 1:
        text = "mounted differently: " + "; ".join(f"{kind} on {names(nodes, 3)}" for kind, nodes in types.items())
        found.append(node_finding(WARN, NAME, (), text, "find out whether that is meant"))
    return found


def _nodes_by(values: Mapping[str, object]) -> dict[object, list[str]]:
    kinds = sorted(set(values.values()), key=str)
    return {kind: [node for node, value in values.items() if value == kind] for kind in kinds}
