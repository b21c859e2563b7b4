"""The rules of ownership: keys, active consumers, exclusive producers, and deletions."""

from dataclasses import replace

import pytest
from tests.history.check import check
from tests.history.events import Kind, Outcome, Position, Produced, Received
from tests.history.story import Story, broken


def two_hold(
    kind: Kind, *, same: bool, proven: bool = True, keys: tuple[str, str] = ("k", "k")
) -> Story:
    """Two consumers hold a message each at the same time, or both hold the same one."""
    story = Story()
    first, second = story.subscribed(kind), story.subscribed(kind)
    one, two = (story.sent(key=key) for key in keys)
    proofs = [story.sent(key=key) for key in ("x", "y")]
    story.got(first, one)
    story.got(second, one if same else two)
    if proven:
        for session, proof in zip((first, second), proofs, strict=True):
            story.got(session, proof)
            story.acked(session, proof)
    return story


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED])
def test_a_message_in_two_places_is_found(kind: Kind) -> None:
    assert broken(two_hold(kind, same=True)) == {"one_place"}


@pytest.mark.parametrize("kind", list(Kind))
def test_a_message_that_comes_again_to_the_consumer_that_holds_it_is_found(
    kind: Kind,
) -> None:
    story = Story()
    session = story.subscribed(kind)
    sent = story.sent()
    story.got(session, sent)
    story.got(session, sent)
    story.drained()
    story.acked(session, sent)
    may_be_active_again = kind is Kind.FAILOVER
    assert bool(broken(story) & {"one_place", "delivery_order"}) is not may_be_active_again


def test_a_key_with_two_consumers_is_found() -> None:
    assert broken(two_hold(Kind.KEY_SHARED, same=False)) == {"one_place"}


def test_a_key_is_of_no_matter_to_a_shared_subscription() -> None:
    assert not broken(two_hold(Kind.SHARED, same=False))


def test_each_key_may_have_a_consumer_of_its_own() -> None:
    assert not broken(two_hold(Kind.KEY_SHARED, same=False, keys=("a", "b")))


def test_a_session_that_the_broker_may_have_given_up_proves_nothing() -> None:
    assert not broken(two_hold(Kind.KEY_SHARED, same=True, proven=False))


@pytest.mark.parametrize("released", ["acked", "nacked", "closed"])
def test_a_key_moves_when_its_consumer_holds_nothing_of_it(released: str) -> None:
    story = Story()
    first, second = story.subscribed(Kind.KEY_SHARED), story.subscribed(Kind.KEY_SHARED)
    one, other = story.sent(key="k"), story.sent(key="x")
    story.got(first, one)
    story.got(first, other)
    if released == "acked":
        story.acked(first, one)
    elif released == "nacked":
        story.nacked(first, one)
    else:
        story.closed(first)
    if released == "acked":
        story.got(second, story.sent(key="k"))
    else:
        story.got(second, one)
        story.acked(second, one)
    story.acked(second if released == "closed" else first, other)
    assert not broken(story)


# -- one active consumer


def test_a_second_consumer_on_an_exclusive_subscription_is_found() -> None:
    story = Story()
    first = story.subscribed()
    sent = story.sent()
    story.got(first, sent)
    story.subscribed()
    story.acked(first, sent)
    assert broken(story) == {"one_active"}


def test_a_consumer_that_the_broker_no_longer_answers_may_be_replaced() -> None:
    story = Story()
    first = story.subscribed()
    sent = story.sent()
    story.got(first, sent)
    second = story.subscribed()
    story.acked(first, sent, outcome=Outcome.UNKNOWN)
    story.closed(first)
    story.got(second, sent)
    story.drained()
    assert not broken(story)


def turns(*, with_another: bool) -> Story:
    story = Story()
    first, second = story.subscribed(Kind.FAILOVER), story.subscribed(Kind.FAILOVER)
    for number in range(3):
        sent = story.sent()
        if number == 2 and with_another:
            story.subscribed(Kind.FAILOVER)
        session = (first, second)[number % 2]
        story.got(session, sent)
        story.acked(session, sent)
    story.drained()
    return story


def test_failover_consumers_that_take_turns_without_a_reason_are_found() -> None:
    assert broken(turns(with_another=False)) == {"one_active"}


def test_failover_consumers_may_change_when_one_comes() -> None:
    assert not broken(turns(with_another=True))


# -- exclusive producers


def test_a_fenced_producer_that_gets_a_receipt_is_found() -> None:
    story = Story()
    story.opened("p")
    story.sent("p")
    story.opened("q")
    story.sent("p")
    assert broken(story) == {"exclusive_producer"}


def test_a_producer_whose_turn_came_again_gets_receipts() -> None:
    story = Story()
    story.opened("p")
    story.opened("q")
    story.sent("q")
    story.opened("p")
    story.sent("p")
    assert not broken(story)


def test_producers_that_share_a_topic_get_receipts() -> None:
    story = Story()
    story.opened("p", exclusive=False)
    story.opened("q", exclusive=False)
    story.sent("p")
    assert not broken(story)


# -- beginnings


def test_a_new_subscription_at_the_latest_message_that_gets_an_old_one_is_found() -> None:
    story = Story()
    sent = story.sent()
    story.got(story.subscribed(), sent)
    assert broken(story) == {"beginnings"}


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.OK])
def test_an_old_message_in_a_subscription_that_is_made_again(outcome: Outcome) -> None:
    story = Story()
    first = story.subscribed()
    sent = story.sent()
    story.unsubscribed(first, outcome=outcome)
    story.got(story.subscribed(), sent)
    assert broken(story) == ({"beginnings"} if outcome is Outcome.OK else set())


def test_an_attempt_without_an_answer_may_have_made_it_earlier() -> None:
    story = Story()
    story.subscribed(outcome=Outcome.UNKNOWN)
    sent = story.sent()
    session = story.subscribed()
    story.got(session, sent)
    story.drained()
    assert not broken(story)


def test_an_old_message_in_a_subscription_from_the_earliest_is_accepted() -> None:
    story = Story()
    sent = story.sent()
    story.got(story.subscribed(position=Position.EARLIEST), sent)
    assert not broken(story)


def test_a_message_of_a_deleted_topic_is_found() -> None:
    story = Story()
    sent = story.sent()
    story.topic_deleted()
    story.got(story.subscribed(position=Position.EARLIEST), sent)
    assert broken(story) == {"beginnings"}


# -- deletions


def test_a_message_behind_the_answer_to_unsubscribe_is_found() -> None:
    story = Story()
    session = story.subscribed()
    sent = story.sent()
    story.unsubscribed(session)
    story.got(session, sent)
    assert broken(story) == {"deletions"}


def test_a_message_that_was_receipted_into_an_empty_namespace_is_found() -> None:
    story = Story()
    story.sent()
    story.topic_deleted()
    story.sent()
    story.namespace_deleted()
    assert broken(story) == {"deletions"}


def test_a_namespace_whose_topics_were_deleted_is_empty() -> None:
    story = Story()
    story.sent()
    story.topic_deleted()
    story.namespace_deleted()
    story.sent()
    assert not broken(story)


def test_an_event_of_a_session_that_never_began_is_found() -> None:
    story = Story()
    session = story.subscribed()
    got = story.got(session, story.sent())
    story.note(replace(got, session="other"))
    assert broken(story) == {"index"}


def test_a_finding_names_the_promise_the_events_and_their_times() -> None:
    story = two_hold(Kind.KEY_SHARED, same=True)
    (finding,) = check(story.events)
    shown = str(finding)
    assert "One consumer per key" in shown
    messages = [event for event in finding.events if isinstance(event, Received)]
    assert len(messages) == 2
    assert all(f"{event.at}" in shown for event in messages)
    assert not any(isinstance(event, Produced) for event in finding.events)
