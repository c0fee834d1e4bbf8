"""Slurm node lists: what they stand for, what is refused, and back again."""

from __future__ import annotations

import random
import time

import pytest

from ftslurm.slurm.nodelist import MAX_NAMES, NodeListError, compress, expand

SEED = 20260101


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        (" \t\n", []),
        ("n1", ["n1"]),
        ("a,b", ["a", "b"]),
        (" a , b\n", ["a", "b"]),
        ("a b\nc", ["a", "b", "c"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[7]", ["n7"]),
        ("n[1,3-5]", ["n1", "n3", "n4", "n5"]),
        ("n[1,3-5],m", ["n1", "n3", "n4", "n5", "m"]),
        ("n[008-011]", ["n008", "n009", "n010", "n011"]),
        ("n[08-11,5]", ["n08", "n09", "n10", "n11", "n5"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[1-003]", ["n1", "n2", "n3"]),
        ("[1-2]", ["1", "2"]),
        ("n[2,1,2]", ["n2", "n1", "n2"]),
        ("n1,n1", ["n1", "n1"]),
        ("n5[1-2]", ["n51", "n52"]),
        ("rack[0-1]node[0-2]", [f"rack{r}node{n}" for r in "01" for n in "012"]),
        ("n[1-2][3-4]", ["n13", "n14", "n23", "n24"]),
        ("a.b-c_d[1-2]", ["a.b-c_d1", "a.b-c_d2"]),
        ("n[1-3]-ib", ["n1-ib", "n2-ib", "n3-ib"]),
        ("n[1-2].x.org,m", ["n1.x.org", "n2.x.org", "m"]),
        ("r[1-2]n[3-4]-ib", ["r1n3-ib", "r1n4-ib", "r2n3-ib", "r2n4-ib"]),
    ],
)
def test_a_node_list_stands_for_these_names(text: str, names: list[str]) -> None:
    assert expand(text) == names


def test_of_three_brackets_the_middle_one_runs_slowest_as_in_slurm() -> None:
    assert expand("a[0-1]b[0-1]c[0-1]") == [f"a{a}b{b}c{c}" for b in "01" for a in "01" for c in "01"]


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("n[1-3", 6, "']' to close the bracket opened at position 2"),
        ("a,n[", 5, "']' to close"),
        ("n1]", 3, "a '[' before this ']'"),
        ("n[1-2]]", 7, "a '[' before this ']'"),
        ("n[3-1]", 3, "does not run backwards"),
        ("n[1,10-9]", 5, "does not run backwards"),
        ("n[a]", 3, "a number or a range"),
        ("n[1-]", 3, "a number or a range"),
        ("n[-1]", 3, "a number or a range"),
        ("n[1-2-3]", 3, "a number or a range"),
        ("n[1 - 2]", 3, "a number or a range"),
        ("n[0x1]", 3, "a number or a range"),
        ("n[\u0661]", 3, "a number or a range"),
        ("n[[1-2],5]", 3, "brackets do not nest"),
        ("n[]", 3, "a number or a range"),
        ("n[1,]", 5, "a number or a range"),
        ("n[,1]", 3, "a number or a range"),
        ("a,,b", 3, "a node name"),
        (",a", 1, "a node name"),
        ("a,", 3, "a node name"),
        (",", 1, "a node name"),
        ("a/b", 2, "a letter, a digit"),
        ("n\u00e9", 2, "a letter, a digit"),
        ("n\0", 2, "a letter, a digit"),
        ("-x", 1, "first character"),
        ("..", 1, "first character"),
        ("n[0-70000]", 1, "at most 65536 names"),
        ("m,n[0-9999][0-9999]", 3, "at most 65536 names"),
        ("n[1-" + "9" * 18 + "]", 1, "at most 65536 names"),
        ("n[" + "9" * 5000 + "]", 3, "at most 18 digits"),
    ],
)
def test_a_malformed_list_names_itself_the_position_and_what_was_expected(
    text: str, position: int, expected: str
) -> None:
    with pytest.raises(NodeListError) as caught:
        expand(text)
    message = str(caught.value)
    assert expected in message
    assert f"at position {position}, found" in message
    assert ascii(text)[1:-1] in message or "..." in message
    assert "\n" not in message
    assert len(message) < 600


def test_as_many_names_as_the_limit_allows_are_read_and_one_more_is_refused() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES
    with pytest.raises(NodeListError, match="at most"):
        expand(f"n[1-{MAX_NAMES}],m")


def test_thousands_of_brackets_do_not_exhaust_the_stack() -> None:
    assert expand("[1]" * 5000) == ["1" * 5000]


def test_the_place_of_an_error_is_shown_in_a_long_list() -> None:
    text = ",".join(f"node{i}" for i in range(3000)) + ",bad[x],tail"
    with pytest.raises(NodeListError, match=r"bad\[x\]"):
        expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n1", "n2", "n3", "n5"], "n[1-3,5]"),
        (["n008", "n009", "n010", "n011"], "n[008-011]"),
        (["n9", "n10", "n011"], "n[9-10,011]"),
        (["n3", "n2", "n1"], "n[3,2,1]"),
        (["a", "n1", "n2", "b", "n3"], "a,n[1-2],b,n3"),
        (["n1", "n1"], "n[1,1]"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
        (["r0n0", "r0n1", "r1n0"], "r0n[0-1],r1n0"),
        (["n" + "9" * 30], "n" + "9" * 30),
    ],
)
def test_names_are_written_as_a_short_list_that_slurm_takes(names: list[str], text: str) -> None:
    assert compress(names) == text


@pytest.mark.parametrize("name", ["", "a,b", "a[1]", "a b", "-x", "a/b", "n1\n"])
def test_what_is_no_node_name_is_not_written_into_a_list(name: str) -> None:
    with pytest.raises(NodeListError, match="expected a node name"):
        compress(["fine", name])


def test_more_names_than_a_list_may_have_are_not_written() -> None:
    with pytest.raises(NodeListError, match="at most"):
        compress(f"n{i}" for i in range(MAX_NAMES + 1))


def a_name(source: random.Random) -> str:
    width = source.choice([1, 1, 2, 3, 20])
    stem = source.choice(["n", "n", "n", "rack1n", "a-b.c_", "", "0"])
    return f"{stem}{source.randint(0, 12):0{width}d}{source.choice(['', '', '', '-ib', '.x'])}"


def test_expand_undoes_compress_for_any_names() -> None:
    source = random.Random(SEED)
    for case in range(3000):
        names = [a_name(source) for _ in range(source.randrange(12))]
        if source.random() < 0.5:
            names.sort()
        assert expand(compress(names)) == names, f"seed {SEED}, case {case}: {names}"


def test_compress_undoes_expand_for_runs_of_nodes() -> None:
    source = random.Random(SEED + 1)
    for case in range(500):
        width, first = source.randint(1, 5), source.randint(0, 300)
        names = [f"node{i:0{width}d}" for i in range(first, first + source.randint(2, 40))]
        text = compress(names)
        assert text == f"node[{names[0][4:]}-{names[-1][4:]}]", f"seed {SEED + 1}, case {case}"
        assert expand(text) == names


def test_garbage_gives_names_or_a_node_list_error_and_nothing_else() -> None:
    source = random.Random(SEED + 2)
    alphabet = "[[]],,--0123456789ab. \t\n_/\0\u0661\u00b2\ud800%s{}"
    refused = 0
    for case in range(20_000):
        text = "".join(source.choice(alphabet) for _ in range(source.randrange(14)))
        try:
            names = expand(text)
        except NodeListError as error:
            refused += 1
            names, message = [], str(error)
        else:
            message = ""
        assert message.isprintable(), f"seed {SEED + 2}, case {case}: {text!a}"
        assert expand(compress(names)) == names, f"seed {SEED + 2}, case {case}: {text!a}"
    assert 0 < refused < 20_000


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, "n1," * 50_000, "9" * 50_000, "[1]" * 20_000 + "]", "a" + " " * 50_000 + "b"],
    ids=["open", "names", "digits", "brackets", "gap"],
)
def test_hostile_text_is_judged_in_linear_time(text: str) -> None:
    began = time.process_time()
    try:
        expand(text)
    except NodeListError:
        pass
    assert time.process_time() - began < 2.0
