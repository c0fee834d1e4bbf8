"""Signs of life by datagrams: when each other agent was certainly alive, dated by this agent's own clock.

The coordinator and each other agent send each other numbered *signs*. A sign repeats the newest number that its sender
has received from the receiver; so its sender was alive after that number was sent, and has heard it. A datagram that
was delayed, repeated or queued at a frozen process proves nothing newer than that, and no clocks are compared. Signs
bear a code by both agents' incarnations, which only readers of the run directory know.

Signs only vouch that an agent is alive. Without them its node record is read, and the record alone decides. A sign has
the counter of its sender's newest record, too: a record that has not changed need not be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ftslurm.dataclasses import dataclass
from ftslurm.records.node import NodeRecord

try:
    # `hashlib` would add OpenSSL to each agent's memory.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object

SIGN = b"ftslurm sign "
CODE_BYTES, KEY_BYTES = 16, 64
ROUNDS = 128
"""Number of own signs whose times are known: an older one that is repeated proves nothing of use."""
HEARD_SIGNS = 3
"""An agent counts as heard for so many intervals after it was certainly alive: it proves that once in two."""
DEAD_SIGNS = 8
"""An agent with evidence of its death is lost if it gave no sign of life for so many intervals. By then a living agent
that is no longer heard has written its record: it notices that after at most `HEARD_SIGNS` intervals and one, and the
observer's last proof of its life is at most two older than its own of the observer's."""
DEAD_LEAST_S = 2.0
"""The least such silence, in seconds: a guardian that is alive has ended the agent's leftovers by then, and published
why the agent has ended."""
REFUSED = "nothing listens on its port any more"
UNANSWERED = "its host answers no connection any more"
ANSWER_S = 1.0
"""A host that has answered before and does not for so many seconds is thought dead."""
BASELINES, TRIES = 32, 3
"""Number of hosts that are asked at a time whether they answer at all, and how often each one is."""


class Channel(Protocol):
    """Sends datagrams; no call blocks."""

    def send(self, record: NodeRecord, data: bytes) -> None:
        """Send a datagram to that record's agent; best effort."""

    def ask(self, record: NodeRecord) -> None:
        """Ask the host of that record for an answer of its kernel, whatever its processes do."""

    def refusals(self) -> Iterable[tuple[str, str]]:
        """Return the agents (node, incarnation) whose hosts have reported since the last call that a port is closed."""

    def answers(self) -> Iterable[tuple[str, str]]:
        """Return the agents whose hosts have answered since the last call."""


@dataclass
class Contact:
    """Another agent.

    Attributes:
        incarnation: its.
        heard: number of its newest sign.
        heard_at: when that was received, monotonic seconds.
        alive_at: when the agent was certainly alive, monotonic seconds.
        counter: of its newest node record.
        token: of the newest state that it has read.
        refused_at: when its host last reported that its port is closed.
        answers: its host has answered a question.
        asked_at: when its host was asked first since its last answer; None: not since.
        tried: how often its host was asked whether it answers at all.
    """

    incarnation: str
    heard: int = 0
    heard_at: float = float("-inf")
    alive_at: float = float("-inf")
    counter: int = -1
    token: int = 0
    refused_at: float = float("-inf")
    answers: bool = False
    asked_at: float | None = None
    tried: int = 0


class Contacts:
    """The agents with which this one exchanges signs.

    `receive` may be called by another thread than the other methods.

    Args:
        node, incarnation: this agent's.
        now: monotonic clock, seconds.
        channel: sends.

    Attributes:
        interval_s: between two signs to an agent.
    """

    def __init__(self, node: str, incarnation: str, now: Callable[[], float], channel: Channel) -> None:
        self._node = node.encode("utf-8", "surrogateescape")
        self._incarnation = incarnation
        self._now = now
        self._channel = channel
        self.interval_s = 0.5
        self._contacts: dict[str, Contact] = {}
        self._number = 0
        self._sent: deque[float] = deque(maxlen=ROUNDS)
        self._sent_at = float("-inf")

    # Signs

    def exchange(self, records: Iterable[NodeRecord], counter: int, token: int, at_once: bool) -> None:
        """Send a sign to the agents of these records if it is due, and ask the hosts of those that are not heard.

        Args:
            counter: of this agent's newest published record.
            token: of the newest state that it has read.
            at_once: it is due.
        """
        now = self._now()
        # Not quite the interval: the next tick is due after it, and may be a little early.
        if not at_once and now - self._sent_at < 0.9 * self.interval_s:
            return
        self._number += 1
        self._sent.append(now)
        self._sent_at = now
        facts = (counter, token)
        baselines = BASELINES
        for record in records:
            contact = self._contacts.get(record.node)
            if contact is None or contact.incarnation != record.incarnation:
                contact = self._contacts[record.node] = Contact(record.incarnation)
            self._channel.send(record, self._sign(contact, *facts))
            if contact.heard and not self._is_fresh(contact, now):
                self._ask(record, contact, now)
            elif contact.heard and not contact.answers and contact.tried < TRIES and baselines:
                baselines -= 1
                contact.tried += 1
                self._channel.ask(record)

    def _sign(self, contact: Contact, counter: int, token: int) -> bytes:
        text = b"%s%s %d %d %d %d" % (SIGN, self._node, self._number, contact.heard, counter, token)
        return text + b" " + code_of(self._incarnation, contact.incarnation, text)

    def receive(self, data: bytes) -> bool:
        """Note a datagram; return whether it is a new sign of a contact."""
        text, _, code = data.rpartition(b" ")
        fields = text[len(SIGN) :].rsplit(b" ", 4)
        if not text.startswith(SIGN) or len(fields) != 5:
            return False
        contact = self._contacts.get(fields[0].decode("utf-8", "surrogateescape"))
        if contact is None or code != code_of(contact.incarnation, self._incarnation, text):
            return False
        number, repeated, counter, token = map(int, fields[1:])
        if number <= contact.heard:
            return False
        now = self._now()
        contact.heard, contact.heard_at = number, now
        contact.counter, contact.token = max(contact.counter, counter), max(contact.token, token)
        contact.asked_at = None
        age = self._number - repeated
        if repeated and 0 <= age < len(self._sent):
            contact.alive_at = max(contact.alive_at, self._sent[-1 - age])
        return True

    # What they tell

    def of(self, record: NodeRecord) -> Contact | None:
        """Return the contact of that record's agent; None if it was never heard."""
        contact = self._contacts.get(record.node)
        heard = contact is not None and contact.incarnation == record.incarnation and contact.alive_at > float("-inf")
        return contact if heard else None

    def hears(self, record: NodeRecord) -> bool:
        """Return whether that agent vouches for itself by signs, and hears this one."""
        contact = self.of(record)
        return contact is not None and self._is_fresh(contact, self._now())

    def suspects(self, record: NodeRecord) -> bool:
        """Return whether that agent was heard, is not any more, and its record says no more than its last sign."""
        contact = self.of(record)
        return contact is not None and record.counter <= contact.counter and not self._is_fresh(contact, self._now())

    def evidence(self, record: NodeRecord) -> str | None:
        """Return evidence that a suspected agent has ended, as text; None: it may be frozen, slow or unreachable."""
        contact = self.of(record)
        if contact is None or not self.suspects(record):
            return None
        if contact.refused_at > contact.heard_at:
            return REFUSED
        asked_at = contact.asked_at
        if contact.answers and asked_at is not None and self._now() - asked_at >= ANSWER_S:
            return UNANSWERED
        return None

    def lost_at(self) -> float:
        """Return when the last contact was lost of those that are not heard now, monotonic seconds."""
        now, patience_s = self._now(), HEARD_SIGNS * self.interval_s
        unheard = (one.alive_at for one in list(self._contacts.values()) if not self._is_fresh(one, now))
        return max(unheard, default=float("-inf")) + patience_s

    @property
    def dead_s(self) -> float:
        """The silence, in seconds, with which evidence makes an agent lost."""
        return max(DEAD_LEAST_S, DEAD_SIGNS * self.interval_s)

    def _is_fresh(self, contact: Contact, now: float) -> bool:
        # A refusal is a reason to look at once: the record may have the guardian's death notice.
        refused = contact.refused_at > contact.heard_at
        return not refused and now - contact.alive_at < HEARD_SIGNS * self.interval_s

    # Hosts

    def _ask(self, record: NodeRecord, contact: Contact, now: float) -> None:
        if contact.asked_at is None:
            contact.asked_at = now
        self._channel.ask(record)

    def collect(self) -> None:
        """Note what hosts have answered; call this before judgements: this process may have been stopped meanwhile."""
        now = self._now()
        for node, incarnation in self._channel.refusals() or ():
            if (contact := self._contacts.get(node)) is not None and contact.incarnation == incarnation:
                contact.refused_at = now
        for node, incarnation in self._channel.answers() or ():
            if (contact := self._contacts.get(node)) is not None and contact.incarnation == incarnation:
                contact.answers, contact.asked_at = True, None


def code_of(sender: str, receiver: str, text: bytes) -> bytes:
    """Return the code that proves to `receiver` that one who knows both incarnations has written `text`."""
    key = f"{sender} {receiver}".encode()[:KEY_BYTES]
    return blake2b(text, key=key, digest_size=CODE_BYTES).hexdigest().encode()
