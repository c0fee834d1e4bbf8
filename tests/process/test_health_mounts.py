"""Real filesystems that are full, read-only, broken, gone or hanging: each is found, and nothing is left behind."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_hanging_directory
from test_hanging_directory import Directory, faulty_mount

from ftslurm.health.check import CheckedPath, Context
from ftslurm.health.checks import storage_paths, storage_round_trip
from ftslurm.health.result import RunResult
from ftslurm.health.run import run
from ftslurm.health.verdict import Verdict
from ftslurm.records.health import FAIL, OK, WARN

EXT4_IOC_SHUTDOWN = 0x8004587D
Q_SETQUOTA_USER = 0x800008 << 8
Mount = Callable[..., Path]

hangs = test_hanging_directory.shared


@pytest.fixture(name="shared")
def _shared(hangs: Directory) -> Directory:
    # It must have answered once, or the kernel takes it for one that never could.
    os.listdir(hangs.path)
    return hangs


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount something small."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mounted: list[Path] = []

    def make(*options: str, source: str = "small", name: str = "mounted") -> Path:
        point = tmp_path / name
        point.mkdir()
        tried = subprocess.run(["mount", *options, source, str(point)], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"cannot mount here: {tried.stderr.strip().splitlines()[0]}")
        mounted.append(point)
        return point

    yield make
    for point in mounted:
        subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.fixture
def disk(mount: Mount, tmp_path: Path) -> Path:
    """An ext4 of its own on a loop device."""
    return ext4(mount, tmp_path)


def ext4(mount: Mount, tmp_path: Path, *options: str) -> Path:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", *options, str(image)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("mkfs.ext4 is not here")
    return mount("-o", "loop", source=str(image))


def looks(*places: CheckedPath, check: Any = storage_paths, busy: bool = False, before: Any = None) -> RunResult:
    # /tmp and /dev/shm are this machine's own, and other tests' too.
    context = Context("n1", paths=places, busy=busy)
    return run([check.CHECK], context, {} if before is None else {check.CHECK.name: before})


def look(path: Path | str, what: str = "checkpoints", **more: Any) -> Verdict:
    """Return the verdict on one path."""
    (verdict,) = looks(CheckedPath(str(path), what), **more).verdicts
    named = tuple(one for one in verdict.findings if one.subject == f"{path} ({what})")
    status = named[0].status if named else OK
    return Verdict(verdict.check, status, verdict.summary, named, verdict.took_s, verdict.facts)


def only(verdict: Verdict) -> str:
    (finding,) = verdict.findings
    return finding.text


def left_in(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if "ftslurm" in name]


def test_a_full_directory_is_found(mount: Mount) -> None:
    point = mount("-t", "tmpfs", "-o", "size=1m")
    assert look(point).status == OK
    (point / "fill").write_bytes(b"x" * (1 << 20))
    verdict = look(point)
    assert verdict.status == FAIL
    assert only(verdict).startswith("it is full (0 bytes and "), verdict
    assert f"write failed (tmpfs from small, mounted at {point})" in only(verdict)
    assert os.listdir(point) == ["fill"]


def test_a_directory_that_is_full_while_ranks_run_is_reported_without_writing(mount: Mount) -> None:
    point = mount("-t", "tmpfs", "-o", "size=1m")
    (point / "fill").write_bytes(b"x" * (1 << 20))
    changed = point.stat().st_mtime_ns
    verdict = look(point, busy=True)
    assert verdict.status == WARN and only(verdict).startswith("only 0 bytes of 1 MiB are free (tmpfs from small")
    assert point.stat().st_mtime_ns == changed


def test_a_directory_out_of_inodes_is_found(mount: Mount) -> None:
    point = mount("-t", "tmpfs", "-o", "nr_inodes=30")
    for n in range(29):
        (point / str(n)).touch()
    verdict = look(point)
    assert verdict.status == FAIL
    assert only(verdict).startswith("no inode is free: create failed (tmpfs from small")
    assert left_in(point) == []


def test_few_inodes_are_a_warning(mount: Mount) -> None:
    point = mount("-t", "tmpfs", "-o", "nr_inodes=2000")
    for n in range(1950):
        (point / str(n)).touch()
    verdict = look(point)
    assert verdict.status == WARN and re.match(r"only \d\d of 2000 inodes are free \(tmpfs", only(verdict))


@pytest.mark.parametrize("busy", [False, True])
def test_a_read_only_remount_is_found(mount: Mount, busy: bool) -> None:
    point = mount("-t", "tmpfs")
    subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)
    verdict = look(point, busy=busy)
    assert verdict.status == FAIL
    assert only(verdict) == f"it is mounted read-only (tmpfs from small, mounted at {point})"
    assert look(point, "data", busy=busy).status == OK


def test_a_disk_that_the_kernel_made_read_only_is_found(mount: Mount, tmp_path: Path) -> None:
    disk = ext4(mount, tmp_path, "-e", "remount-ro")
    assert look(disk).status == OK
    device = next(line.split(" - ")[1].split()[1] for line in _mountinfo() if f" {disk} " in line)
    trigger = Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this kernel has no trigger_fs_error")
    trigger.write_text("1")
    verdict = look(disk)
    assert verdict.status == FAIL
    made, mounted = "the kernel has made its filesystem read-only, as it does after errors", "it is mounted read-only"
    assert only(verdict) in {f"{reason} (ext4 from {device}, mounted at {disk})" for reason in (made, mounted)}


def _mountinfo() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


@pytest.mark.parametrize("check", [storage_paths, storage_round_trip])
def test_a_disk_that_is_shut_down_is_found(disk: Path, check: Any) -> None:
    fd = os.open(disk, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", 2))
    finally:
        os.close(fd)
    verdict = look(disk, check=check)
    assert verdict.status == FAIL
    assert "input/output error: " in only(verdict) or "its filesystem was shut down" in only(verdict)


def test_a_used_up_quota_is_found(mount: Mount, tmp_path: Path) -> None:
    disk = ext4(mount, tmp_path, "-O", "quota", "-E", "quotatype=usrquota")
    device = next(line.split(" - ")[1].split()[1] for line in _mountinfo() if f" {disk} " in line)
    limits = struct.pack("8QI4x", 8, 8, 0, 0, 0, 0, 0, 0, 1)
    quotactl = ctypes.CDLL(None, use_errno=True).quotactl
    if quotactl(Q_SETQUOTA_USER, device.encode(), 65534, ctypes.create_string_buffer(limits)):
        pytest.skip(f"no quotas here: {os.strerror(ctypes.get_errno())}")
    disk.chmod(0o777)
    subprocess.run(["setpriv", "--reuid=65534", "sh", "-c", f"head -c 8192 /dev/zero > {disk}/fill"], check=True)
    status, text = as_unprivileged_user(lambda: look(disk))
    assert status == WARN and text.startswith("the disk quota is used up (quota -s): ")


def test_a_round_trip_of_a_good_disk_has_its_times(disk: Path) -> None:
    verdict = look(disk, check=storage_round_trip)
    assert verdict.status == OK and f"{disk} (checkpoints) " in verdict.summary
    assert left_in(disk) == []


def test_a_hanging_path_does_not_hide_the_others(shared: Directory, mount: Mount, tmp_path: Path) -> None:
    full = mount("-t", "tmpfs", "-o", "size=64k")
    (full / "fill").write_bytes(b"x" * 65536)
    (shared.path / "run").mkdir()
    shared.hang()
    began = time.monotonic()
    run_dir = f"{shared.path}/run"
    places = (
        CheckedPath(run_dir, "run directory"),
        CheckedPath(str(full), "checkpoints"),
        CheckedPath(str(tmp_path), "data"),
    )
    looked = looks(*places)
    (verdict,) = looked.verdicts
    by_subject = {finding.subject: finding for finding in verdict.findings}
    hung = by_subject[f"{run_dir} (run directory)"]
    assert hung.status == FAIL
    assert hung.text.startswith("no answer within 3 s: its filesystem hangs (fuse.faulty from faulty; in ")
    assert hung.text.endswith((f" of {shared.path})", f" of {run_dir})"))
    assert by_subject[f"{full} (checkpoints)"].text.startswith("it is full")
    assert f"{tmp_path} (data)" not in by_subject
    assert 3.0 <= time.monotonic() - began < 20 and looked.stuck == ()
    shared.answer()
    assert look(run_dir).status == OK


def test_a_link_into_a_hanging_filesystem_names_that(shared: Directory, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(shared.path)
    shared.hang()
    text = only(look(link))
    assert "its filesystem hangs (fuse.faulty from faulty; in " in text and text.endswith(f" of {shared.path})")


def test_a_path_that_hangs_while_ranks_run_fails_when_it_still_hangs_at_the_next_run(shared: Directory) -> None:
    shared.hang()
    first = look(shared.path, busy=True)
    assert first.status == WARN
    assert look(shared.path, busy=True, before=first.facts).status == FAIL


def test_what_hangs_in_the_kernel_is_not_waited_for(shared: Directory) -> None:
    shared.hang("hard")
    began = time.monotonic()
    verdict = look(shared.path)
    assert time.monotonic() - began < 20
    found = re.search(r"; process (\d+) that tried it cannot be killed$", only(verdict))
    assert found, verdict
    assert Path(f"/proc/{found[1]}").exists()
    shared.answer()
    until(lambda: not _running(int(found[1])))


def _running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def test_the_next_run_removes_what_a_killed_one_left(shared: Directory) -> None:
    # As a server stops answering between two calls: the file is made, its removal hangs.
    name = storage_paths.file_name("n1", "paths0")
    (shared.path / name).write_text("left")
    shared.hang()
    assert look(shared.path).status == FAIL
    shared.answer()
    until(lambda: left_in(shared.path) == [name])
    assert look(shared.path).status == OK
    assert left_in(shared.path) == []


def test_a_mount_whose_program_has_died_is_found(tmp_path: Path) -> None:
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        pytest.skip("a FUSE mount needs /dev/fuse and root")
    point = tmp_path / "shared"
    for path in (point, tmp_path / "backing"):
        path.mkdir()
    with faulty_mount(tmp_path / "backing", point, tmp_path / "hang") as server:
        server.send_signal(signal.SIGKILL)
        server.wait()
    try:
        verdict = look(point)
        assert verdict.status == FAIL
        assert only(verdict).startswith("the program behind its mount has died: "), verdict
        assert f"(fuse.faulty from faulty, mounted at {point})" in only(verdict)
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_a_missing_directory_names_what_is_there(tmp_path: Path) -> None:
    verdict = look(tmp_path / "no" / "such", "run directory")
    assert verdict.status == FAIL and only(verdict).startswith(f"is not there; {tmp_path} is, and is empty (")


def test_a_user_without_rights_is_reported() -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name)
        closed.chmod(0o755)
        assert look(closed).status == OK
        verdict = as_unprivileged_user(lambda: look(closed))
        assert verdict[0] == FAIL and "create is not permitted to user 65534" in verdict[1]


def as_unprivileged_user(looking: Callable[[], Verdict]) -> list[str]:
    """Return the status and the text of a look by a user without rights."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(65534)
            verdict = looking()
            os.write(write, f"{verdict.status}\n{only(verdict)}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        lines = file.read().splitlines()
    os.waitpid(pid, 0)
    return lines
