"""A damaged file is described in the same text by `ftslurm status` and `ftslurm report`."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from sample_runs.builder import RunBuilder

from ftslurm.report.gathering import gather
from ftslurm.sharedfs.bounded_read import Malformed, read_file
from ftslurm.status.snapshot import read

NODE = {"schema": "ftslurm/node", "version": 1}
CONTENTS = {
    "empty": b"",
    "zeros": b"\0" * 64,
    "torn": b'{"schema": "ftslurm/no',
    "not text": b"\xff\xfe{}",
    "nested": b"[" * 100_000,
    "another schema": b'{"schema": "ftslurm/state", "version": 1}',
    "no object": b"[]",
    "newer": json.dumps({**NODE, "version": 9}).encode(),
    "a wrong field": json.dumps({**NODE, "node": 5}).encode(),
    "no fields": json.dumps(NODE).encode(),
}
STATES = {
    "another token": b'{"schema": "ftslurm/cell", "version": 1, "token": 1, "nonce": "n", "value": {}}',
    "retired": b'{"schema": "ftslurm/cell", "version": 1, "token": 999, "nonce": "n", "retired": true, "value": null}',
    "no state": b'{"schema": "ftslurm/cell", "version": 1, "token": 999, "nonce": "n", "value": {}}',
}


def problems(run: RunBuilder, directory: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    shot = read(directory, wall_ns=lambda: run.now_ns, monotonic_ns=lambda: 0)
    report = gather(directory, now_ns=run.now_ns)
    return {(each.file, each.reason) for each in shot.problems}, {(each.file, each.reason) for each in report.problems}


@pytest.mark.parametrize("kind", [*CONTENTS, "a link", "a pipe", "another node's"])
def test_status_and_report_describe_a_damaged_node_record_alike(tmp_path: Path, kind: str) -> None:
    run = RunBuilder(tmp_path).round().fail(1, ValueError("x")).stop().close("failed", "x")
    directory = run.write()
    path = directory / "nodes/n2.json"
    path.unlink()
    if kind == "a link":
        path.symlink_to(directory / "nodes/n1.json")
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "another node's":
        path.write_bytes((directory / "nodes/n1.json").read_bytes())
    else:
        path.write_bytes(CONTENTS[kind])
    status, report = problems(run, directory)
    assert status == report
    assert all(file == "nodes/n2.json" and reason for file, reason in status)
    assert len(status) == (kind not in ("a link", "a pipe"))


@pytest.mark.parametrize("kind", STATES)
def test_status_and_report_describe_a_damaged_generation_alike(tmp_path: Path, kind: str) -> None:
    run = RunBuilder(tmp_path).round().fail(1, ValueError("x")).stop().close("failed", "x")
    directory = run.write()
    (directory / "state/000000000999.json").write_bytes(STATES[kind])
    status, report = problems(run, directory)
    assert status == report
    assert len(status) == 1


def test_a_limit_of_the_users_own_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Malformed, match=r"cannot be opened: the limit of open files is reached \(ulimit -n\)"):
        read_file(tmp_path / "x", 10, frozenset((os.geteuid(),)))
