"""Lines of the node's pipe: torch's, ours, and whatever else may stand there."""

from __future__ import annotations

import json
import os
import random

import pytest

from ftslurm.monitor.message import (
    LIMIT,
    TEXT_LIMIT,
    ClientMessage,
    MalformedMessage,
    Timer,
    encode,
    newest,
    parse,
    shown,
)
from ftslurm.monitor.timeouts import Timeouts
from ftslurm.monitor.watchdog import Watchdog

TORCH = {"version": 1, "pid": 123, "scope_id": "train.py#12", "expiration_time": 1700000000.25, "signal": 9}


def line(**changes: object) -> bytes:
    return json.dumps({k: v for k, v in {**TORCH, **changes}.items() if v is not ...}).encode()


def reason(text: bytes) -> str:
    message = parse(text)
    assert isinstance(message, MalformedMessage), message
    assert len(message.reason) < 300
    return message.reason


def test_torchs_request_is_a_timer() -> None:
    assert parse(line()) == Timer(123, "train.py#12", 1700000000.25, 9)
    assert parse(line(expiration_time=0, signal=15, later="field")) == Timer(123, "train.py#12", 0.0, 15)


def test_torchs_own_messages_are_understood() -> None:
    timer = pytest.importorskip("torch.distributed.elastic.timer.file_based_local_timer")
    request = timer.FileTimerRequest(worker_pid=5, scope_id="\udcff/x.py#3", expiration_time=12.5, signal=9)
    assert parse(request.to_json().encode()) == Timer(5, "\udcff/x.py#3", 12.5, 9)


def test_a_negative_expiration_is_a_release() -> None:
    assert parse(line(expiration_time=-1, signal=0)) == Timer(123, "train.py#12", None, 0)
    assert parse(line(expiration_time=-0.5)) == Timer(123, "train.py#12", None, 9)


def test_a_signal_below_one_only_reports() -> None:
    assert parse(line(signal=-3)) == Timer(123, "train.py#12", 1700000000.25, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": True},
        {"pid": "1"},
        {"pid": 0},
        {"pid": -1},
        {"pid": 2**40},
        {"pid": 1.0},
        {"pid": ...},
        {"pid": None},
        {"version": ...},
        {"version": True},
        {"version": "1"},
        {"scope_id": 3},
        {"scope_id": None},
        {"scope_id": ...},
        {"expiration_time": ...},
        {"expiration_time": True},
        {"expiration_time": "12"},
        {"expiration_time": float("nan")},
        {"expiration_time": float("inf")},
        {"expiration_time": -float("inf")},
        {"expiration_time": 10**400},
        {"expiration_time": [1]},
        {"signal": 65},
        {"signal": True},
        {"signal": 9.0},
        {"signal": ...},
    ],
)
def test_a_field_of_the_wrong_kind_is_garbage(changes: dict[str, object]) -> None:
    reason(line(**changes))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0" * 100,
        b"null",
        b"[]",
        b"3",
        b"{",
        b"{}",
        b"{]",
        b'{"a":' * 800,
        b'{"version": 1, "pid": ' + b"9" * 4000 + b"}",
        b'{"expiration_time": 1e999}',
        b"\xff\xfe",
        b'{"scope_id": "\xff"}',
        b"x" * (LIMIT + 1),
        line(scope_id="x" * LIMIT),
        line()[:-1],
        line() + line(),
        b'{"pid": 1, ' + line()[1:],
        b'{"ftslurm": 1}',
        b'{"ftslurm": 2, "kind": "misuse", "rank": 0, "pid": 1}',
        b'{"ftslurm": 1, "kind": "shutdown", "rank": 0, "pid": 1}',
        b'{"ftslurm": 1, "kind": "misuse", "rank": -1, "pid": 1}',
        b'{"ftslurm": 1, "kind": "misuse", "rank": 0, "pid": 1, "what": 3}',
        b'{"ftslurm": 1, "kind": ["misuse"], "rank": 0, "pid": 1}',
    ],
)
def test_what_is_no_message_is_garbage_with_a_reason(text: bytes) -> None:
    if text == line() + line():
        assert parse(text) == parse(line())  # half lines are given up, whole ones are not
    else:
        assert reason(text)


def test_a_duplicate_key_is_refused() -> None:
    assert "duplicate key" in reason(line()[:-1] + b', "pid": 124}')


def test_a_line_behind_the_half_of_another_is_not_lost() -> None:
    for half in (b'{"version": 1, "pid": 12', b"echo", line(scope_id="x")[:-1]):
        assert parse(half + line()) == parse(line())
        assert parse(half + encode(ClientMessage("finished", 1, 2)).strip()) == ClientMessage("finished", 1, 2)
    inside = line(scope_id='{"version": 1, "pid": 1')
    assert isinstance(parse(inside), Timer)
    assert isinstance(parse(b"x" + inside[:-1]), MalformedMessage)


@pytest.mark.parametrize(
    "message",
    [
        ClientMessage("timeouts", 0, 1),
        ClientMessage("misuse", 3, 4, "opened twice", 'da"ta\n\udcff'),
        ClientMessage("finished", 2, 2**22),
    ],
)
def test_our_own_messages_survive_the_pipe(message: ClientMessage) -> None:
    assert encode(message).endswith(b"\n") and encode(message).count(b"\n") == 2
    assert parse(encode(message).strip()) == message


def test_our_own_messages_are_short_whatever_they_contain() -> None:
    message = ClientMessage("misuse", 2**20, 2**22, "\U0001f600" * 10000, "\x01" * 10000)
    encoded = encode(message)
    assert len(encoded) <= LIMIT
    assert parse(encoded.strip()) == ClientMessage(
        "misuse", 2**20, 2**22, "\U0001f600" * TEXT_LIMIT, "\x01" * TEXT_LIMIT
    )


def test_what_strangers_wrote_is_shown_in_one_short_printable_line() -> None:
    assert shown("a\n\x1b[2J\udcffä") == r"'a\n\x1b[2J\udcff\xe4'"
    assert len(shown("y" * 100_000)) < 130


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            data[at : at + 1] = rng.randbytes(1)
        elif kind == 1:
            del data[at : at + rng.randrange(20)]
        elif kind == 2:
            other = rng.choice(seeds)
            data[at:at] = other[rng.randrange(len(other)) :][: rng.randrange(1, 60)]
        elif kind == 3:
            data[at:at] = rng.choice(
                [b"{", b"}", b"[", b'"', b"\\", b"\\u", b"1e9", b"NaN", b"-", b"true", b"\xc3", b","]
            )
        else:
            data *= rng.randrange(1, 4)
    return bytes(data).replace(b"\n", b"")


def test_random_and_mutated_lines_never_raise_and_never_reach_a_stranger() -> None:
    seed = os.environ.get("FTSLURM_FUZZ_SEED") or str(random.randrange(10**9))
    number = int(os.environ.get("FTSLURM_FUZZ_LINES", "10000"))
    print(f"FTSLURM_FUZZ_SEED={seed}")
    rng = random.Random(seed)
    seeds = [
        line(),
        line(expiration_time=-1),
        line(pid=7, expiration_time=1e9 + 5),
        *(encode(ClientMessage(kind, 0, 123, "what", "name")).strip() for kind in ("misuse", "timeouts", "finished")),
        b'{"ftslurm": 1, "kind": "misuse", "rank": 0, "pid": 123, "what": "\\ud800"}',
    ]
    watch = Watchdog(Timeouts(heartbeat_s=10, hang_s=1e6), lambda _: None, lambda pid: 0 if pid in (123, 7) else None)
    now, notes, expiries = 0.0, 0, 0
    watch.begin(0, now)
    for _ in range(number):
        text = mutated(rng, seeds) if rng.random() < 0.9 else rng.randbytes(rng.randrange(200)).replace(b"\n", b"")
        now += 0.001
        notes += watch.receive(text, now, 1e9 + now) is not None
        for expiry in watch.due(now):
            expiries += 1
            assert expiry.local_rank == 0 and 0 <= expiry.signal <= 64 and "\n" not in expiry.what
            if expiry.signal:
                watch.end(0)
                watch.begin(0, now)
    assert watch.counts["garbage"] > number / 10 and watch.counts["stranger"] > 0
    assert notes <= 110
    print(f"{number} lines: {dict(watch.counts)}, {notes} notes, {expiries} expiries")


def _timer_line(pid: int, scope: str, expires: float) -> bytes:
    fields = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expires, "signal": 9}
    return json.dumps(fields).encode()


def test_of_lines_read_at_one_moment_only_the_last_of_each_timer_counts_and_all_that_is_no_timer() -> None:
    renewed = [_timer_line(5, "a", 1.7e9 + n) for n in range(50)]
    other, elsewhere, released = _timer_line(5, "b", 1.0), _timer_line(6, "a", 2), _timer_line(6, "a", -1)
    ours = encode(ClientMessage("finished", 0, 5)).strip()
    torn = renewed[0][:-5] + renewed[1]
    lines = [*renewed[:20], other, ours, elsewhere, b"garbage", torn, ours, *renewed[20:], released]
    assert newest(lines) == [other, ours, b"garbage", torn, ours, renewed[-1], released]
    assert newest([]) == []


def test_a_timer_that_is_not_written_as_torch_writes_it_is_never_taken_for_out_of_date() -> None:
    strange = [b'{"expiration_time": 1, "pid": 5}', b'{"expiration_time": 1, "pid": 6}', b'{"version": 1, "pid": 5}']
    assert newest([*strange, *strange]) == [*strange, *strange]
