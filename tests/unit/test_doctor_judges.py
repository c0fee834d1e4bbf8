"""The doctor's judges: from what the probes brought home to what is wrong, without a filesystem."""

from __future__ import annotations

import errno
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.doctor import barrier
from ftslurm.doctor.command import UsageError, directory_of, node_context
from ftslurm.doctor.diagnose import Diagnosis, diagnose
from ftslurm.doctor.findings import NOTE, WARNING, WRONG, Finding, merge
from ftslurm.doctor.probes import atomic_rename, clock, exclusive_link, lock, mount, rate, resolve, visibility
from ftslurm.doctor.table import duration, render, size, to_json

MS = 1_000_000
S = 1_000_000_000


def said(findings: list[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(f.severity, f.probe, f.nodes) for f in findings]


# --- exclusive link


def race(*wins: int, seen: int, rescued: tuple[int, ...] = (), **refused: int) -> exclusive_link.Race:
    return exclusive_link.Race(seen + 1, list(wins), list(rescued), seen, dict(refused))


def test_one_winner_for_each_name_is_fine() -> None:
    assert exclusive_link.judge({"n1": [race(1, 3, seen=4)], "n2": [race(2, 4, seen=4)]}, complete=True) == []


def test_a_name_won_twice_is_wrong_and_names_both_nodes() -> None:
    findings = exclusive_link.judge({"n1": [race(1, 2, seen=2)], "n2": [race(2, seen=2)]}, complete=True)
    assert said(findings) == [(WRONG, "link", ("n1", "n2"))]
    assert "name 2 was won 2 times" in findings[0].text


def test_a_name_that_nobody_won_is_wrong_if_all_histories_are_there() -> None:
    races = {"n1": [race(1, seen=3)], "n2": [race(3, seen=3)]}
    assert "1 of 3 names exist without a winner (the first: 2)" in exclusive_link.judge(races, complete=True)[0].text
    assert exclusive_link.judge(races, complete=False) == []


def test_wins_after_a_lost_reply_are_noted_and_fine() -> None:
    findings = exclusive_link.judge({"n1": [race(1, 2, seen=2, rescued=(2,))]}, complete=True)
    assert said(findings) == [(NOTE, "link", ())]


def test_links_that_never_work_are_wrong_and_single_failures_a_note() -> None:
    assert said(exclusive_link.judge({"n1": [race(seen=0, EPERM=21)]}, complete=True)) == [(WRONG, "link", ("n1",))]
    assert said(exclusive_link.judge({"n1": [race(1, seen=1, EIO=1)]}, complete=True)) == [(NOTE, "link", ("n1",))]


def test_random_histories_are_judged_wrong_exactly_when_a_name_has_not_one_winner() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        winners = [rng.choices((1, 0, 2), (30, 1, 1))[0] for _ in range(rng.randint(1, 20))]
        wins: list[list[int]] = [[] for _ in range(4)]
        for number, count in enumerate(winners, 1):
            for who in rng.sample(range(4), count):
                wins[who].append(number)
        races = {f"n{i}": [race(*mine, seen=len(winners))] for i, mine in enumerate(wins)}
        wrong = any(f.severity == WRONG for f in exclusive_link.judge(races, complete=True))
        assert wrong == any(count != 1 for count in winners), f"seed {seed}: {winners}"


# --- atomic rename


def test_every_torn_content_is_told_from_a_whole_one() -> None:
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
        ({"torn": 1, "example": "generation 3: 10 of 200 bytes"}, [WRONG]),
        ({"absent": 3}, [NOTE]),
        ({"absent": 60}, [WARNING]),
        ({"errors": {"Stale file handle": 2}}, [WARNING]),
        ({"backwards": 1}, [NOTE]),
        ({"reads": 0, "changes": 0}, []),
    ],
)
def test_reads_of_a_renamed_over_file_are_judged(change: dict[str, Any], severities: list[str]) -> None:
    assert [f.severity for f in atomic_rename.judge({"n2": replace(READS, **change)})] == severities


# --- locks


@pytest.mark.parametrize(
    ("facts", "severities"),
    [
        (lock.Lock("n1", True, 0.01), []),
        (lock.Lock("n1", True, 4.0), [NOTE]),
        (lock.Lock("n1", True, -1.0), [WRONG]),
        (lock.Lock("n1", False, 0.0), [WARNING]),
        (lock.Lock("n1", False, -1.0), [WARNING, WRONG]),
        (lock.Lock("n1", problem="OSError: no locks"), [WARNING]),
        (lock.Lock("n1"), []),
    ],
)
def test_locks_are_judged_by_what_they_cost(facts: lock.Lock, severities: list[str]) -> None:
    assert [f.severity for f in lock.judge({"n2": facts})] == severities


# --- seeing each other's files

ASKED = visibility.Asked("n2", [[0, 2 * MS, 3 * MS, 5 * MS]], [[0, S, S, 2 * S]], 10 * S, 11 * S)
SAME = clock.Offset(0.0, 0.001)


def test_half_of_an_exchange_is_the_way_there_on_one_clock() -> None:
    found = visibility.delays("n1", ASKED, visibility.Looked("n1", 12 * S, 14 * S, 20 * S), SAME)
    assert (found.new, found.renamed, found.stat_new, found.stat_renamed) == (0.002, 1.0, 2.0, 3.0)


def test_a_plain_stat_is_timed_over_two_clocks_by_their_offset() -> None:
    looked = visibility.Looked("n1", 112 * S, None, 116 * S)
    found = visibility.delays("n1", ASKED, looked, clock.Offset(100.0, 0.001))
    assert (found.stat_new, found.stat_renamed) == (2.0, -5.0), "negative: not seen for that long"
    assert visibility.delays("n1", ASKED, looked, None).stat_new is None


def test_files_never_seen_are_wrong_and_late_ones_a_warning() -> None:
    fine = visibility.Delays("n1", "n2", 0.001, 0.002, 0.01, None, None)
    assert visibility.judge([fine]) == []
    assert said(visibility.judge([replace(fine, new=None)])) == [(WRONG, "seen", ("n2",))]
    assert said(visibility.judge([replace(fine, renamed=2.5)])) == [(WARNING, "seen", ("n2",))]
    assert said(visibility.judge([replace(fine, worst=28.6)])) == [(WARNING, "seen", ("n2",))]
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


def test_stamps_made_by_the_clients_are_found_out_by_the_exchanges() -> None:
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
    assert said(findings) == [(WARNING, "clock", ("n2",))]
    assert "7.0 s behind" in findings[0].text
    assert clock.judge({"n1": clock.Offset(0.0, 9.0), "n2": clock.Offset(8.0, 9.0)}, server=True) == [], "not proved"
    assert clock.judge({}, server=True) == []


def test_a_server_whose_clock_is_off_is_a_note() -> None:
    off = {"n1": clock.Offset(60.0, 0.01), "n2": clock.Offset(60.0, 0.01)}
    assert said(clock.judge(off, server=True)) == [(NOTE, "clock", ())]
    assert clock.judge(off, server=False) == []


# --- the directory

FINE = mount.MountView(
    "/shared", "n1", "m1", 1000, "directory", 1000, 0o700, "/shared", "srv:/x", "nfs4", "rw,hard", 1 << 40, 1 << 41,
    10**9, 10**9, 1000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({"kind": "missing", "problem": "x", "problem_errno": errno.ENOENT}, WRONG, "/shared does not exist"),
        ({"kind": "file"}, WRONG, "/shared is a file, expected a directory"),
        ({"problem": "x", "problem_errno": errno.EACCES}, WRONG, "not writable by uid 1000"),
        ({"problem": "x", "problem_errno": errno.EROFS}, WRONG, "read-only"),
        ({"problem": "x", "problem_errno": errno.ENOSPC}, WRONG, "the disk is full"),
        ({"problem": "x", "problem_errno": errno.EDQUOT}, WRONG, "quota"),
        ({"problem": "x", "problem_errno": errno.EIO}, WRONG, "cannot be used"),
        ({"made_uid": 65534}, WRONG, "files made by uid 1000 belong to uid 65534"),
        ({"mode": 0o777}, WARNING, "no sticky bit"),
        ({"bytes_free": 1 << 20}, WRONG, "only 1 MiB are free"),
        ({"bytes_free": 100 << 20}, WARNING, "only 100 MiB are free"),
        ({"inodes_free": 10}, WARNING, "only 10 inodes are free"),
        ({"options": "rw,soft,timeo=50"}, WARNING, "mounted with soft"),
        ({"options": "rw,nolock"}, NOTE, "without locks"),
        ({"options": "rw,local_lock=all"}, NOTE, "without locks"),
        ({"options": "rw,acdirmax=600"}, WARNING, "up to 600 s"),
    ],
)
def test_each_trouble_of_a_directory_is_said(change: dict[str, Any], severity: str, words: str) -> None:
    findings = mount.judge({"n1": replace(FINE, **change)}, alone=False)
    assert [f.severity for f in findings] == [severity]
    assert words in findings[0].text
    assert findings[0].advice


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"mode": 0o1777},
        {"inodes_total": 0, "inodes_free": 0},
        {"options": "rw,actimeo=3,local_lock=none,softreval"},
        {"fs_type": "lustre", "options": "rw,nolock"},
    ],
)
def test_what_is_no_trouble_is_not_said(change: dict[str, Any]) -> None:
    assert mount.judge({"n1": replace(FINE, **change)}, alone=False) == []


def test_a_local_filesystem_is_worth_a_note_on_one_node_only() -> None:
    local = replace(FINE, fs_type="ext4")
    assert said(mount.judge({"n1": local}, alone=True)) == [(NOTE, "mount", ("n1",))]
    assert mount.judge({"n1": local, "n2": local}, alone=False) == []


def test_nodes_that_disagree_about_user_or_mount_are_said() -> None:
    other = replace(FINE, uid=1001, made_uid=1001, fs_type="ext4")
    findings = mount.judge({"n1": FINE, "n2": other}, alone=False)
    assert said(findings) == [(WRONG, "place", ()), (WARNING, "mount", ())]


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
    assert mount.mount_of(MOUNTINFO, path).source == source


def test_options_of_mount_and_filesystem_are_put_together_once() -> None:
    assert mount.mount_of(MOUNTINFO.replace("25 ", "bad ", 1).splitlines()[1], "/shared").options == (
        "rw,nosuid,vers=4.2,hard"
    )
    assert mount.mount_of("nonsense\n", "/x").fs_type == "unknown"


# --- names

TWO = {"n1": "m1", "n2": "m2"}
KNOWN = resolve.Names("n1", "n1.cluster", {"n1": ["10.0.0.1"], "n1.cluster": ["10.0.0.1"], "n2": ["10.0.0.2"]}, 0.0)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ({}, []),
        ({"n1": ["127.0.1.1"]}, [WARNING]),
        ({"n1": ["10.0.0.1", "127.0.1.1"]}, []),
        ({"n1": []}, [WARNING]),
        ({"n2": []}, [WRONG]),
        ({"n2": ["127.0.0.1", "::1"]}, [WRONG]),
    ],
)
def test_names_that_lead_nowhere_are_said(addresses: dict[str, list[str]], expected: list[str]) -> None:
    facts = replace(KNOWN, addresses={**KNOWN.addresses, **addresses})
    assert [f.severity for f in resolve.judge({"n1": facts}, TWO)] == expected


def test_loopback_is_fine_where_all_nodes_are_one_machine() -> None:
    facts = replace(KNOWN, addresses={"n1": ["127.0.0.1"], "n2": ["127.0.0.1"]})
    assert resolve.judge({"n1": facts}, {"n1": "m1", "n2": "m1"}) == []


def test_a_slow_name_server_is_said() -> None:
    assert said(resolve.judge({"n1": replace(KNOWN, slowest_s=5.0)}, TWO)) == [(WARNING, "name", ("n1",))]


# --- rates


def speed(value: float, **errors: int) -> rate.Rate:
    return rate.Rate(value, value, value, dict(errors), 100)


def test_a_node_much_slower_than_the_rest_is_named() -> None:
    findings = rate.judge({"n1": speed(1000), "n2": speed(1000), "n3": speed(50)})
    assert said(findings) == [(WARNING, "rate", ("n3",))] * 3
    assert rate.judge({"n1": speed(100_000), "n2": speed(100_000), "n3": speed(10_000)}) == [], "0.1 ms is no trouble"


def test_a_filesystem_slow_for_all_is_said_once() -> None:
    findings = rate.judge({"n1": speed(5), "n2": speed(4)})
    assert {(f.severity, f.nodes) for f in findings} == {(WARNING, ())}


def test_failed_operations_are_counted_and_wrong_when_most_fail() -> None:
    assert said(rate.judge({"n1": speed(100, EIO=2)})) == [(WARNING, "rate", ("n1",))]
    assert WRONG in [f.severity for f in rate.judge({"n1": speed(0, EIO=90)})]


def test_a_single_call_of_seconds_is_said_with_its_name() -> None:
    findings = rate.judge_slowest({"n1": (0.5, "rename /s/a"), "n2": (3.0, "rename /s/b")})
    assert said(findings) == [(WARNING, "stall", ("n2",))]
    assert "rename /s/b took 3.0 s" in findings[0].text


# --- all together


def result(**probes: Any) -> dict[str, Any]:
    return {"problems": [], "slowest": [0.0, ""], **probes}


def judged(results: dict[str, Any], expected: tuple[str, ...], present: tuple[str, ...]) -> Diagnosis:
    return diagnose("/shared", expected, present, results, {}, 30)


def test_a_node_that_never_shows_up_is_named() -> None:
    found = judged({"n1": result()}, ("n1", "n2"), ("n1",))
    assert found.wrong
    assert said(list(found.findings)) == [(WRONG, "meet", ("n2",))]
    assert "n2: did not join in /shared within 30 s" in render(found, 1)


def test_a_node_that_falls_silent_is_named_and_its_neighbours_troubles_are_not_blamed() -> None:
    trouble = {"probe": "seen", "text": "no such file", "hung": False}
    results = {"n1": {**result(), "problems": [trouble]}}
    found = judged(results, ("n1", "n2"), ("n1", "n2"))
    assert said(list(found.findings)) == [(WRONG, "meet", ("n2",)), (WARNING, "seen", ("n1",))]


def test_a_call_that_hangs_is_wrong_and_named() -> None:
    hung = {"probe": "lock", "text": "lock /shared/x did not return", "hung": True}
    found = judged({"n1": {**result(), "problems": [hung]}}, ("n1",), ("n1",))
    assert found.wrong
    assert "the filesystem hangs: lock /shared/x did not return" in render(found, 1)


def test_two_versions_of_ftslurm_do_not_go_together() -> None:
    assert barrier.judge_versions({"n1": "0.1.0", "n2": "0.1.0"}) == []
    assert "ftslurm 0.1.0 on n1; ftslurm 0.2.0 on n2" in barrier.judge_versions({"n1": "0.1.0", "n2": "0.2.0"})[0].text


def test_findings_alike_become_one_over_their_nodes_and_the_worst_comes_first() -> None:
    note, wrong = Finding(NOTE, "name", ("n2",), "a", "b"), Finding(WRONG, "link", ("n9",), "c", "d")
    merged = merge([note, wrong, replace(note, nodes=("n1",))], ["n1", "n2"])
    assert [(f.text, f.nodes) for f in merged] == [("c", ("n9",)), ("a", ("n1", "n2"))]


def many(count: int, slow: str) -> Diagnosis:
    nodes = tuple(f"n{i}" for i in range(count))
    results = {
        node: result(
            place=vars(replace(FINE, host=node)),
            rate=vars(speed(10 if node == slow else 1000)),
            names={"races": [], "complete": True},
        )
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
    assert report["schema"] == "ftslurm/doctor-report" and report["verdict"] == "fine"
    assert len(report["nodes"]) == 20
    assert report["findings"][0]["nodes"] == ["n3"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0004, "0.4 ms"), (0.0123, "12 ms"), (2.44, "2.4 s"), (-3.5, ">3.5 s")]
)
def test_times_are_said_in_three_digits(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_are_said_in_binary_units() -> None:
    assert [size(n) for n in (0, 1023, 1 << 20, 3 << 50)] == ["0 B", "1023 B", "1 MiB", "3.0 PiB"]


# --- where this node stands

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


def test_a_task_of_a_step_stands_among_the_steps_nodes() -> None:
    stand = node_context(STEP, "host.x", "unique")
    assert stand is not None
    assert (stand.node, stand.expected) == ("n2", ("n1", "n2", "n3"))
    assert stand.session.startswith("7.") and stand.session.endswith(".2")


def test_a_nodes_second_task_has_nothing_to_do() -> None:
    assert node_context({**STEP, "SLURM_LOCALID": "1"}, "host", "unique") is None


def test_without_slurm_a_node_is_alone_and_in_a_batch_script_told_about_srun() -> None:
    alone = node_context({}, "host.x", "unique")
    assert alone is not None
    assert (alone.node, alone.expected, alone.session, alone.note) == ("host", ("host",), "unique", "")
    batch = node_context({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1"}, "h", "unique")
    assert batch is not None
    assert batch.expected == ("n1",) and "srun" in batch.note


def test_a_broken_slurm_environment_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="SLURM_NODEID"):
        node_context({**STEP, "SLURM_NODEID": "x"}, "host", "unique")


def test_the_directory_is_by_default_where_runs_are_or_would_be_made() -> None:
    assert directory_of("a/../b", {}, "/cwd", lambda _: False) == "/cwd/b"
    assert directory_of(None, {}, "/cwd", lambda _: True) == "/cwd/ftslurm-runs"
    assert directory_of(None, {"SLURM_SUBMIT_DIR": "/sub"}, "/cwd", lambda _: False) == "/sub"
    assert directory_of(None, {"FTSLURM_SHARED_DIR": "/s/runs"}, "/cwd", lambda _: True) == "/s/runs"


def test_a_listing_that_hides_a_file_is_a_warning_to_who_relies_on_listings() -> None:
    found = judged({"n1": result(unlisted=["n2"]), "n2": result()}, ("n1", "n2"), ("n1", "n2"))
    assert said(list(found.findings)) == [(WARNING, "listing", ("n1",))]
    assert "lacked n2's file" in found.findings[0].text
