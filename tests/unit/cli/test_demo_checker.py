"""The demo's checker: valid runs pass, and it reports each injected violation."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.cli.demo.checker import KINDS, Checker, Expected, Verdict


def messages(keys: int, per_key: int) -> list[Expected]:
    """`per_key` rounds over the keys: number = sequence * keys + key."""
    return [
        Expected(f"key-{number % keys}", number // keys, 1_000 + number)
        for number in range(keys * per_key)
    ]


class Run:
    """The reports of a run without faults, for tests to change."""

    def __init__(self, keys: int = 3, per_key: int = 4) -> None:
        self.expected = messages(keys, per_key)
        self.receipts = [(number, number % 2, (7, number, -1)) for number in range(keys * per_key)]
        self.sightings = [
            (number, 1_000 + number, expected.checksum)
            for number, expected in enumerate(self.expected)
        ]

    def verdict(self) -> Verdict:
        checker = Checker(self.expected)
        for receipt in self.receipts:
            checker.receipt(*receipt)
        for sighting in self.sightings:
            checker.sighting(*sighting)
        assert checker.verdict() == checker.verdict()
        return checker.verdict()


def only(kind: str, count: int = 1) -> dict[str, int]:
    return dict.fromkeys(KINDS, 0) | {kind: count}


def test_a_run_without_faults_is_ok() -> None:
    verdict = Run().verdict()
    assert verdict.ok
    assert (verdict.receipted, verdict.seen, verdict.redelivered) == (12, 12, 0)
    assert not verdict.examples


def test_a_receipted_message_without_a_sighting_is_lost() -> None:
    run = Run()
    del run.sightings[5]
    verdict = run.verdict()
    assert verdict.faults == only("lost")
    assert verdict.examples == ["lost: flight 5 (key-2 #1) was receipted and never received"]


def test_a_message_without_a_receipt_is_unreceipted_and_not_lost() -> None:
    run = Run()
    del run.receipts[5]
    assert run.verdict().faults == only("unreceipted")


def test_a_message_that_arrives_before_an_earlier_message_of_its_key_is_reordered() -> None:
    run = Run()
    number, _, checksum = run.sightings[9]
    run.sightings[9] = (number, 1_000 + 5, checksum)  # key-0 #3 before key-0 #2, at 1_006
    verdict = run.verdict()
    assert verdict.faults == only("reordered")
    assert "flight 9 (key-0 #3) was received 0.000 ms before #2" in verdict.examples[0]


def test_order_between_keys_does_not_matter() -> None:
    run = Run(keys=3, per_key=4)
    run.sightings = [(n, 1 + n % 3 * 1_000 + n, c) for n, _, c in run.sightings]
    assert run.verdict().ok


def test_every_message_that_overtook_a_late_message_counts() -> None:
    """#0 arrives last, so all later messages of its key were early."""
    run = Run(keys=1, per_key=5)
    number, _, checksum = run.sightings[0]
    run.sightings[0] = (number, 99_999, checksum)
    assert run.verdict().faults == only("reordered", 4)


def test_a_redelivery_is_allowed_in_any_order() -> None:
    run = Run()
    run.sightings += [(n, t + 50_000, c) for n, t, c in reversed(run.sightings)]
    verdict = run.verdict()
    assert verdict.ok
    assert verdict.redelivered == 12


def test_an_earlier_sighting_counts_even_if_it_is_reported_late() -> None:
    """A process may report after another one that received the message later."""
    run = Run(keys=1, per_key=3)
    late = [(n, t + 10_000, c) for n, t, c in run.sightings[:1]]
    run.sightings = late + run.sightings[1:] + run.sightings[:1]
    assert run.verdict().ok


def test_a_message_that_was_not_sent_is_a_phantom() -> None:
    run = Run()
    run.sightings += [(-1, 5, 0), (12, 5, 0)]
    assert run.verdict().faults == only("phantom", 2)


def test_a_message_with_other_bytes_is_altered_and_not_seen() -> None:
    run = Run()
    number, time_ns, checksum = run.sightings[3]
    run.sightings[3] = (number, time_ns, checksum ^ 1)
    assert run.verdict().faults == only("altered") | {"lost": 1}


@pytest.mark.parametrize("message_id", [(7, 3, -1), (7, 0, -1), (6, 99, -1)])
def test_a_message_id_that_does_not_increase_is_reported(message_id: tuple[int, int, int]) -> None:
    run = Run()
    number, partition, _ = run.receipts[5]
    run.receipts[5] = (number, partition, message_id)
    assert run.verdict().faults == only("id went back")


def test_ids_increase_within_a_batch_and_over_ledgers() -> None:
    run = Run(keys=1, per_key=4)
    ids = [(7, 5, 0), (7, 5, 1), (7, 6, -1), (9, 0, -1)]
    run.receipts = [(number, 0, message_id) for number, message_id in enumerate(ids)]
    assert run.verdict().ok


def test_the_number_of_examples_is_bounded() -> None:
    run = Run(keys=5, per_key=20)
    run.sightings = []
    verdict = run.verdict()
    assert verdict.faults["lost"] == 100
    assert len(verdict.examples) == 5


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 30))
def test_key_shared_deliveries_with_redelivery_always_pass(
    seed: int, keys: int, per_key: int
) -> None:
    """Deliveries of a correct server: per key in order, sometimes again from an earlier message.

    The interleaving of keys and the order of the reports are random.
    """
    draw = random.Random(seed)
    run = Run(keys, per_key)
    due = {key: [n for n in range(keys * per_key) if n % keys == key] for key in range(keys)}
    now, deliveries, next_of = 0, [], dict.fromkeys(due, 0)
    while open_keys := [key for key, at in next_of.items() if at < per_key]:
        key = draw.choice(open_keys)
        now += draw.randrange(1, 3)
        number = due[key][next_of[key]]
        deliveries.append((number, now, run.expected[number].checksum))
        next_of[key] = draw.randrange(next_of[key] + 1) if draw.random() < 0.1 else next_of[key] + 1
    draw.shuffle(deliveries)
    run.sightings = deliveries
    assert run.verdict().ok


@given(st.data())
def test_any_swap_of_first_sightings_within_a_key_is_reported(data: st.DataObject) -> None:
    run = Run(keys=3, per_key=5)
    key = data.draw(st.integers(0, 2))
    first, second = data.draw(
        st.lists(st.integers(0, 4), min_size=2, max_size=2, unique=True).map(sorted)
    )
    a, b = first * 3 + key, second * 3 + key
    time_a, time_b = run.sightings[a][1], run.sightings[b][1]
    run.sightings[a] = (a, time_b, run.expected[a].checksum)
    run.sightings[b] = (b, time_a, run.expected[b].checksum)
    assert run.verdict().faults["reordered"] > 0
