"""A producer until its client closes it: waiting and answered messages."""

import pytest
from tests.unit.broker.topic.stage import ProducerSink, new_producer

from magnetar.broker.topic.producer import Judged, Producer


class Waiting:
    """Messages held by a rate; records the producer's reports."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def add(self, parts: list[Judged]) -> None: ...

    def answered(self) -> None:
        self.reports.append("answered")

    def drop(self) -> None:
        self.reports.append("dropped")


def answer(producer: Producer) -> None:
    """As a topic does with each run that it has answered."""
    producer.pending_runs -= 1
    if producer.on_answered is not None:
        producer.on_answered()


def test_a_close_waits_for_each_run_under_way() -> None:
    producer, done = new_producer(ProducerSink()), list[str]()
    producer.ready, producer.pending_runs = True, 2
    assert (producer.admitted, producer.closing) == (True, False)
    producer.when_drained(lambda: done.append("drained"))
    assert (producer.admitted, producer.closing) == (False, True)
    answer(producer)
    assert (done, producer.closing) == ([], True)
    answer(producer)
    assert (done, producer.closing) == (["drained"], False)
    assert producer.on_answered is None


@pytest.mark.parametrize("held_last", [True, False])
def test_a_close_waits_for_what_a_rate_holds_back(held_last: bool) -> None:
    producer, done, waiting = new_producer(ProducerSink()), list[str](), Waiting()
    producer.pending_runs = 1
    producer.hold(waiting)
    producer.when_drained(lambda: done.append("drained"))
    if held_last:
        answer(producer)
        assert waiting.reports == ["answered"], "a refusal may wait for this answer"
        assert done == []
        producer.held_ended(waiting)
    else:
        producer.held_ended(waiting)
        assert done == []
        answer(producer)
        assert waiting.reports == []
    assert (done, producer.pending_runs, producer.closing) == (["drained"], 0, False)


def test_publishing_after_a_wait_reports_no_answers() -> None:
    producer, waiting = new_producer(ProducerSink()), Waiting()
    producer.hold(waiting)
    producer.held_ended(waiting)
    producer.pending_runs += 1
    answer(producer)
    assert (waiting.reports, producer.on_answered, producer.pending_runs) == ([], None, 0)


def test_a_late_end_of_an_earlier_wait_does_not_end_the_present_one() -> None:
    producer, done = new_producer(ProducerSink()), list[str]()
    earlier, present = Waiting(), Waiting()
    producer.hold(earlier)
    producer.held_ended(earlier)
    producer.hold(present)
    producer.when_drained(lambda: done.append("drained"))
    producer.held_ended(earlier)
    assert (producer.held, producer.pending_runs, done) == (present, 1, [])
    producer.held_ended(present)
    assert (producer.held, producer.pending_runs, done) == (None, 0, ["drained"])


def test_a_producer_that_is_closed_drops_what_waits() -> None:
    producer, waiting = new_producer(ProducerSink()), Waiting()
    producer.close()
    producer.hold(waiting)
    producer.close()
    assert (waiting.reports, producer.closed) == (["dropped"], True)


@pytest.mark.parametrize(
    ("same_connection", "same_id", "same_name", "later", "succeeds"),
    [
        (True, True, True, 1, True),
        (True, True, True, 0, False),
        (True, True, True, -1, False),
        (False, True, True, 1, False),
        (True, False, True, 1, False),
        (True, True, False, 1, False),
    ],
)
def test_only_a_later_epoch_of_the_same_client_succeeds_a_producer(
    same_connection: bool, same_id: bool, same_name: bool, later: int, succeeds: bool
) -> None:
    sink = ProducerSink()
    before = new_producer(sink, "p")
    after = new_producer(sink if same_connection else ProducerSink(), "p" if same_name else "q")
    after.producer_id = before.producer_id + (not same_id)
    after.epoch = before.epoch + later
    assert after.succeeds(before) is succeeds
