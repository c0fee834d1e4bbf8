"""Signs of life by datagrams: they vouch for an agent at a time of the receiver's clock, and do no more than that."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ftslurm.records.node import NodeRecord, first_record
from ftslurm.rendezvous.contacts import ANSWER_S, DEAD_SIGNS, HEARD_SIGNS, REFUSED, UNANSWERED, Contacts
from ftslurm.testing.clock import VirtualClock

INTERVAL_S = 0.5


class Wire:
    """A channel that keeps what is sent, and reports what a test has put there."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.asked: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.answered: list[tuple[str, str]] = []

    def send(self, record: NodeRecord, data: bytes) -> None:
        self.sent.append(data)

    def ask(self, record: NodeRecord) -> None:
        self.asked.append(record.node)

    def refusals(self) -> list[tuple[str, str]]:
        refused, self.refused = self.refused, []
        return refused

    def answers(self) -> list[tuple[str, str]]:
        answered, self.answered = self.answered, []
        return answered


class Pair:
    """The contacts of two agents on one clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock(start_s=100.0)
        self.wires = {name: Wire() for name in ("n1", "n2")}
        self.records = {
            name: replace(first_record(name, f"secret-{name}", "1.0", 0, 1), counter=1) for name in self.wires
        }
        self.sides = {name: Contacts(name, f"secret-{name}", self.clock.now, self.wires[name]) for name in self.wires}

    def send(self, name: str, deliver: bool = True) -> bytes:
        """Let that agent send a sign to the other one."""
        (other,) = self.sides.keys() - {name}
        self.sides[name].collect()
        self.sides[name].exchange([self.records[other]], self.records[name].counter, 7, at_once=True)
        data = self.wires[name].sent[-1]
        if deliver:
            self.sides[other].receive(data)
        return data

    def talk(self, rounds: int = 3) -> Pair:
        for _ in range(rounds):
            self.send("n1")
            self.send("n2")
            self.clock.advance(INTERVAL_S)
        return self

    def n1_hears_n2(self) -> bool:
        return self.sides["n1"].hears(self.records["n2"])


def test_agents_that_exchange_signs_hear_each_other_and_no_longer_when_they_stop() -> None:
    pair = Pair()
    assert not pair.n1_hears_n2()
    pair.talk()
    assert pair.n1_hears_n2() and pair.sides["n2"].hears(pair.records["n1"])
    contact = pair.sides["n1"].of(pair.records["n2"])
    assert contact is not None and (contact.counter, contact.token) == (1, 7)
    pair.clock.advance(HEARD_SIGNS * INTERVAL_S)
    assert not pair.n1_hears_n2()
    assert pair.sides["n1"].suspects(pair.records["n2"])


def test_a_sign_that_answers_nothing_proves_nothing() -> None:
    pair = Pair()
    for _ in range(5):
        pair.send("n1", deliver=False)
        pair.send("n2")
        pair.clock.advance(INTERVAL_S)
    assert not pair.n1_hears_n2(), "n2 has not heard n1: it may be late, or an earlier one's"


def test_signs_that_a_frozen_agent_had_sent_do_not_prolong_its_life_however_late_they_come() -> None:
    pair = Pair().talk()
    queued = []
    for _ in range(3):
        pair.send("n1")
        queued.append(pair.send("n2", deliver=False))
    pair.clock.advance(60.0)
    for data in queued:
        pair.send("n1", deliver=False)
        pair.sides["n1"].receive(data)
    assert not pair.n1_hears_n2()
    contact = pair.sides["n1"].of(pair.records["n2"])
    assert contact is not None and pair.clock.now() - contact.alive_at >= 60.0


def test_a_sign_of_an_earlier_agent_of_the_node_says_nothing_of_the_present_one() -> None:
    pair = Pair().talk()
    new = replace(pair.records["n2"], incarnation="another")
    assert not pair.sides["n1"].hears(new)
    old = pair.send("n2", deliver=False)
    pair.sides["n1"].exchange([new], 1, 7, at_once=True)
    assert not pair.sides["n1"].receive(old)
    assert not pair.sides["n1"].hears(new)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1] + (b"0" if data[-1:] != b"0" else b"1"),
        lambda data: data.replace(b"n2", b"n3"),
        lambda data: data.replace(b" 7 ", b" 9 "),
        lambda data: data[:-10],
        lambda data: data.rpartition(b" ")[0],
        lambda data: b"",
        lambda data: data + b" ",
        lambda data: b"\xff" * 400,
        lambda data: b"ftslurm sign " + b" " * 20,
        lambda data: data.replace(b"ftslurm sign n2", b"ftslurm sign \xff\xfe"),
    ],
)
def test_a_sign_that_was_changed_or_made_up_is_none(change: Callable[[bytes], bytes]) -> None:
    pair = Pair().talk()
    data = pair.send("n2", deliver=False)
    assert not pair.sides["n1"].receive(change(data))
    assert pair.sides["n1"].receive(data), "the one that was not changed"
    assert not pair.sides["n1"].receive(data), "nor is it one a second time"


def test_signs_do_not_show_what_makes_them_valid() -> None:
    pair = Pair().talk()
    assert not any(b"secret" in data for wire in pair.wires.values() for data in wire.sent)


def silence(pair: Pair, answering: bool, seconds: float) -> str | None:
    """Let n2 be silent; its host answers or not."""
    for _ in range(round(seconds / INTERVAL_S)):
        pair.clock.advance(INTERVAL_S)
        if answering and "n2" in pair.wires["n1"].asked:
            pair.wires["n1"].answered.append(("n2", "secret-n2"))
        pair.send("n1", deliver=False)
    return pair.sides["n1"].evidence(pair.records["n2"])


def heard_and_answering() -> Pair:
    pair = Pair().talk(1)
    pair.wires["n1"].answered.append(("n2", "secret-n2"))
    return pair.talk()


def test_a_frozen_agent_leaves_no_evidence_of_its_death() -> None:
    assert silence(heard_and_answering(), True, 60.0) is None


def test_a_host_that_stops_to_answer_is_evidence_if_it_has_answered_before() -> None:
    assert silence(heard_and_answering(), False, DEAD_SIGNS * INTERVAL_S + ANSWER_S) == UNANSWERED
    assert silence(Pair().talk(), False, 60.0) is None, "a packet filter may drop connections from the start"


def test_a_closed_port_is_evidence_until_the_agent_is_heard_again() -> None:
    pair = heard_and_answering()
    pair.wires["n1"].refused.append(("n2", "secret-n2"))
    assert silence(pair, True, 2.0) == REFUSED
    pair.talk()
    assert pair.sides["n1"].evidence(pair.records["n2"]) is None
    assert silence(pair, True, 60.0) is None


def test_a_refusal_of_an_earlier_agent_is_no_evidence() -> None:
    pair = heard_and_answering()
    pair.wires["n1"].refused.append(("n2", "an earlier one"))
    assert silence(pair, True, 5.0) is None


def test_an_agent_whose_record_has_changed_since_its_last_sign_lives_without_datagrams() -> None:
    pair = heard_and_answering()
    pair.wires["n1"].refused.append(("n2", "secret-n2"))
    pair.records["n2"] = replace(pair.records["n2"], counter=2)
    assert silence(pair, False, 60.0) is None


def test_what_is_proven_is_true_over_any_network() -> None:
    """Delay, loss, repetition and reordering at random: an agent never seems more alive than it was."""
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    pair = Pair()
    alive = {"n1": 0.0, "n2": 0.0}
    flying: list[tuple[float, str, bytes]] = []
    for _ in range(4000):
        pair.clock.advance(rng.uniform(0.0, 0.2))
        now = pair.clock.now()
        name = rng.choice(("n1", "n2"))
        if not (name == "n2" and int(now) % 40 > 20):  # n2 is frozen now and then
            alive[name] = now
            data = pair.send(name, deliver=False)
            for _ in range(rng.choice((0, 1, 1, 1, 2))):
                flying.append((now + rng.choice((0.0, rng.uniform(0.0, 30.0))), name, data))
        for arrival in sorted(one for one in flying if one[0] <= now):
            flying.remove(arrival)
            pair.sides["n2" if arrival[1] == "n1" else "n1"].receive(arrival[2])
        for name, other in (("n1", "n2"), ("n2", "n1")):
            contact = pair.sides[name].of(pair.records[other])
            assert contact is None or contact.alive_at <= alive[other], f"seed {seed}"
    assert pair.sides["n1"].of(pair.records["n2"]) is not None, f"seed {seed}"
