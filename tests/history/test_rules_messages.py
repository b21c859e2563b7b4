"""The rules of messages: none is lost, invented, altered, misplaced or out of order."""

from dataclasses import replace

from tests.history.events import Kind, Outcome, Position
from tests.history.story import Story, broken


def test_a_plain_history_is_accepted() -> None:
    story = Story()
    first = story.subscribed()
    a, b, c = (story.sent() for _ in range(3))
    story.got(first, a)
    story.acked(first, a)
    story.got(first, b)
    story.closed(first)
    second = story.subscribed()
    for message in (b, c):
        story.got(second, message, redeliveries=1)
        story.acked(second, message)
    story.drained()
    assert not broken(story)


# -- invented


def test_a_message_that_nobody_sent_is_found() -> None:
    story = Story()
    session = story.subscribed()
    sent = story.sent()
    story.got(session, sent)
    story.got(session, replace(sent, sequence=7), at=(1, 5, 0))
    assert broken(story) == {"invented"}


def test_a_message_with_other_bytes_is_found() -> None:
    story = Story()
    session = story.subscribed()
    story.altered(story.got(session, story.sent()), b"other")
    assert broken(story) == {"invented"}


def test_a_message_with_another_key_is_found() -> None:
    story = Story()
    session = story.subscribed()
    sent = story.sent(key="k")
    story.got(session, replace(sent, key="l"))
    assert broken(story) == {"invented"}


def test_a_message_that_comes_before_it_was_sent_is_found() -> None:
    story = Story()
    session = story.subscribed()
    got = story.got(session, story.sent())
    story.swap(got, replace(got, at=2.5))
    assert broken(story) == {"invented"}


def test_two_messages_under_one_id_are_found() -> None:
    story = Story()
    session = story.subscribed()
    story.got(session, story.sent())
    story.got(session, story.sent("q", outcome=Outcome.UNKNOWN), at=(1, 0, 0))
    assert "invented" in broken(story)


# -- ids and receipts


def test_a_message_that_was_sent_twice_may_have_two_ids() -> None:
    story = Story()
    session = story.subscribed()
    sent = story.sent(at=(1, 1, 0), attempts=2)
    story.got(session, sent, at=(1, 0, 0))
    story.got(session, sent)
    story.drained()
    story.acked(session, sent)
    story.acked(session, replace(sent, id=(1, 0, 0)))
    assert not broken(story)


def test_a_message_that_was_sent_once_and_has_two_ids_is_found() -> None:
    story = Story()
    session = story.subscribed()
    sent = story.sent(at=(1, 1, 0))
    story.got(session, sent, at=(1, 0, 0))
    story.got(session, sent)
    assert broken(story) == {"ids"}


def test_an_id_below_one_that_was_receipted_before_is_found() -> None:
    story = Story()
    story.sent("p", at=(5, 0, 0))
    story.sent("q", at=(4, 9, 0))
    assert broken(story) == {"ids"}


def test_ids_of_messages_that_were_under_way_together_may_come_in_any_order() -> None:
    story = Story()
    first = story.sent("p", at=(5, 0, 0))
    second = story.sent("q", at=(4, 9, 0))
    story.swap(second, replace(second, begun=first.begun))
    assert not broken(story)


def test_receipts_of_one_producer_in_another_order_are_found() -> None:
    story = Story()
    first, second = story.sent(), story.sent()
    story.swap(second, replace(second, begun=first.begun, done=first.done - 0.5))
    assert broken(story) == {"receipt_order"}


def test_ids_of_one_producer_in_another_order_are_found() -> None:
    story = Story()
    first, second = story.sent(at=(1, 9, 0)), story.sent(at=(1, 8, 0))
    story.swap(second, replace(second, begun=first.begun))
    assert broken(story) == {"receipt_order"}


# -- lost


def test_a_receipted_message_that_never_comes_is_found() -> None:
    story = Story()
    session = story.subscribed(Kind.SHARED)
    story.sent()
    got = story.sent()
    story.got(session, got)
    story.acked(session, got)
    story.drained()
    assert broken(story) == {"lost"}


def test_a_copy_elsewhere_is_not_what_was_receipted() -> None:
    story = Story()
    session = story.subscribed(Kind.SHARED)
    sent = story.sent(at=(1, 1, 0), attempts=2)
    story.got(session, sent, at=(1, 0, 0))
    story.acked(session, replace(sent, id=(1, 0, 0)))
    story.drained()
    assert broken(story) == {"lost"}


def test_nothing_is_due_without_a_receipt_or_from_before_the_subscription() -> None:
    story = Story()
    story.sent()
    story.subscribed()
    story.sent(outcome=Outcome.UNKNOWN)
    story.sent(outcome=Outcome.FAILED)
    story.drained()
    assert not broken(story)


def test_nothing_is_due_to_a_subscription_that_is_being_deleted() -> None:
    story = Story()
    session = story.subscribed()
    story.sent()
    story.unsubscribed(session, outcome=Outcome.UNKNOWN)
    story.subscribed()
    story.drained()
    assert not broken(story)


def test_a_reader_from_the_earliest_gets_what_retention_keeps() -> None:
    story = Story()
    story.kept()
    first, second = story.sent(), story.sent()
    reader = story.subscribed(position=Position.EARLIEST, name="reader")
    story.got(reader, first)
    story.got(reader, second)
    story.drained("reader")
    assert not broken(story)


def test_a_reader_from_the_earliest_that_skips_one_is_found() -> None:
    story = Story()
    story.kept()
    story.sent()
    second = story.sent()
    reader = story.subscribed(position=Position.EARLIEST, name="reader")
    story.got(reader, second)
    story.drained("reader")
    assert broken(story) == {"lost"}


# -- order


def test_an_exclusive_consumer_that_gets_messages_in_another_order_is_found() -> None:
    story = Story()
    session = story.subscribed()
    first, second = story.sent("p"), story.sent("q")
    story.got(session, second)
    story.got(session, first)
    assert broken(story) == {"delivery_order"}


def test_a_message_that_comes_twice_over_one_attachment_is_found() -> None:
    story = Story()
    session = story.subscribed()
    sent = story.sent()
    story.got(session, sent)
    story.got(session, sent)
    assert broken(story) == {"delivery_order"}


def test_a_client_that_reconnects_silently_may_get_messages_again() -> None:
    story = Story()
    session = story.subscribed(reconnects=True)
    first, second = story.sent(), story.sent()
    for message in (first, second, first, second):
        story.got(session, message)
    story.drained()
    assert not broken(story)


def test_a_message_that_comes_behind_a_later_one_after_a_resume_is_found() -> None:
    story = Story()
    first = story.subscribed()
    a, b = story.sent(), story.sent()
    story.got(first, b)
    story.closed(first)
    second = story.subscribed()
    story.got(second, a)
    story.got(second, b)
    story.drained()
    assert broken(story) == {"delivery_order"}


def test_a_copy_without_a_receipt_behind_its_successor_is_found() -> None:
    story = Story()
    session = story.subscribed()
    first = story.sent(outcome=Outcome.UNKNOWN, attempts=2)
    second = story.sent(outcome=Outcome.UNKNOWN, attempts=2)
    story.got(session, second, at=(1, 5, 0))
    story.got(session, first, at=(1, 6, 0))
    assert broken(story) == {"delivery_order"}


def test_key_shared_delivers_each_key_in_order_and_keys_in_any() -> None:
    story = Story()
    session = story.subscribed(Kind.KEY_SHARED)
    first, other, second = story.sent(key="a"), story.sent(key="b"), story.sent(key="a")
    for message in (other, first, second):
        story.got(session, message)
    story.drained()
    assert not broken(story)


def test_a_key_out_of_order_is_found() -> None:
    story = Story()
    session = story.subscribed(Kind.KEY_SHARED)
    first, second = story.sent(key="a"), story.sent(key="a")
    story.got(session, second)
    story.got(session, first)
    assert broken(story) == {"delivery_order"}


def test_shared_delivers_in_any_order() -> None:
    story = Story()
    session = story.subscribed(Kind.SHARED)
    first, second = story.sent(), story.sent()
    story.got(session, second)
    story.got(session, first)
    story.drained()
    assert not broken(story)
