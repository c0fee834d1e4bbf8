"""Judges of the contended checks: from facts to findings, without a filesystem."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.doctor.checks import atomic_rename, clock, directory, exclusive_link, lock, name_lookup, rate, visibility
from ftslurm.doctor.contended import Progress, judge_slowest
from ftslurm.doctor.diagnose import Diagnosis, diagnose, judge_versions
from ftslurm.doctor.table import render, to_json
from ftslurm.health.multi_node import Gathered
from ftslurm.health.node_context import directory_of, node_context
from ftslurm.health.timed_filesystem import Outcome
from ftslurm.health.verdict import Finding, NodeFinding, Verdict
from ftslurm.records.health import FAIL, NOTE, WARN
from ftslurm.sharedfs.mounts import mount_of
from ftslurm.terminal import UsageError

MS = 1_000_000
S = 1_000_000_000


def brief(findings: Sequence[NodeFinding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.finding.status, one.check, one.nodes) for one in findings]


def statuses(findings: Sequence[NodeFinding]) -> list[str]:
    return [one.finding.status for one in findings]


# --- exclusive link


def race(*wins: int, taken: int, rescued: tuple[int, ...] = (), **refused: int) -> exclusive_link.Race:
    return exclusive_link.Race(taken + 1, list(wins), list(rescued), taken, dict(refused))


def test_one_winner_for_each_name_is_fine() -> None:
    assert exclusive_link.judge({"n1": [race(1, 3, taken=4)], "n2": [race(2, 4, taken=4)]}, complete=True) == []


def test_a_name_won_twice_fails_and_names_both_nodes() -> None:
    findings = exclusive_link.judge({"n1": [race(1, 2, taken=2)], "n2": [race(2, taken=2)]}, complete=True)
    assert brief(findings) == [(FAIL, "exclusive-link", ("n1", "n2"))]
    assert "name 2 was won 2 times" in findings[0].finding.text


def test_a_name_without_a_winner_fails_if_all_histories_are_present() -> None:
    races = {"n1": [race(1, taken=3)], "n2": [race(3, taken=3)]}
    assert (
        "1 of 3 names exist without a winner (the first: 2)"
        in exclusive_link.judge(races, complete=True)[0].finding.text
    )
    assert exclusive_link.judge(races, complete=False) == []


def test_wins_after_a_lost_reply_are_noted_and_fine() -> None:
    findings = exclusive_link.judge({"n1": [race(1, 2, taken=2, rescued=(2,))]}, complete=True)
    assert brief(findings) == [(NOTE, "exclusive-link", ())]


def test_links_that_never_work_are_wrong_and_single_failures_a_note() -> None:
    assert brief(exclusive_link.judge({"n1": [race(taken=0, EPERM=21)]}, complete=True)) == [
        (FAIL, "exclusive-link", ("n1",))
    ]
    assert brief(exclusive_link.judge({"n1": [race(1, taken=1, EIO=1)]}, complete=True)) == [
        (NOTE, "exclusive-link", ("n1",))
    ]


def test_random_histories_are_judged_wrong_exactly_when_a_name_has_not_one_winner() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        winners = [rng.choices((1, 0, 2), (30, 1, 1))[0] for _ in range(rng.randint(1, 20))]
        wins: list[list[int]] = [[] for _ in range(4)]
        for number, count in enumerate(winners, 1):
            for contender in rng.sample(range(4), count):
                wins[contender].append(number)
        races = {f"n{i}": [race(*mine, taken=len(winners))] for i, mine in enumerate(wins)}
        wrong = FAIL in statuses(exclusive_link.judge(races, complete=True))
        assert wrong == any(count != 1 for count in winners), f"seed {seed}: {winners}"


# --- atomic rename


def test_torn_contents_are_distinguished_from_complete_ones() -> None:
    for counter in (0, 1, 2, 12345):
        data = atomic_rename.content(counter)
        assert atomic_rename.check(data) == counter
        for cut in (0, 1, 5, len(data) // 2, len(data) - 1):
            assert isinstance(atomic_rename.check(data[:cut]), str), cut
    short, long = atomic_rename.content(2), atomic_rename.content(3)
    assert isinstance(atomic_rename.check(short + long[len(short) :]), str)
    assert isinstance(atomic_rename.check(long[:200] + b"\0" * (len(long) - 200)), str)


READS = atomic_rename.Reads("n1", 100, 50, 0, "", 0, {}, 0)


@pytest.mark.parametrize(
    ("change", "severities"),
    [
        ({}, []),
        ({"torn": 1, "example": "generation 3: 10 of 200 bytes"}, [FAIL]),
        ({"absent": 3}, [NOTE]),
        ({"absent": 60}, [WARN]),
        ({"errors": {"Stale file handle": 2}}, [WARN]),
        ({"backwards": 1}, [NOTE]),
        ({"reads": 0, "changes": 0}, []),
    ],
)
def test_reads_of_a_renamed_over_file_are_judged(change: dict[str, Any], severities: list[str]) -> None:
    assert statuses(atomic_rename.judge({"n2": replace(READS, **change)})) == severities


# --- locks


@pytest.mark.parametrize(
    ("facts", "severities"),
    [
        (lock.Lock("n1", True, 0.01), []),
        (lock.Lock("n1", True, 4.0), [NOTE]),
        (lock.Lock("n1", True, -1.0), [FAIL]),
        (lock.Lock("n1", False, 0.0), [WARN]),
        (lock.Lock("n1", False, -1.0), [WARN, FAIL]),
        (lock.Lock("n1", problem="OSError: no locks"), [WARN]),
        (lock.Lock("n1"), []),
    ],
)
def test_locks_are_judged_by_their_cost(facts: lock.Lock, severities: list[str]) -> None:
    assert statuses(lock.judge({"n2": facts})) == severities


# --- reading each other's files

EXCHANGES = visibility.Exchanges("n2", [[0, 2 * MS, 3 * MS, 5 * MS]], [[0, S, S, 2 * S]], 10 * S, 11 * S)
SAME = clock.Offset(0.0, 0.001)


def test_the_delay_is_half_of_a_round_trip_by_one_clock() -> None:
    found = visibility.delays("n1", EXCHANGES, visibility.StatTimes("n1", 12 * S, 14 * S, 20 * S), SAME)
    assert (found.new, found.renamed, found.stat_new, found.stat_renamed) == (0.002, 1.0, 2.0, 3.0)


def test_a_plain_stat_is_timed_over_two_clocks_by_their_offset() -> None:
    stats = visibility.StatTimes("n1", 112 * S, None, 116 * S)
    found = visibility.delays("n1", EXCHANGES, stats, clock.Offset(100.0, 0.001))
    assert (found.stat_new, found.stat_renamed) == (2.0, -5.0), "negative: not seen for that long"
    assert visibility.delays("n1", EXCHANGES, stats, None).stat_new is None


def test_files_that_never_appear_fail_and_late_ones_are_warnings() -> None:
    fine = visibility.Delays("n1", "n2", 0.001, 0.002, 0.01, None, None)
    assert visibility.judge([fine]) == []
    assert brief(visibility.judge([replace(fine, new=None)])) == [(FAIL, "visibility", ("n2",))]
    assert brief(visibility.judge([replace(fine, renamed=2.5)])) == [(WARN, "visibility", ("n2",))]
    assert brief(visibility.judge([replace(fine, worst=28.6)])) == [(WARN, "visibility", ("n2",))]
    assert visibility.judge([replace(fine, stat_new=-3.0, stat_renamed=2.4)]) == [], (
        "the plain stat is for contrast only"
    )


# --- clocks


def test_the_true_offset_is_always_within_the_error() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        true = rng.randint(-(10**12), 10**12)
        server = rng.randint(10**17, 10**18)
        samples = []
        for _ in range(20):
            server += rng.randint(1, 10**8)
            before = server + true
            after = before + rng.randint(0, 5 * 10**7)
            happened = rng.randint(before, after) - true
            samples.append([before, happened - happened % rng.choice((1, 1000, 4 * MS)), after])
        found = clock.from_stamps(samples)
        assert found is not None, f"seed {seed}"
        assert abs(found.middle - true / 1e9) <= found.error + 1e-6, f"seed {seed}"


def test_stamps_of_whole_seconds_give_an_error_of_a_second() -> None:
    found = clock.from_stamps([[100 * S + 500 * MS, 100 * S, 100 * S + 501 * MS]])
    assert found is not None
    assert abs(found.middle) <= found.error and found.error > 0.4


def test_a_clock_that_jumps_meanwhile_gives_no_offset() -> None:
    assert clock.from_stamps([[0, 5, 10], [100 * S, 6, 100 * S + 5]]) is None
    assert clock.from_stamps([]) is None


def test_stamps_made_by_the_clients_are_detected_by_the_exchanges() -> None:
    samples = [[t, t, t + MS] for t in range(S, 3 * S, S // 10 + 1)]
    stamps = {"n1": clock.Stamps(samples), "n2": clock.Stamps(samples)}
    agreed, server = clock.offsets(stamps, {("n1", "n2"): clock.Offset(0.0, 0.01)})
    assert server and set(agreed) == {"n1", "n2"}
    pairs = {("n1", "n2"): clock.Offset(100.0, 0.01), ("n2", "n3"): clock.Offset(1.0, 0.01)}
    chained, server = clock.offsets({**stamps, "n3": clock.Stamps(samples)}, pairs)
    assert not server
    assert chained["n3"] == clock.Offset(101.0, 0.02)


def test_the_one_clock_that_is_off_is_named() -> None:
    by_node = {"n1": clock.Offset(0.0, 0.01), "n2": clock.Offset(-7.0, 0.01), "n3": clock.Offset(0.1, 0.01)}
    findings = clock.judge(by_node, server=True)
    assert brief(findings) == [(WARN, "clock", ("n2",))]
    assert "7.0 s behind" in findings[0].finding.text
    assert clock.judge({"n1": clock.Offset(0.0, 9.0), "n2": clock.Offset(8.0, 9.0)}, server=True) == [], "not proved"
    assert clock.judge({}, server=True) == []


def test_a_server_whose_clock_is_off_is_a_note() -> None:
    off = {"n1": clock.Offset(60.0, 0.01), "n2": clock.Offset(60.0, 0.01)}
    assert brief(clock.judge(off, server=True)) == [(NOTE, "clock", ())]
    assert clock.judge(off, server=False) == []


# --- the directory

MOUNT = {"point": "/shared", "source": "srv:/x", "type": "nfs4", "options": "rw,hard", "made_read_only": False}
FINE: dict[str, Any] = {
    "path": "/shared",
    "what": "run directory",
    "host": "n1",
    "machine": "m1",
    "no_proc": None,
    "uid": 1000,
    "kind": "directory",
    "real": "/shared",
    "nearest": None,
    "empty": None,
    "unmounted": None,
    "limit_s": 10.0,
    "free": 1 << 40,
    "total": 1 << 41,
    "inodes": 10**9,
    "all_inodes": 10**9,
    "read_only": False,
    "writable": True,
    "write_s": 0.01,
    "read_s": 0.01,
    "took_s": 0.1,
    "error": None,
    "hung": None,
    "starved": False,
    "stuck": None,
    "owner": 1000,
    "mode": 0o700,
    "made_uid": 1000,
    "mount": MOUNT,
}


def changed(options: str = "rw,hard", type_: str = "nfs4", **change: Any) -> dict[str, Any]:
    return {**FINE, "mount": {**MOUNT, "options": options, "type": type_}, **change}


def failed(number: int) -> dict[str, Any]:
    return changed(error=["create", number, "no such luck"])


@pytest.mark.parametrize(
    ("facts", "status", "expected"),
    [
        (changed(kind="missing", nearest="/"), FAIL, "is not there; / is"),
        (changed(kind="file"), FAIL, "expected a directory, found a file"),
        (failed(errno.EACCES), FAIL, "create is not permitted to user 1000"),
        (failed(errno.EROFS), FAIL, "read-only"),
        (failed(errno.ENOSPC), FAIL, "it is full"),
        (failed(errno.EDQUOT), FAIL, "quota"),
        (failed(errno.EIO), FAIL, "input/output error"),
        (failed(errno.EREMOTEIO), FAIL, "no such luck"),
        (changed(hung="create", took_s=None, kind=None), FAIL, "its filesystem hangs"),
        (changed(starved=True, took_s=None, kind=None), FAIL, "too little CPU time"),
        (changed(made_uid=65534), FAIL, "files made by uid 1000 belong to uid 65534"),
        (changed(taken="/shared/.x: a file of uid 7 is in the place"), FAIL, "a file of uid 7"),
        (changed(no_proc="there is no /proc"), FAIL, "ftslurm run refuses to start there"),
        (changed(mode=0o777), WARN, "no sticky bit"),
        (changed(free=1 << 20), FAIL, "only 1 MiB of 2 TiB are free"),
        (changed(free=100 << 20), WARN, "only 100 MiB of 2 TiB are free"),
        (changed(inodes=100), WARN, "only 100 of 1000000000 inodes are free"),
        (changed("rw,soft,timeo=50"), WARN, "mounted with soft"),
        (changed("rw,nolock"), NOTE, "without locks"),
        (changed("rw,local_lock=all"), NOTE, "without locks"),
        (changed("rw,acdirmax=600"), WARN, "up to 600 s"),
    ],
)
def test_each_fault_of_a_directory_is_found(facts: dict[str, Any], status: str, expected: str) -> None:
    findings = directory.judge({"n1": facts}, alone=False)
    assert statuses(findings) == [status]
    assert expected in findings[0].finding.text
    assert findings[0].finding.advice


@pytest.mark.parametrize(
    "facts",
    [
        FINE,
        changed(mode=0o1777),
        changed(all_inodes=0, inodes=0),
        changed("rw,actimeo=3,local_lock=none,softreval"),
        changed("rw,nolock", "lustre"),
    ],
)
def test_a_healthy_directory_has_no_findings(facts: dict[str, Any]) -> None:
    assert directory.judge({"n1": facts}, alone=False) == []


def test_a_local_filesystem_is_a_note_on_one_node_only() -> None:
    local = changed(type_="ext4")
    assert brief(directory.judge({"n1": local}, alone=True)) == [(NOTE, "directory", ("n1",))]
    assert directory.judge({"n1": local, "n2": local}, alone=False) == []


def test_nodes_that_disagree_about_user_or_mount_are_found() -> None:
    other = changed(type_="ext4", uid=1001, made_uid=1001)
    findings = directory.judge({"n1": FINE, "n2": other}, alone=False)
    assert brief(findings) == [(FAIL, "directory", ()), (WARN, "directory", ())]


MOUNTINFO = r"""22 1 0:21 / / rw,relatime - ext4 /dev/sda rw
23 22 0:22 / /shared rw,nosuid shared:1 - nfs4 srv:/a rw,vers=4.2,hard
24 22 0:23 / /shared/with\040space rw - tmpfs none rw
25 22 0:24 / /shared ro - nfs4 srv:/b ro
"""


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/shared/x", "srv:/b"),
        ("/shared", "srv:/b"),
        ("/sharedx", "/dev/sda"),
        ("/shared/with space/y", "none"),
        ("/", "/dev/sda"),
    ],
)
def test_the_mount_of_a_path_is_the_innermost_and_the_last(path: str, source: str) -> None:
    assert mount_of(MOUNTINFO, path).source == source


def test_options_of_mount_and_filesystem_are_put_together_once() -> None:
    assert mount_of(MOUNTINFO.replace("25 ", "bad ", 1).splitlines()[1], "/shared").options == (
        "rw,nosuid,vers=4.2,hard"
    )
    assert mount_of("nonsense\n", "/x").fs_type == "unknown"


# --- names

TWO = {"n1": "m1", "n2": "m2"}
KNOWN: dict[str, Any] = {
    "own": ["n1", "n1.cluster"],
    "addresses": {"n1": ["10.0.0.1"], "n1.cluster": ["10.0.0.1"], "n2": ["10.0.0.2"]},
    "slow": {},
}


def resolved(**addresses: list[str]) -> dict[str, Any]:
    return {**KNOWN, "addresses": {**KNOWN["addresses"], **addresses}}


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ({}, []),
        ({"n1": ["127.0.1.1"]}, [WARN]),
        ({"n1": ["10.0.0.1", "127.0.1.1"]}, []),
        ({"n1": []}, [WARN]),
        ({"n2": []}, [FAIL]),
        ({"n2": ["127.0.0.1", "::1"]}, [FAIL]),
    ],
)
def test_names_with_wrong_addresses_are_found(addresses: dict[str, list[str]], expected: list[str]) -> None:
    assert statuses(name_lookup.judge({"n1": resolved(**addresses)}, TWO)) == expected


def test_loopback_is_fine_where_all_nodes_are_one_machine() -> None:
    facts = resolved(n1=["127.0.0.1"], n2=["127.0.0.1"])
    assert name_lookup.judge({"n1": facts}, {"n1": "m1", "n2": "m1"}) == []


def test_a_slow_name_server_is_found() -> None:
    slow = {**KNOWN, "slow": {"n2": 5.0}}
    assert brief(name_lookup.judge({"n1": slow}, TWO)) == [(WARN, "name-lookup", ("n1",))]


# --- rates


def speed(value: float, **errors: int) -> rate.Rate:
    return rate.Rate(value, value, value, dict(errors), 100)


def test_a_node_much_slower_than_the_rest_is_named() -> None:
    findings = rate.judge({"n1": speed(1000), "n2": speed(1000), "n3": speed(50)})
    assert brief(findings) == [(WARN, "rate", ("n3",))] * 3
    assert rate.judge({"n1": speed(100_000), "n2": speed(100_000), "n3": speed(10_000)}) == [], "0.1 ms is no trouble"


def test_a_filesystem_slow_for_all_is_one_finding() -> None:
    findings = rate.judge({"n1": speed(5), "n2": speed(4)})
    assert {(one.finding.status, one.nodes) for one in findings} == {(WARN, ())}


def test_failed_operations_are_counted_and_wrong_when_most_fail() -> None:
    assert brief(rate.judge({"n1": speed(100, EIO=2)})) == [(WARN, "rate", ("n1",))]
    assert FAIL in statuses(rate.judge({"n1": speed(0, EIO=90)}))


def test_a_single_call_of_seconds_is_found_with_its_name() -> None:
    assert judge_slowest(0.5, "rename /s/a") == ()
    (finding,) = judge_slowest(3.0, "rename /s/b")
    assert finding.status == WARN
    assert "rename /s/b took 3.0 s" in finding.text


# --- all together

Results = dict[str, list[Verdict]]


def checked(check: str, facts: dict[str, Any] | None = None, *findings: Finding) -> Verdict:
    return Verdict(check, findings[0].status if findings else "ok", "", findings, 0.1, facts)


def judged(
    results: Results, expected: tuple[str, ...], present: tuple[str, ...], unlisted: tuple[str, ...] = ()
) -> Diagnosis:
    lost = {node: "did not join in /shared within 30 s" for node in expected if node not in present}
    lost |= {node: "joined, but sent no result" for node in present if node not in results}
    gathered = Gathered({n: tuple(found) for n, found in results.items()}, {}, lost, {}, unlisted)
    return diagnose("/shared", expected, present, gathered)


def test_a_node_that_does_not_join_is_named() -> None:
    found = judged({"n1": []}, ("n1", "n2"), ("n1",))
    assert found.status == FAIL
    assert brief(found.findings) == [(FAIL, "meet", ("n2",))]
    assert "n2: meet: did not join in /shared within 30 s" in render(found, 1)


def test_checks_that_fail_beside_a_silent_node_are_only_warnings() -> None:
    fault = Finding(FAIL, "", "could not be checked: no such file", "see the other findings first")
    results = {"n1": [checked("visibility", None, fault)]}
    found = judged(results, ("n1", "n2"), ("n1", "n2"))
    assert brief(found.findings) == [(FAIL, "meet", ("n2",)), (WARN, "visibility", ("n1",))]
    assert brief(judged(results, ("n1",), ("n1",)).findings) == [(FAIL, "visibility", ("n1",))]


def test_a_call_that_hangs_fails_and_is_named() -> None:
    progress = Progress()
    progress.add("lock", [Outcome(problem="lock /shared/x did not return", hung="lock /shared/x")], None)
    assert progress.hangs == 1
    found = judged({"n1": progress.verdicts}, ("n1",), ("n1",))
    assert found.status == FAIL
    assert "lock: the filesystem hangs: lock /shared/x did not return" in render(found, 1)


def test_a_missed_barrier_is_a_warning_and_ends_the_checks_of_a_node() -> None:
    progress = Progress()
    progress.add("lock", [Outcome(problem="BarrierTimeout: n1 did not release the barrier within 15 s")], None)
    (finding,) = progress.verdicts[0].findings
    assert (progress.left, finding.status) == (True, WARN)
    assert finding.text == "could not be checked: n1 did not release the barrier within 15 s"


def test_two_versions_of_ftslurm_are_incompatible() -> None:
    assert judge_versions({"n1": "0.1.0", "n2": "0.1.0"}) == []
    (found,) = judge_versions({"n1": "0.1.0", "n2": "0.2.0"})
    assert "ftslurm 0.1.0 on n1; ftslurm 0.2.0 on n2" in found.finding.text


def many(count: int, slow: str) -> Diagnosis:
    nodes = tuple(f"n{i}" for i in range(count))
    results = {
        node: [
            checked("directory", {**FINE, "host": node}),
            checked("rate", vars(speed(10 if node == slow else 1000))),
            checked("exclusive-link", {"races": [], "complete": True}),
        ]
        for node in nodes
    }
    return judged(results, nodes, nodes)


def test_the_outlier_is_on_top_of_the_table_and_a_thousand_nodes_give_a_short_one() -> None:
    text = render(many(1000, "n777"), 9.9)
    lines = text.splitlines()
    assert lines[0] == "ftslurm doctor: /shared: fine, 3 warnings (1000 nodes, 9.9 s)"
    head = next(i for i, line in enumerate(lines) if line.split()[:1] == ["node"])
    assert lines[head + 1].split()[0] == "n777"
    assert len(lines) < 40
    assert max(map(len, lines)) < 160


def test_the_report_as_json_holds_all_nodes_and_the_verdict() -> None:
    report = json.loads(to_json(many(20, "n3"), 1.0))
    assert report["schema"] == "ftslurm/doctor-report" and report["status"] == "warn"
    assert len(report["nodes"]) == 20
    assert report["findings"][0]["nodes"] == ["n3"]


# --- the context of this node

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "n2",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_NNODES": "3",
}


def test_a_task_of_a_step_knows_the_nodes_of_its_step() -> None:
    context = node_context(STEP, "host.x", "unique", "ftslurm doctor DIR")
    assert context is not None
    assert (context.node, context.expected) == ("n2", ("n1", "n2", "n3"))
    assert context.session.startswith("7.") and context.session.endswith(".2")


def test_a_second_task_of_a_node_does_nothing() -> None:
    assert node_context({**STEP, "SLURM_LOCALID": "1"}, "host", "unique", "ftslurm doctor DIR") is None


def test_without_slurm_a_node_is_alone_and_a_batch_script_gets_a_note_about_srun() -> None:
    alone = node_context({}, "host.x", "unique", "ftslurm doctor DIR")
    assert alone is not None
    assert (alone.node, alone.expected, alone.session, alone.note) == ("host", ("host",), "unique", "")
    batch = node_context(
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1"}, "h", "unique", "x"
    )
    assert batch is not None
    assert batch.expected == ("n1",) and "srun" in batch.note


def test_a_broken_slurm_environment_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="SLURM_NODEID"):
        node_context({**STEP, "SLURM_NODEID": "x"}, "host", "unique", "ftslurm doctor DIR")


def test_the_default_directory_is_that_of_the_runs_or_its_parent() -> None:
    assert directory_of("a/../b", {}, "/cwd", lambda _: False) == "/cwd/b"
    assert directory_of(None, {}, "/cwd", lambda _: True) == "/cwd/ftslurm-runs"
    assert directory_of(None, {"SLURM_SUBMIT_DIR": "/sub"}, "/cwd", lambda _: False) == "/sub"
    assert directory_of(None, {"FTSLURM_SHARED_DIR": "/s/runs"}, "/cwd", lambda _: True) == "/s/runs"


def test_a_listing_that_lacks_a_file_is_a_warning() -> None:
    found = judged({"n1": [], "n2": []}, ("n1", "n2"), ("n1", "n2"), unlisted=("n2",))
    assert brief(found.findings) == [(WARN, "listing", ("n1",))]
    assert "lacked n2's file" in found.findings[0].finding.text
