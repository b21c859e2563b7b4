"""The rules of acks and of redelivery."""

from tests.history.events import Kind, Outcome
from tests.history.story import Story, broken


def resumed(*, cumulative: bool = False, outcome: Outcome = Outcome.OK) -> tuple[Story, str]:
    """A session acks two messages and ends; a second session receives both again."""
    story = Story()
    first = story.subscribed(Kind.FAILOVER)
    messages = [story.sent(), story.sent()]
    for message in messages:
        story.got(first, message)
    acked = messages[1:] if cumulative else messages
    story.acked(first, *acked, cumulative=cumulative, outcome=outcome)
    story.closed(first)
    second = story.subscribed(Kind.FAILOVER)
    for message in messages:
        story.got(second, message)
    story.drained()
    return story, second


def test_a_message_that_comes_again_after_its_acks_receipt_is_found() -> None:
    story, _ = resumed()
    assert broken(story) == {"acks"}


def test_a_message_that_comes_again_after_a_cumulative_acks_receipt_is_found() -> None:
    story, _ = resumed(cumulative=True)
    assert broken(story) == {"acks"}


def test_a_message_whose_ack_has_no_receipt_may_come_again() -> None:
    for cumulative in (True, False):
        story, _ = resumed(cumulative=cumulative, outcome=Outcome.UNKNOWN)
        assert not broken(story)


def test_a_message_that_comes_again_behind_the_receipt_in_one_session_is_found() -> None:
    story = Story()
    session = story.subscribed(Kind.SHARED)
    sent = story.sent()
    story.got(session, sent)
    story.acked(session, sent)
    story.got(session, sent)
    story.drained()
    assert broken(story) == {"acks"}


def test_a_session_that_attached_before_the_receipt_may_have_the_message_under_way() -> None:
    story = Story()
    first, second = story.subscribed(Kind.FAILOVER), story.subscribed(Kind.FAILOVER)
    sent = story.sent()
    story.got(first, sent)
    story.acked(first, sent)
    story.got(second, sent)
    story.drained()
    assert not broken(story)


def test_a_seek_undoes_acks() -> None:
    story, second = resumed(outcome=Outcome.UNKNOWN)
    story.sought(second)
    third = story.subscribed(Kind.FAILOVER)
    first, last = (event for event in story.events if type(event).__name__ == "Produced")
    for message in (first, last):
        story.got(third, message)  # type: ignore[arg-type]
    story.drained()
    assert not broken(story)


def test_an_ack_behind_a_seek_holds() -> None:
    for cumulative in (True, False):
        story = Story()
        first = story.subscribed()
        sent = story.sent()
        story.got(first, sent)
        story.sought(first)
        second = story.subscribed()
        story.got(second, sent)
        story.acked(second, sent, cumulative=cumulative)
        third = story.subscribed()
        story.got(third, sent)
        story.drained()
        assert broken(story) == {"acks"}, cumulative


def test_an_ack_says_nothing_of_a_subscription_that_is_made_again() -> None:
    story = Story()
    first = story.subscribed()
    sent = story.sent()
    story.got(first, sent)
    story.acked(first, sent)
    story.unsubscribed(first, outcome=Outcome.UNKNOWN)
    second = story.subscribed()
    story.got(second, sent)
    story.drained()
    assert not broken(story)


# -- unacked


def test_a_message_that_a_consumer_held_when_it_went_and_nobody_gets_is_found() -> None:
    story = Story()
    first = story.subscribed(Kind.SHARED)
    story.got(first, story.sent())
    story.closed(first)
    story.subscribed(Kind.SHARED)
    story.drained()
    assert broken(story) == {"unacked"}


def test_a_message_that_an_open_session_holds_is_in_its_place() -> None:
    story = Story()
    first = story.subscribed(Kind.SHARED)
    story.got(first, story.sent())
    story.drained()
    assert not broken(story)


def test_a_negative_ack_without_a_redelivery_is_found() -> None:
    for by_name in (True, False):
        story = Story()
        session = story.subscribed(Kind.SHARED)
        sent = story.sent()
        story.got(session, sent)
        story.nacked(session, *([sent] if by_name else []))
        story.drained()
        assert broken(story) == {"unacked"}, by_name


def test_a_negative_ack_with_a_redelivery_is_accepted() -> None:
    story = Story()
    session = story.subscribed(Kind.SHARED)
    sent = story.sent()
    story.got(session, sent)
    story.nacked(session, sent)
    story.got(session, sent, redeliveries=1)
    story.drained()
    assert not broken(story)


def test_a_seek_that_redelivers_nothing_is_found() -> None:
    story = Story()
    first = story.subscribed()
    sent = story.sent()
    story.got(first, sent)
    story.sought(first)
    story.closed(first)
    story.subscribed()
    story.drained()
    assert broken(story) == {"unacked"}


def test_a_seek_back_brings_what_retention_kept_though_it_was_acked() -> None:
    for kept in (True, False):
        story = Story()
        if kept:
            story.kept()
        first = story.subscribed()
        sent = story.sent()
        story.got(first, sent)
        story.acked(first, sent)
        story.sought(first)
        story.closed(first)
        story.subscribed()
        story.drained()
        assert broken(story) == ({"unacked"} if kept else set())


def test_a_seek_forward_skips() -> None:
    story = Story()
    first = story.subscribed()
    story.got(first, story.sent())
    story.sent()
    story.sought(first, to=(9, 0, 0))
    story.closed(first)
    story.subscribed()
    story.drained()
    assert not broken(story)


# -- redelivery counts


def test_a_redelivery_count_that_goes_down_is_found() -> None:
    story = Story()
    session = story.subscribed(Kind.SHARED)
    sent = story.sent()
    for count in (2, 1):
        story.got(session, sent, redeliveries=count)
        story.nacked(session, sent)
    story.got(session, sent, redeliveries=2)
    story.drained()
    assert broken(story) == {"redelivery_counts"}


def test_a_count_begins_again_at_another_attachment() -> None:
    story = Story()
    first = story.subscribed(Kind.SHARED)
    sent = story.sent()
    story.got(first, sent, redeliveries=2)
    story.closed(first)
    story.got(story.subscribed(Kind.SHARED), sent, redeliveries=0)
    story.drained()
    assert not broken(story)
