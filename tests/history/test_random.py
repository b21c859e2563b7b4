"""The checker accepts random histories of a model broker, and none with a corruption.

Each corruption makes one change to a random history that allows it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.history.check import check
from tests.history.events import Acked, Event, Kind, Outcome, Produced, Received
from tests.history.index import Index, Life
from tests.history.model import Model
from tests.history.storage import read, write

STEPS = 60
EXAMPLES = 150
Chosen = TypeVar("Chosen")
randoms = st.integers(min_value=0, max_value=1 << 40).map(Random)


def chosen(rng: Random, some: Iterable[Chosen]) -> Chosen:
    """Draws one of them; discards the example if there is none."""
    found = list(some)
    assume(found)
    return rng.choice(found)


def drained(events: list[Event]) -> list[Life]:
    return [life for life in Index(events).lives if life.drained is not None]


def without(events: list[Event], gone: Iterable[Event]) -> list[Event]:
    names = {id(event) for event in gone}
    return [event for event in events if id(event) not in names]


def exchanged(events: list[Event], old: Event, new: Event) -> list[Event]:
    return [new if event is old else event for event in events]


def received_of(life: Life) -> list[Received]:
    return [one for session in life.sessions for one in session.received]


def lose(events: list[Event], rng: Random) -> list[Event]:
    """One subscription never receives a message that has a receipt."""
    life, message = chosen(
        rng,
        (
            (life, received)
            for life in drained(events)
            for received in received_of(life)
            if life.owes(life.topic.messages[received.producer, received.sequence])
        ),
    )
    return without(events, (one for one in received_of(life) if one.id == message.id))


def forget(events: list[Event], rng: Random) -> list[Event]:
    """No consumer receives the messages again that a closed consumer held without acking them."""
    lives = [life for life in drained(events) if not life.seeks]
    some = []
    for life in lives:
        acked = {ack.id[:2] for ack in life.acks}
        last = max((ack.id for ack in life.acks if ack.cumulative), default=(0, 0, 0))
        gone = {
            one.id
            for session in life.sessions
            if session.closed_at < session.topic.sessions[-1].subscribed.done
            for one in session.received
        }
        for session in life.sessions:
            if session.closed_at == float("inf"):
                some += [
                    one
                    for one in session.received
                    if one.id in gone and one.id[:2] not in acked and one.id > last
                    if life.topic.messages[one.producer, one.sequence].begun > life.start
                ]
    lost = chosen(rng, some)
    life = next(one for one in lives if lost in received_of(one))
    open_still = [session for session in life.sessions if session.closed_at == float("inf")]
    return without(
        events, (one for session in open_still for one in session.received if one.id == lost.id)
    )


def alter(events: list[Event], rng: Random) -> list[Event]:
    """A consumer receives a message with other bytes."""
    one = chosen(rng, (event for event in events if isinstance(event, Received)))
    return exchanged(events, one, replace(one, payload="other"))


def swap(events: list[Event], rng: Random) -> list[Event]:
    """Two messages are swapped in a session that receives them in order."""
    some = []
    for life in Index(events).lives:
        for session in life.sessions if life.kind is Kind.EXCLUSIVE else ():
            received = list(session.received)
            some += [] if session.asked_again else list(pairwise(received))
    first, second = chosen(rng, some)
    changed = exchanged(events, first, replace(second, at=first.at))
    return exchanged(changed, second, replace(first, at=second.at))


def repeat(events: list[Event], rng: Random) -> list[Event]:
    """A session that began after the receipt of its ack receives a message again."""
    some = []
    for life in Index(events).lives:
        for ack in [] if life.seeks else life.acks:
            covered = (one for one in received_of(life) if one.id[:2] == ack.id[:2])
            whole = [one for one in covered if ack.id in (one.id, (*one.id[:2], -1))]
            for session in life.sessions:
                if ack.outcome is Outcome.OK and session.subscribed.begun > ack.done:
                    some += [replace(one, session=session.subscribed.session) for one in whole]
    again = chosen(rng, some)
    return [*events, replace(again, at=1e6)]


def cross(events: list[Event], rng: Random) -> list[Event]:
    """Two messages of one producer have their receipts exchanged."""
    receipts = [one for one in events if isinstance(one, Produced) and one.id is not None]
    first, second = chosen(
        rng,
        ((one, other) for one, other in pairwise(receipts) if one.producer == other.producer),
    )
    changed = exchanged(events, first, replace(first, id=second.id))
    return exchanged(changed, second, replace(second, id=first.id))


CORRUPTIONS: dict[str, Callable[[list[Event], Random], list[Event]]] = {
    "lost": lose,
    "unacked": forget,
    "invented": alter,
    "delivery_order": swap,
    "acks": repeat,
    "receipt_order": cross,
}


@given(randoms)
@settings(max_examples=EXAMPLES)
def test_a_history_of_a_broker_that_keeps_its_promises_is_accepted(rng: Random) -> None:
    assert not [str(finding) for finding in check(Model(rng).run(STEPS))]


@pytest.mark.parametrize("rule", CORRUPTIONS)
def test_a_single_corruption_is_found(rule: str) -> None:
    @given(randoms)
    @settings(max_examples=EXAMPLES // 3)
    def corrupted(rng: Random) -> None:
        events = CORRUPTIONS[rule](Model(rng).run(STEPS), rng)
        assert rule in {finding.rule for finding in check(events)}

    corrupted()


@given(randoms)
@settings(max_examples=EXAMPLES // 5)
def test_every_event_that_is_left_out_or_came_twice_is_noticed_or_harmless(rng: Random) -> None:
    """No history makes the checker fail, whatever clients have written."""
    events = Model(rng).run(STEPS)
    for _ in range(5):
        at = rng.randrange(len(events))
        events = [*events[:at], *([events[at]] * rng.choice((0, 2))), *events[at + 1 :]]
    check(events)


def test_a_stored_history_is_the_same_history(tmp_path: Path) -> None:
    events = Model(Random(7)).run(STEPS)
    path = tmp_path / "history.jsonl"
    write(path, events)
    assert sorted(map(repr, read(path))) == sorted(map(repr, events))
    assert any(isinstance(event, Acked) for event in events)
