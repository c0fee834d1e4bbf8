"""One format of counts, durations, sizes and ranges in all commands; foreign text harms no terminal."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ftslurm.text import clip, cut_middle, duration, first_line, names, one_line, plural, ranges, safe, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (-1.0, "0 s"),
        (0.0, "0 s"),
        (0.000_001, "0 s"),
        (0.000_4, "0.4 ms"),
        (0.0032, "3.2 ms"),
        (0.0123, "12 ms"),
        (0.47, "470 ms"),
        (0.9996, "1 s"),
        (1.25, "1.25 s"),
        (9.996, "10 s"),
        (34.4, "34 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.7, "1 h"),
        (7500, "2 h 5 min"),
        (7530, "2 h 5 min"),
        (86_400, "1 d"),
        (356_400, "4 d 3 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (100 << 20, "100 MiB"),
        (3 << 39, "1.5 TiB"),
        (1 << 60, "1024 PiB"),
    ],
)
def test_a_size_has_three_digits(number: float, text: str) -> None:
    assert size(number) == text


def test_things_are_counted() -> None:
    assert [plural(n, "node") for n in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert plural(2, "process") == "2 processes"


def test_ranks_and_names_are_compressed() -> None:
    assert ranges([7, 0, 1, 2, 3]) == "0-3, 7"
    assert ranges([]) == ""
    assert names(["a", "b", "c", "d", "e"]) == "a, b, c, d and 1 more"
    assert clip("abcdefghij", 8) == "abcde..."
    assert first_line("\n \n a\x07b \nmore") == "a\\x07b"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        (" 10%|#\r 50%|###\r100%|####\r\n", "100%|####"),
        ("a\tb", "a       b"),
        ("bell\x07", "bell\\x07"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("right\u202eleft", "right\\u202eleft"),
        ("half \ud800", "half \\ud800"),
        ("äöü 漢字", "äöü 漢字"),
    ],
)
def test_foreign_text_is_made_safe_and_stays_readable(raw: str, shown: str) -> None:
    assert safe(raw) == shown


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ("  a\tb  ", "a       b"),
        ("\x1b[31mred\x07", "red\\x07"),
        ("a\nb", "a b"),
        ("\udcff", "\\udcff"),
        ("x" * 300, "x" * 197 + "..."),
        ("", ""),
    ],
)
def test_foreign_text_is_one_line(raw: str, line: str) -> None:
    assert one_line(raw) == line


def test_it_needs_no_other_module_so_that_agents_can_use_it() -> None:
    code = "import re, sys; before = set(sys.modules); import ftslurm.text; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(found) <= {"__future__", "ftslurm", "ftslurm.text"}


def test_a_name_is_not_cut_for_a_negation() -> None:
    text = "OSError: no_such_library.so.3: cannot open shared object file: No such file or directory"
    for limit in range(66, len(text)):
        assert "no_such_library.so.3" in cut_middle(text, limit), limit


def test_a_negation_before_the_kept_end_is_kept_with_it() -> None:
    text = (
        "Unsupported: Detected data-dependent branching in the function. Dynamo does not support dynamic control flow."
    )
    for limit in range(52, len(text)):
        shown = cut_middle(text, limit)
        assert " support dynamic" not in shown or " not support dynamic" in shown, limit
        assert len(shown) <= limit + 5


def test_a_number_is_not_cut_to_another_one() -> None:
    text = "hung in queue.get at threadqueue_of_loader.py:1177 in train, and the rest of a long line that is cut here"
    for limit in range(len(text) - 1, 60, -1):
        assert re.search(r"py:\d{1,3}\b(?!\d) \.\.\.", cut_middle(text, limit)) is None, limit
