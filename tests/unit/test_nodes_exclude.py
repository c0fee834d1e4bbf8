"""The files of nodes that are excluded: what is written, read back, edited by hand, and when it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from ftslurm.nodes.exclude import STRIKE_WINDOW_NS, Exclusions, folder, strikes_within, why_repeat_offender
from ftslurm.nodes.record import KEPT_STRIKES, SCHEMA, STRIKES_SCHEMA, Exclusion, Strike
from ftslurm.sharedfs.rundir import RunDirectoryError
from ftslurm.testing.memoryfs import AFTER, BEFORE, MemoryFileSystem, Operation

HOUR = 3600 * 10**9
DAY = 24 * HOUR
NOW = 1_795_000_000 * 10**9
DIRECTORY = f"/shared/ftslurm-runs/excluded-{os.geteuid()}"


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.fixture
def files(fs: MemoryFileSystem) -> Exclusions:
    return Exclusions(fs, DIRECTORY)


def put(fs: MemoryFileSystem, name: str, content: str) -> None:
    fs.makedirs(f"{DIRECTORY}/strikes")
    fs.create(f"{DIRECTORY}/{name}", content.encode(), durable=False)


def edited(schema: str = SCHEMA, **fields: object) -> str:
    return json.dumps({"schema": schema, "version": 1, **fields})


def between(fs: MemoryFileSystem, path: str, meanwhile: Callable[[], object]) -> Exclusions:
    """Return files whose owner is overtaken, once: just before it puts its new content in place under that path."""
    todo = [meanwhile]

    def hook(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.name == "rename" and operation.path == f"{DIRECTORY}/{path}" and todo:
            todo.pop()()

    return Exclusions(fs.client(hook), DIRECTORY)


def test_where_nothing_was_excluded_yet_no_directory_is_needed(files: Exclusions, fs: MemoryFileSystem) -> None:
    assert files.read() == {} and files.of("n1", NOW) is None and files.allow("n1") is False
    assert (files.problems, files.unreadable, fs.files()) == ((), None, {})


def test_a_node_is_excluded_with_reason_author_and_end_and_read_back_so(files: Exclusions) -> None:
    files.exclude("n17", "2 ECC errors\n on GPU 3", "ada", NOW + DAY, NOW)
    expected = Exclusion("n17", "2 ECC errors on GPU 3", "ada", NOW, NOW + DAY)
    assert files.read() == {"n17": expected}
    assert files.of("n17", NOW) == expected
    assert files.of("n17", NOW + DAY) is None, "its time is over"
    assert files.of("n1", NOW) is None


def test_without_an_end_a_node_stays_aside_until_it_is_allowed(files: Exclusions) -> None:
    files.exclude("n17", "", "ada", None, NOW)
    assert files.of("n17", NOW + 1000 * DAY) is not None
    assert files.allow("n17") is True
    assert files.of("n17", NOW) is None and files.read() == {}


def test_a_file_removed_by_hand_allows_the_node_again(files: Exclusions, fs: MemoryFileSystem) -> None:
    files.exclude("n17", "", "ada", None, NOW)
    fs.unlink(f"{DIRECTORY}/n17.json")
    assert files.of("n17", NOW) is None


def test_setting_aside_anew_changes_reason_and_end_and_keeps_since_and_strikes(files: Exclusions) -> None:
    files.add_strike("n17", "job-7", "CUDA error", NOW - HOUR)
    files.exclude("n17", "first", "ada", NOW + DAY, NOW)
    again = files.exclude("n17", "second", "run job-8", NOW + 2 * DAY, NOW + HOUR)
    assert (again.reason, again.by, again.since_ns, again.until_ns) == ("second", "run job-8", NOW, NOW + 2 * DAY)
    assert [strike.run for strike in again.strikes] == ["job-7"]
    later = files.exclude("n17", "third", "ada", None, NOW + 3 * DAY)
    assert later.since_ns == NOW + 3 * DAY, "the one before was over"


def test_a_strike_alone_sets_nothing_aside(files: Exclusions) -> None:
    known = files.add_strike("n17", "job-7", "signal 7\x1b[31m", NOW)
    assert known.strikes == (Strike(NOW, "job-7", "signal 7 [31m"),)
    assert files.of("n17", NOW) is None and list(files.read()) == ["n17"]
    assert why_repeat_offender(known, NOW) is None


def test_the_same_strike_counts_once(files: Exclusions) -> None:
    files.add_strike("n17", "job-7", "signal 7", NOW)
    assert len(files.add_strike("n17", "job-7", "signal 7", NOW).strikes) == 1


def test_two_strikes_within_a_week_exclude_a_node(files: Exclusions) -> None:
    files.add_strike("n17", "job-7", "signal 7", NOW)
    known = files.add_strike("n17", "job-8", "CUDA error", NOW + DAY)
    reason = why_repeat_offender(known, NOW + DAY)
    assert reason == "2 failures began here within 7 days; the last, in job-8: CUDA error"
    assert why_repeat_offender(known, NOW + STRIKE_WINDOW_NS + 1) is None
    assert strikes_within(None, NOW) == []


def test_a_strike_does_not_end_or_begin_an_exclusion_of_people(files: Exclusions) -> None:
    files.exclude("n17", "smells", "ada", NOW + DAY, NOW)
    known = files.add_strike("n17", "job-7", "signal 7", NOW + HOUR)
    assert (known.reason, known.until_ns) == ("smells", NOW + DAY)
    assert files.of("n17", NOW + HOUR) == known


def test_a_node_excluded_while_a_strike_is_noted_keeps_both(fs: MemoryFileSystem, files: Exclusions) -> None:
    coordinator = between(fs, "strikes/n17.json", lambda: files.exclude("n17", "smells", "ada", None, NOW))
    coordinator.add_strike("n17", "job-7", "signal 7", NOW)
    known = files.of("n17", NOW)
    assert known is not None and (known.reason, [strike.run for strike in known.strikes]) == ("smells", ["job-7"])


def test_a_strike_noted_while_a_node_is_excluded_or_taken_back_stays(fs: MemoryFileSystem, files: Exclusions) -> None:
    people = between(fs, "n17.json", lambda: files.add_strike("n17", "job-7", "signal 7", NOW))
    people.exclude("n17", "smells", "ada", None, NOW)
    known = files.of("n17", NOW)
    assert known is not None and (known.reason, [strike.run for strike in known.strikes]) == ("smells", ["job-7"])
    node = between(fs, "n17.json", lambda: files.add_strike("n17", "job-8", "signal 7", NOW + HOUR))
    node.end("n17", NOW + DAY)
    left = files.read()["n17"]
    assert not left.holds(NOW + DAY) and [strike.run for strike in left.strikes] == ["job-7", "job-8"]


def test_of_two_strikes_at_the_same_instant_one_may_be_lost_and_nothing_else_is(
    fs: MemoryFileSystem, files: Exclusions
) -> None:
    files.add_strike("n17", "job-6", "signal 7", NOW - HOUR)
    files.exclude("n17", "smells", "ada", None, NOW - HOUR)
    one = between(fs, "strikes/n17.json", lambda: files.add_strike("n17", "job-7", "signal 7", NOW))
    one.add_strike("n17", "job-8", "CUDA error", NOW)
    known = files.of("n17", NOW)
    assert known is not None and known.reason == "smells"
    assert [strike.run for strike in known.strikes] == ["job-6", "job-8"]


def test_to_allow_a_node_forgets_its_strikes_too(fs: MemoryFileSystem, files: Exclusions) -> None:
    files.add_strike("n17", "job-7", "signal 7", NOW)
    files.exclude("n17", "smells", "ada", None, NOW)
    assert sorted(fs.files()) == [f"{DIRECTORY}/n17.json", f"{DIRECTORY}/strikes/n17.json"]
    assert files.allow("n17") is True and fs.files() == {}
    files.add_strike("n17", "job-7", "signal 7", NOW)
    assert files.allow("n17") is True and files.allow("n17") is False


OLD = edited(
    node="n17",
    reason="smells",
    by="ada",
    since_ns=NOW,
    until_ns=None,
    strikes=[{"time_ns": NOW - HOUR, "run": "job-6", "reason": "signal 7"}],
)


def test_strikes_in_a_file_of_an_earlier_version_count_with_the_new_ones(
    fs: MemoryFileSystem, files: Exclusions
) -> None:
    put(fs, "n17.json", OLD)
    both = files.add_strike("n17", "job-7", "CUDA error", NOW)
    assert [strike.run for strike in both.strikes] == ["job-6", "job-7"] and both.reason == "smells"
    assert why_repeat_offender(both, NOW) is not None
    assert files.known("n17") == files.read()["n17"] == files.of("n17", NOW) == both
    assert files.add_strike("n17", "job-6", "signal 7", NOW - HOUR) == both, "reported again"
    anew = files.exclude("n17", "worse", "ada", NOW + DAY, NOW)
    assert (anew.reason, anew.strikes) == ("worse", both.strikes) and files.read() == {"n17": anew}
    files.end("n17", NOW + 1)
    assert files.read()["n17"].strikes == both.strikes and files.of("n17", NOW + 1) is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": empty"),
        (edited(), "expected a JSON object of ftslurm/strikes"),
        (edited(STRIKES_SCHEMA, version=2), "made by a newer ftslurm"),
        (edited(STRIKES_SCHEMA, strikes=7), "its strikes are 7, expected a list of objects"),
        (edited(STRIKES_SCHEMA, strikes=[{"reason": 7}]), "its reason is 7"),
    ],
)
def test_broken_strikes_are_reported_and_do_not_change_exclusions(
    content: str, expected: str, files: Exclusions, fs: MemoryFileSystem
) -> None:
    put(fs, "strikes/n17.json", content)
    put(fs, "n17.json", edited(reason="smells"))
    known = files.read()["n17"]
    assert (known.reason, known.strikes) == ("smells", ())
    (problem,) = files.problems
    assert expected in problem and problem.startswith(f"{DIRECTORY}/strikes/n17.json: ")
    assert problem.endswith("n17 counts as one without strikes")
    assert [strike.run for strike in files.add_strike("n17", "job-7", "x", NOW).strikes] == ["job-7"], "begun anew"
    assert files.read()["n17"].holds(NOW) and files.problems == ()


def test_a_folder_of_strikes_that_cannot_be_read_hides_no_exclusion(fs: MemoryFileSystem, files: Exclusions) -> None:
    files.add_strike("n17", "job-7", "signal 7", NOW)
    files.exclude("n17", "smells", "ada", None, NOW)

    def fail(when: str, operation: Operation) -> None:
        if when == BEFORE and operation.path.startswith(f"{DIRECTORY}/strikes"):
            raise OSError(5, "Input/output error", operation.path)

    hurt = Exclusions(fs.client(fail), DIRECTORY)
    assert [known.reason for known in hurt.read().values()] == ["smells"]
    assert hurt.problems == (f"{DIRECTORY}/strikes: Input/output error",)
    assert hurt.of("n17", NOW) is not None
    hurt.exclude("n17", "worse", "ada", None, NOW)
    known = files.of("n17", NOW)
    assert known is not None and (known.reason, len(known.strikes)) == ("worse", 1)


def test_only_the_newest_strikes_are_kept(files: Exclusions) -> None:
    for i in range(KEPT_STRIKES + 4):
        files.add_strike("n17", f"job-{i}", "x", NOW + i)
    known = files.read()["n17"]
    assert [strike.run for strike in known.strikes] == [f"job-{i}" for i in range(4, KEPT_STRIKES + 4)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", ": empty"),
        ('{"schema": "ftslurm/excluded", "version": 1,', "torn or not JSON"),
        ("[]", "found 'list'"),
        ("null", "found 'NoneType'"),
        ('{"reason": "no schema"}', "found None"),
        (edited(version=2), "made by a newer ftslurm"),
        (edited(version="1"), "its version is '1'"),
        (edited(until_ns="tomorrow"), "its until_ns is 'tomorrow', expected nanoseconds since the epoch"),
        (edited(until_ns=1.5), "its until_ns is 1.5"),
        (edited(since_ns=-3), "its since_ns is -3"),
        (edited(since_ns=True), "its since_ns is True"),
        (edited(since_ns=1 << 70), "expected nanoseconds"),
        (edited(reason=["a"]), "its reason is ['a'], expected a text"),
        (edited(strikes={}), "its strikes are {}, expected a list of objects"),
        (edited(strikes=[1]), "its strikes are [1]"),
        (edited(strikes=[{"time_ns": "x"}]), "its time_ns is 'x'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_broken_by_hand_is_reported_in_one_line_and_its_node_is_allowed(
    content: str, expected: str, files: Exclusions, fs: MemoryFileSystem
) -> None:
    put(fs, "n17.json", content)
    files.exclude("n3", "", "ada", None, NOW)
    assert list(files.read()) == ["n3"], "the others' files count as ever"
    (problem,) = files.problems
    assert expected in problem and problem.startswith(f"{DIRECTORY}/n17.json: ") and "n17 counts as allowed" in problem
    assert "\n" not in problem
    assert files.of("n17", NOW) is None and len(files.problems) == 1


def test_what_may_be_left_out_by_hand_is(files: Exclusions, fs: MemoryFileSystem) -> None:
    put(fs, "n17.json", edited())
    known = files.of("n17", NOW)
    assert known == Exclusion("n17", "no reason given", "", 0, None) and files.problems == ()


def test_a_file_copied_by_hand_counts_for_the_node_of_its_name_with_a_note(
    files: Exclusions, fs: MemoryFileSystem
) -> None:
    put(fs, "n18.json", edited(node="n17", reason="same rack"))
    assert files.read()["n18"].reason == "same rack"
    assert files.problems == (f"{DIRECTORY}/n18.json: it names node 'n17'; the file's name counts: n18",)


def test_leftovers_of_editors_and_other_files_are_ignored(files: Exclusions, fs: MemoryFileSystem) -> None:
    for name in (".n17.json.swp", "n17.json~", "notes.txt", ".n17.json.0123.tmp", ".json"):
        put(fs, name, "{")
        put(fs, f"strikes/{name}", "{")
    assert files.read() == {} and files.problems == ()


def test_a_file_with_a_name_that_no_node_can_have_is_reported(files: Exclusions, fs: MemoryFileSystem) -> None:
    put(fs, "a b\x1b.json", edited())
    assert files.read() == {}
    (problem,) = files.problems
    assert "its name is no valid node name" in problem and "\x1b" not in problem


@pytest.mark.parametrize("name", ["", "../n1", "n 1", ".n1", "n1/../n2", "x" * 200])
def test_no_name_leads_out_of_the_directory(name: str, files: Exclusions, fs: MemoryFileSystem) -> None:
    for call in (
        lambda: files.exclude(name, "", "ada", None, NOW),
        lambda: files.add_strike(name, "job-7", "x", NOW),
        lambda: files.allow(name),
    ):
        with pytest.raises(RunDirectoryError, match="node name"):
            call()
    assert files.of(name, NOW) is None and fs.files() == {}


def test_errors_of_the_filesystem_are_reported_and_never_raised_to_readers(fs: MemoryFileSystem) -> None:
    Exclusions(fs, DIRECTORY).exclude("n17", "", "ada", None, NOW)

    def fail(when: str, operation: Operation) -> None:
        if when == BEFORE:
            raise OSError(5, "Input/output error", operation.path)

    files = Exclusions(fs.client(fail), DIRECTORY)
    assert files.read() == {} and files.unreadable == f"{DIRECTORY}: Input/output error"
    assert files.of("n17", NOW) is None and files.problems == (f"{DIRECTORY}: Input/output error",)
    with pytest.raises(OSError, match="Input/output"):
        files.exclude("n17", "", "ada", None, NOW)


def test_a_rename_whose_reply_was_lost_is_done(fs: MemoryFileSystem) -> None:
    def lose(when: str, operation: Operation) -> None:
        if when == AFTER and operation.name == "rename":
            raise FileNotFoundError(2, "No such file or directory", operation.path)

    Exclusions(fs.client(lose), DIRECTORY).exclude("n17", "bad", "ada", None, NOW)
    assert Exclusions(fs, DIRECTORY).read()["n17"].reason == "bad"


def test_the_directory_is_beside_the_run_directories_or_as_chosen() -> None:
    assert folder("/shared/ftslurm-runs/job-7") == DIRECTORY
    assert folder("/shared/ftslurm-runs/job-7", "/elsewhere/x") == "/elsewhere/x"
