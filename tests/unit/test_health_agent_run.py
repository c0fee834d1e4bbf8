"""What one look hands on to its agent and to the next look."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.health.agent_run import facts_to_keep, read_facts, write_facts
from ftslurm.health.check import SETS, Check
from ftslurm.health.result import RunResult, decode, encode
from ftslurm.health.verdict import Finding, Json, Judgement, Verdict
from ftslurm.records.health import FAIL, OK


def check(name: str, lasting: bool = True) -> Check:
    return Check(name, "", frozenset(SETS), 1.0, lambda context: {}, lambda *facts: Judgement(""), lasting)


def verdict(name: str, status: str, facts: Json | None) -> Verdict:
    return Verdict(name, status, "", (), 0.1, facts)


def test_a_result_comes_back_as_it_was_sent_but_for_its_facts() -> None:
    finding = Finding(FAIL, "GPU 3", "gone", "Reset it.")
    looked = RunResult(
        (Verdict("gpu-count", FAIL, "7 of 8", (finding,), 0.2, {"a": 1}),), (41, 42), 0.3, ("gpu-count",)
    )
    back = decode(encode(looked).encode())
    assert back == looked and back.verdicts[0].facts is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"verdicts": [{"check": 1}]}', b"null"])
def test_rubbish_is_no_result(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_the_next_run_is_compared_with_this_one() -> None:
    looked = RunResult((verdict("a", OK, {"n": 2}), verdict("b", OK, None)), (), 0.0)
    assert facts_to_keep([check("a"), check("b")], {"a": {"n": 1}, "c": {"n": 9}}, looked) == {
        "a": {"n": 2},
        "c": {"n": 9},
    }


def test_while_a_check_fails_it_is_compared_with_the_last_run_without_a_failure() -> None:
    looked = RunResult(
        (verdict("a", FAIL, {"n": 2}), verdict("b", FAIL, {"n": 2}), verdict("c", FAIL, {"n": 2})), (), 0.0
    )
    before: dict[str, Json] = {"a": {"n": 1}, "b": {"n": 1}}
    kept = facts_to_keep([check("a"), check("b", lasting=False), check("c")], before, looked)
    assert kept == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 2}}


def test_facts_survive_a_full_disk_and_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "facts"
    write_facts(str(path), {"a": {"n": 1}})
    assert read_facts(str(path)) == {"a": {"n": 1}}
    write_facts(str(tmp_path / "gone" / "facts"), {"a": {}})
    path.write_text("[1]")
    assert read_facts(str(path)) == {}
    path.write_bytes(b"\xff{")
    assert read_facts(str(path)) == {}
