"""What is wrong with the job's directories: judged over what probes find, and probed on this machine's own."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ftslurm.health import path_judge
from ftslurm.health.check import Absent, CheckedPath, Context
from ftslurm.health.checks import storage_lustre, storage_paths, storage_round_trip
from ftslurm.health.probe import KILLED, ProbeSpec, file_name, probe_all
from ftslurm.health.verdict import Finding, Json, Judgement, describe, worst
from ftslurm.records.health import FAIL, UNKNOWN, WARN
from ftslurm.sharedfs.mounts import mount_of
from tests.unit.health_trees import Tree

GIB, MIB = 1 << 30, 1 << 20
NODE, BUSY = Context("n1"), Context("n1", busy=True)
RUN = CheckedPath("/scratch/run", "run directory")
CHECKPOINTS = CheckedPath("/scratch/ckpt", "checkpoints")
DATA = CheckedPath("/data/imagenet", "data")
TMP, SHM = CheckedPath("/tmp", "/tmp"), CheckedPath("/dev/shm", "/dev/shm")

NFS: Json = {"point": "/scratch", "source": "server:/export", "type": "nfs4", "made_read_only": False}
DISK: Json = {"point": "/", "source": "/dev/sda1", "type": "ext4", "made_read_only": False}
TMPFS: Json = {"point": "/dev/shm", "source": "tmpfs", "type": "tmpfs", "made_read_only": False}
GOOD: Json = {
    "kind": "directory",
    "real": "/scratch/run",
    "nearest": None,
    "empty": None,
    "free": 900 * GIB,
    "total": 1000 * GIB,
    "inodes": 10**6,
    "all_inodes": 10**7,
    "read_only": False,
    "writable": True,
    "write_s": 0.01,
    "read_s": None,
    "took_s": 0.02,
    "error": None,
    "hung": None,
    "stuck": None,
    "mount": NFS,
    "unmounted": None,
    "uid": 1000,
    "limit_s": 3.0,
    "starved": False,
}
UNPROBED: Json = dict.fromkeys(("kind", "free", "total", "inodes", "all_inodes", "read_only", "writable", "took_s"))


def hangs(at: str, step: str, **more: Any) -> Json:
    return {**UNPROBED, "hung": step, "real": at, **more}


def fails(step: str, number: int, message: str = "", **more: Any) -> Json:
    return {"error": [step, number, message or os.strerror(number)], **more}


def missing(nearest: str, empty: bool = False, **more: Any) -> Json:
    return {"kind": "missing", "nearest": nearest, "empty": empty, "mount": DISK, **more}


def fault(
    name: str, place: CheckedPath, changes: Json, status: str, expected: str, context: Context = NODE, **more: Any
) -> Any:
    return pytest.param(place, changes, status, expected, context, more.get("gpus", False), more.get("before"), id=name)


FAULTS = [
    fault(
        "hangs",
        RUN,
        hangs("/scratch", "lstat"),
        FAIL,
        "/scratch/run (run directory): no answer within 3 s: its filesystem hangs (nfs4 from server:/export; in lstat"
        " of /scratch)",
    ),
    fault("hangs-while-busy", RUN, hangs("/scratch", "statfs"), WARN, "its filesystem hangs (nfs4", BUSY),
    fault(
        "hangs-again-while-busy",
        RUN,
        hangs("/scratch", "statfs"),
        FAIL,
        "its filesystem hangs (nfs4 from server:/export; in statfs of /scratch)",
        BUSY,
        before=hangs("/scratch", "statfs"),
    ),
    fault(
        "hangs-and-cannot-be-killed",
        RUN,
        hangs("/scratch", "write", stuck=4242),
        FAIL,
        "in write of /scratch); process 4242 that tried it cannot be killed",
    ),
    fault(
        "not-mounted-by-fstab",
        RUN,
        {"unmounted": "/scratch", "mount": DISK},
        FAIL,
        "/scratch/run (run directory): nothing is mounted at /scratch, which fstab wants",
    ),
    fault("tmp-not-mounted", TMP, {"unmounted": "/tmp", "mount": DISK}, WARN, "nothing is mounted at /tmp"),
    fault(
        "run-directory-missing",
        RUN,
        missing("/scratch", True),
        FAIL,
        "is not there; /scratch is, and is empty (ext4 from /dev/sda1, mounted at /)",
    ),
    fault("data-missing-with-its-mount", DATA, missing("/data", True), FAIL, "is not there; /data is, and is empty"),
    fault("data-missing-far-away", DATA, missing("/"), FAIL, "/data/imagenet (data): is not there; / is (ext4 from"),
    fault("data-missing", DATA, missing("/data"), WARN, "/data/imagenet (data): is not there; /data is (ext4"),
    fault("checkpoints-missing", CHECKPOINTS, missing("/scratch"), WARN, "/scratch/ckpt (checkpoints): is not there"),
    fault("tmp-missing", TMP, missing("/"), FAIL, "/tmp: is not there"),
    fault("shm-missing", SHM, missing("/dev"), WARN, "/dev/shm: is not there"),
    fault("run-directory-is-a-file", RUN, {"kind": "file"}, FAIL, "expected a directory, found a file"),
    fault("data-is-a-pipe", DATA, {"kind": "other"}, WARN, "expected a directory, found a device, pipe or socket"),
    fault(
        "stale",
        RUN,
        fails("lstat", errno.ESTALE, **UNPROBED),
        FAIL,
        "stale file handle: its server no longer exports what is mounted here: lstat failed (nfs4 from server:/export, "
        "mounted at /scratch)",
    ),
    fault(
        "fuse-died",
        DATA,
        fails("stat", errno.ENOTCONN, **UNPROBED),
        FAIL,
        "the program behind its mount has died: stat",
    ),
    fault("input-output-error", RUN, fails("write", errno.EIO), FAIL, "input/output error: write failed"),
    fault("soft-mount-timed-out", RUN, fails("create", errno.ETIMEDOUT), FAIL, "its server did not answer in time"),
    fault("kerberos", RUN, fails("lstat", errno.EKEYEXPIRED, **UNPROBED), FAIL, "the Kerberos ticket has expired"),
    fault(
        "quota", CHECKPOINTS, fails("close", errno.EDQUOT), WARN, "the disk quota is used up (quota -s): close failed"
    ),
    fault("open-files", RUN, fails("create", errno.EMFILE), WARN, "the limit of open files is reached (ulimit -n)"),
    fault("file-size", RUN, fails("write", errno.EFBIG), WARN, "the limit of a file's size is reached (ulimit -f)"),
    fault("killed", RUN, fails("start", KILLED, "it was killed", **UNPROBED), UNKNOWN, "could not be tried"),
    fault(
        "full",
        CHECKPOINTS,
        fails("write", errno.ENOSPC, free=0),
        FAIL,
        "it is full (0 bytes and 1000000 inodes are free): write failed",
    ),
    fault(
        "no-inodes", TMP, fails("create", errno.ENOSPC, inodes=0, mount=DISK), FAIL, "/tmp: no inode is free: create"
    ),
    fault(
        "other-bytes",
        RUN,
        fails("read", errno.EILSEQ),
        FAIL,
        "other bytes were read than had been written: read failed",
    ),
    fault("unknown-error", RUN, fails("create", errno.EBADMSG), FAIL, "Bad message: create failed (nfs4"),
    fault("not-permitted", RUN, fails("create", errno.EACCES), FAIL, "create is not permitted to user 1000 (nfs4"),
    fault("root-squashed", RUN, fails("create", errno.EACCES, uid=0), UNKNOWN, "create is not permitted to user 0"),
    fault("data-not-readable", DATA, fails("list", errno.EACCES), FAIL, "list is not permitted to user 1000"),
    fault("shm-not-writable", SHM, fails("create", errno.EACCES, mount=TMPFS), WARN, "create is not permitted"),
    fault("not-writable-while-busy", RUN, {"writable": False}, FAIL, "writing is not permitted to user 1000", BUSY),
    fault(
        "read-only",
        RUN,
        {"read_only": True},
        FAIL,
        "it is mounted read-only (nfs4 from server:/export, mounted at /scratch)",
    ),
    fault(
        "made-read-only",
        TMP,
        fails("create", errno.EROFS, mount={**DISK, "made_read_only": True}),
        FAIL,
        "the kernel has made its filesystem read-only, as it does after errors (ext4 from /dev/sda1, mounted at /)",
    ),
    fault("little-room", RUN, {"free": 500 * MIB}, WARN, "only 500 MiB of 1000 GiB are free (nfs4 from server"),
    fault("no-room", TMP, {"free": 3 * MIB, "mount": DISK}, FAIL, "/tmp: only 3 MiB of 1000 GiB are free (ext4"),
    fault("no-room-while-busy", TMP, {"free": 3 * MIB}, WARN, "/tmp: only 3 MiB of 1000 GiB are free", BUSY),
    fault(
        "shm-full",
        SHM,
        {"free": MIB, "total": 64 * GIB, "mount": TMPFS},
        FAIL,
        "/dev/shm: only 1 MiB of 64 GiB are free (tmpfs from tmpfs",
    ),
    fault(
        "shm-small-on-a-gpu-node",
        SHM,
        {"free": 64 * MIB, "total": 64 * MIB, "mount": TMPFS},
        WARN,
        "/dev/shm: it holds only 64 MiB: data loaders and NCCL die of bus errors when it is full",
        gpus=True,
    ),
    fault("few-inodes", RUN, {"inodes": 700}, WARN, "only 700 of 10000000 inodes are free (nfs4"),
    fault("hardly-an-inode", RUN, {"inodes": 5}, FAIL, "only 5 of 10000000 inodes are free (nfs4"),
    fault("slow", RUN, {"took_s": 2.6}, WARN, "slow: 2.6 s for a few small calls (nfs4 from server:/export"),
]


@pytest.mark.parametrize(("place", "changes", "status", "expected", "context", "gpus", "before"), FAULTS)
def test_faults_are_found(
    place: CheckedPath, changes: Json, status: str, expected: str, context: Context, gpus: bool, before: Json | None
) -> None:
    names = {"path": place.path, "what": place.what}
    then = None if before is None else {"places": [{**GOOD, **before, **names}]}
    facts = {"places": [{**GOOD, **changes, **names}], "gpus": gpus}
    judgement = storage_paths.judge(facts, then, context)
    texts = [describe(finding) for finding in judgement.findings]
    assert any(expected in one for one in texts), texts
    assert worst(finding.status for finding in judgement.findings) == status
    for finding in judgement.findings:
        assert "\n" not in finding.text and not finding.text.endswith(".") and finding.advice.endswith(".")


@pytest.mark.parametrize(
    ("place", "changes", "context", "gpus"),
    [
        (RUN, {}, NODE, False),
        (RUN, {"free": 2 * GIB}, NODE, False),
        (RUN, {"inodes": 0, "all_inodes": 0}, NODE, False),
        (RUN, {"took_s": 2.9}, BUSY, False),
        (DATA, {"read_only": True, "writable": False, "free": 0, "inodes": 0}, NODE, False),
        (DATA, {"kind": "file"}, NODE, False),
        (SHM, {"free": 64 * MIB, "total": 64 * MIB, "mount": TMPFS}, NODE, False),
        (SHM, {"free": 10 * GIB, "total": 12 * GIB, "mount": TMPFS}, NODE, True),
        (TMP, {"free": 900 * MIB, "total": 2 * GIB, "inodes": 600, "all_inodes": 1000, "mount": TMPFS}, NODE, True),
    ],
)
def test_normal_conditions_are_not_found(place: CheckedPath, changes: Json, context: Context, gpus: bool) -> None:
    assert path_judge.judge_path(place, {**GOOD, **changes}, None, context.busy, gpus) == []


def test_the_summary_has_each_path() -> None:
    places = [{**GOOD, "path": one.path, "what": one.what} for one in (RUN, TMP)]
    places.append({**GOOD, **hangs("/x", "stat"), "path": "/x", "what": "checkpoints"})
    summary = storage_paths.judge({"places": places, "gpus": False}, None, NODE).summary
    assert summary == "/scratch/run (run directory) 900 GiB free, /tmp 900 GiB free, /x (checkpoints) fail"


MOUNTED = ["/", "/proc", "/home", "/dev/shm"]


@pytest.mark.parametrize(
    ("fstab", "path", "point"),
    [
        ("server:/x /scratch nfs rw 0 0", "/scratch/run", "/scratch"),
        ("server:/x /scratch nfs rw,noauto 0 0", "/scratch/run", None),
        ("server:/x /scratch nfs rw 0 0", "/scratching", None),
        ("server:/x /home nfs rw 0 0", "/home/me", None),
        ("#server:/x /scratch nfs rw 0 0", "/scratch/run", None),
        ("/dev/sda1 / ext4 rw 0 1\n/dev/sda2 none swap sw 0 0", "/scratch/run", None),
        (r"server:/x /my\040data nfs rw 0 0", "/my data/x", "/my data"),
        ("LABEL=x /home/ ext4 rw", "/home/me", None),
        ("torn /scratch", "/scratch/run", None),
        ("", "/scratch/run", None),
    ],
)
def test_what_fstab_wants_mounted_and_is_not_is_found(fstab: str, path: str, point: str | None) -> None:
    assert path_judge.unmounted(fstab, MOUNTED, path) == point


def test_a_filesystem_that_the_kernel_made_read_only_is_distinguished_from_one_mounted_so() -> None:
    line = "29 1 8:1 / /x {own},relatime - ext4 /dev/sda1 {whole},errors=remount-ro"
    made = mount_of(line.format(own="rw", whole="ro"), "/x/y")
    assert made.made_read_only and not made.read_only
    meant = mount_of(line.format(own="ro", whole="ro"), "/x/y")
    assert meant.read_only and not meant.made_read_only


# Lustre

FAULTS_OF_LUSTRE = [
    pytest.param("LBUG", [], FAIL, "Lustre: Lustre reports itself broken (LBUG)", id="lustre-lbug"),
    pytest.param(
        "device work-OST0001-osc reported unhealthy\nNOT HEALTHY",
        ["/lustre/run"],
        FAIL,
        "Lustre: expected healthy, found device work-OST0001-osc reported unhealthy, NOT HEALTHY; /lustre/run is on it",
        id="lustre-unhealthy",
    ),
    pytest.param(
        "NOT HEALTHY", [], WARN, "Lustre: expected healthy, found NOT HEALTHY", id="lustre-of-others-unhealthy"
    ),
]


@pytest.mark.parametrize(("status_text", "used", "status", "expected"), FAULTS_OF_LUSTRE)
def test_lustres_own_status_is_used(status_text: str, used: list[str], status: str, expected: str) -> None:
    context = Context("n1", paths=(CheckedPath("/scratch", "data"),))
    (finding,) = storage_lustre.judge({"status_text": status_text, "used": used}, None, context).findings
    assert describe(finding).startswith(expected) and finding.status == status


@pytest.mark.parametrize("place", ["sys", "proc"])
def test_lustres_file_is_read_with_what_of_the_job_is_on_it(tmp_path: Path, place: str) -> None:
    tree = Tree(tmp_path)
    with pytest.raises(Absent, match="no Lustre here"):
        storage_lustre.fetch(Context("n1", root=tree.root))
    tree.file(f"{place}/fs/lustre/health_check", "healthy")
    tree.file("proc/self/mountinfo", "1 0 0:1 / /lustre rw - lustre mgs@tcp:/work rw")
    context = Context(
        "n1", root=tree.root, paths=(CheckedPath("/lustre/run", "run directory"), CheckedPath("/home", "data"))
    )
    facts = storage_lustre.fetch(context)
    assert facts == {"status_text": "healthy", "used": ["/lustre/run"]}
    assert storage_lustre.judge(facts, None, context) == Judgement("healthy")


# Probes of real directories


def probe(path: Path | str, **spec: Any) -> Json:
    (facts,) = probe_all([ProbeSpec(str(path), ".probe", **spec)], 10.0)
    return facts


def test_a_good_directory_is_written_read_and_left_as_it_was(tmp_path: Path) -> None:
    facts = probe(tmp_path, write=5000, durable=True)
    assert facts["kind"] == "directory" and facts["error"] is None and facts["hung"] is None
    assert facts["write_s"] > 0 and facts["read_s"] > 0 and facts["total"] >= facts["free"] > 0
    assert facts["real"] == str(tmp_path.resolve()) and facts["writable"] and not facts["read_only"]
    assert list(tmp_path.iterdir()) == []


def test_without_bytes_to_write_nothing_is_written(tmp_path: Path) -> None:
    facts = probe(tmp_path)
    assert facts["write_s"] is None and facts["error"] is None


def test_what_a_killed_probe_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".probe").write_text("left")
    assert probe(tmp_path, write=1)["error"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_of_that_name_is_no_fault_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / ".probe" / "theirs").mkdir(parents=True)
    (facts,) = probe_all([ProbeSpec(str(tmp_path), ".probe", write=4096, durable=True)], 5.0)
    assert facts["error"] is None and facts["read_s"] is not None
    assert [one.name for one in tmp_path.iterdir()] == [".probe"]


def test_a_link_put_in_the_probes_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / ".probe").symlink_to(target)
    assert probe(tmp_path, write=4096)["error"] is None
    assert target.read_text() == "kept" and not (tmp_path / ".probe").is_symlink()


def test_many_probes_of_one_directory_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    specs = [ProbeSpec(str(tmp_path), f".probe{n}", write=100, durable=True) for n in range(10)]
    assert [facts["error"] for facts in probe_all(specs, 20.0)] == [None] * 10
    assert list(tmp_path.iterdir()) == []


def test_links_are_followed_a_name_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "up").symlink_to("a/b")
    (tmp_path / "whole").symlink_to(tmp_path / "up")
    assert probe(f"{tmp_path}/whole/../b/./")["real"] == str(tmp_path.resolve() / "a" / "b")


def test_a_link_in_a_circle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("y")
    (tmp_path / "y").symlink_to("x")
    assert probe(tmp_path / "x")["error"][1] == errno.ELOOP


def test_of_a_missing_path_the_existing_part_is_reported(tmp_path: Path) -> None:
    facts = probe(tmp_path / "no" / "such")
    assert facts["kind"] == "missing" and facts["nearest"] == str(tmp_path.resolve()) and facts["empty"]
    assert facts["real"] == str(tmp_path.resolve() / "no" / "such") and facts["error"] is None
    (tmp_path / "file").touch()
    assert not probe(tmp_path / "no")["empty"]
    below_a_file = probe(tmp_path / "file" / "x")
    assert below_a_file["kind"] == "missing" and below_a_file["nearest"] == str(tmp_path.resolve() / "file")


def test_files_and_directories_are_only_read_where_that_is_all_that_is_wished(tmp_path: Path) -> None:
    assert probe(tmp_path, read=True)["empty"]
    (tmp_path / "file").write_text("x")
    assert probe(tmp_path / "file", read=True)["kind"] == "file"
    os.mkfifo(tmp_path / "pipe")
    assert probe(tmp_path / "pipe", read=True)["kind"] == "other"


def test_names_that_are_no_text_are_no_obstacle(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    facts = probe(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"), write=1)
    assert facts["error"] is None
    place = CheckedPath(facts["real"], "checkpoints")
    judged = storage_paths.judge(
        {"places": [{**GOOD, **facts, "path": place.path, "what": place.what}], "gpus": False}, None, NODE
    )
    judged.summary.encode()


def test_a_probes_file_is_named_after_its_owner() -> None:
    assert file_name("n/1 x", "look0") == f".ftslurm-health-n_1_x-{os.geteuid()}-look0"


# The checks


def test_the_jobs_paths_come_first_and_each_path_once() -> None:
    context = Context("n1", environ={"TMPDIR": "/local"}, paths=(RUN, CheckedPath("/local", "checkpoints"), DATA))
    assert [one.path for one in storage_paths.places(context)] == [
        "/local",
        "/scratch/run",
        "/data/imagenet",
        "/tmp",
        "/dev/shm",
    ]
    same = Context("n1", environ={"TMPDIR": "/dev/shm"})
    assert [one.path for one in storage_paths.places(same)] == ["/dev/shm"]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "file"},
        missing("/"),
        hangs("/mine", "lstat"),
        {"read_only": True},
        {"writable": False},
        {"inodes": 5},
        {"free": 4096},
        fails("create", errno.ENOSPC),
        fails("create", errno.EACCES),
    ],
)
@pytest.mark.parametrize("check", [storage_paths, storage_round_trip])
def test_a_users_own_directory_for_temporary_files_is_never_the_nodes_fault(changes: Json, check: Any) -> None:
    place = {**GOOD, "path": "/mine", "what": "$TMPDIR", "write_s": None, **changes}
    found = check.judge({"places": [place], "gpus": False}, None, NODE).findings
    assert {finding.status for finding in found} <= {WARN}
    assert found or check is storage_round_trip


@pytest.mark.parametrize("name", ["usable", "missing"])
def test_the_fallback_for_temporary_files_is_judged_only_where_the_agent_would_use_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "usable").mkdir()
    monkeypatch.setattr(storage_paths, "TMP", f"{tmp_path}/broken")
    (tmp_path / "broken").touch()
    context = Context("n1", environ={"TMPDIR": f"{tmp_path}/{name}"})
    verdicts = [one.status for one in storage_paths.judge(storage_paths.fetch(context), None, context).findings]
    assert verdicts == ([] if name == "usable" else [WARN, FAIL])


@pytest.fixture
def context(tmp_path: Path) -> Context:
    tree = Tree(tmp_path / "root")
    (tree.path / "dev/shm").mkdir(parents=True)
    tree.file(
        "proc/self/mountinfo", f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:5 / {tmp_path}/run rw - nfs4 srv:/x rw"
    )
    for name in ("tmp", "run"):
        (tmp_path / name).mkdir()
    paths = (CheckedPath(f"{tmp_path}/run", "run directory"),)
    return Context("n1", environ={"TMPDIR": f"{tmp_path}/tmp"}, root=tree.root, paths=paths)


def test_each_path_is_checked_with_its_mount(context: Context) -> None:
    facts = storage_paths.fetch(context)
    assert [(one["mount"]["type"], one["error"]) for one in facts["places"]] == [
        ("nfs4", None),
        ("ext4", None),
        ("ext4", None),
    ]
    assert all(one["write_s"] is not None for one in facts["places"])
    assert storage_paths.judge(facts, None, context).findings == ()


def test_nothing_is_written_while_ranks_are_running(context: Context) -> None:
    busy = Context("n1", environ=context.environ, root=context.root, paths=context.paths, busy=True)
    assert all(one["write_s"] is None for one in storage_paths.fetch(busy)["places"])
    with pytest.raises(Absent, match="not while ranks are running"):
        storage_round_trip.fetch(busy)


def test_an_unmounted_filesystem_of_fstab_is_found(context: Context, tmp_path: Path) -> None:
    Tree(Path(context.root)).file(
        "etc/fstab", f"srv:/y {tmp_path}/run/deep nfs rw 0 0\nsrv:/z {tmp_path}/tmp nfs rw 0 0"
    )
    found = storage_paths.judge(storage_paths.fetch(context), None, context).findings
    assert [finding.status for finding in found] == [WARN]
    assert found[0].text == f"nothing is mounted at {tmp_path}/tmp, which fstab wants"


def test_a_round_trip_shows_its_times(context: Context) -> None:
    facts = storage_round_trip.fetch(context)
    judgement = storage_round_trip.judge(facts, None, context)
    assert judgement.findings == () and judgement.summary.count("s and ") == 3


def trip(**changes: Any) -> list[Finding]:
    place = {**GOOD, "read_s": 0.01, "path": "/scratch/run", "what": "run directory", **changes}
    return list(storage_round_trip.judge({"places": [place], "gpus": False}, None, NODE).findings)


FAULTS_OF_ROUND_TRIPS = [
    pytest.param({"write_s": 4.25}, WARN, "slow: 4.25 s to write and sync 1 MiB, 10 ms to read it", id="slow-write"),
    pytest.param(fails("fsync", errno.EIO), FAIL, "input/output error: fsync failed", id="sync-fails"),
    pytest.param(
        fails("close", errno.EDQUOT), WARN, "the disk quota is used up (quota -s): close", id="quota-at-close"
    ),
    pytest.param(fails("read", errno.EILSEQ), FAIL, "other bytes were read than had been written", id="bytes-differ"),
    pytest.param(hangs("/scratch/run", "fsync", limit_s=8.0), FAIL, "no answer within 8 s", id="sync-hangs"),
]


@pytest.mark.parametrize(("changes", "status", "expected"), FAULTS_OF_ROUND_TRIPS)
def test_faults_of_the_round_trip_are_found(changes: Json, status: str, expected: str) -> None:
    (finding,) = trip(**({"write_s": None, "read_s": None} | changes if "write_s" not in changes else changes))
    assert finding.status == status and expected in finding.text


def test_findings_of_the_quick_run_are_not_repeated() -> None:
    assert trip(**missing("/"), write_s=None, read_s=None) == []
    assert trip(**fails("create", errno.EACCES), write_s=None, read_s=None) == []
