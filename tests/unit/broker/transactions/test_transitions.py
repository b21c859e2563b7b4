"""The rules of a transaction's life: what each state permits, and what never changes again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.transactions import transitions
from magnetar.core.errors import InvalidTxnStatus, MagnetarError, NotAllowed, TransactionNotFound
from magnetar.transactions.model import (
    Outcome,
    SubscriptionInTxn,
    TransactionRecord,
    TxnId,
    TxnState,
)
from magnetar.transactions.records import decode_record, encode_record

TXN = TxnId(3, 7)
NOW_MS = 1_700_000_000_000


def begun() -> TransactionRecord:
    return transitions.begun("role", 1_000, NOW_MS)


def test_a_new_transaction_is_open_until_its_deadline() -> None:
    record = begun()
    assert (record.state, record.owner) == (TxnState.OPEN, "role")
    assert (record.opened_ms, record.deadline_ms) == (NOW_MS, NOW_MS + 1_000)


@pytest.mark.parametrize("timeout_ms", [0, transitions.TIMEOUT_MS_MAX + 1, 2**64 - 1])
def test_a_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    with pytest.raises(NotAllowed, match=f"not {timeout_ms}"):
        transitions.begun(None, timeout_ms, NOW_MS)


def test_participants_are_added_once_and_keep_their_names_and_order() -> None:
    record = transitions.with_participants(TXN, begun(), ["t", "persistent://a/b/c"])
    record = transitions.with_participants(TXN, record, ["u", "t"], [SubscriptionInTxn("t", "s")])
    assert record.topics == ("t", "persistent://a/b/c", "u")
    assert record.subscriptions == (("t", "s"),)
    assert transitions.with_participants(TXN, record, ["u"]) is record


def test_the_number_of_participants_is_bounded() -> None:
    topics = [f"t{number}" for number in range(transitions.PARTICIPANTS_MAX)]
    record = transitions.with_participants(TXN, begun(), topics)
    with pytest.raises(NotAllowed, match="participants"):
        transitions.with_participants(TXN, record, ["one more"])


def test_the_size_of_a_record_is_bounded() -> None:
    with pytest.raises(NotAllowed, match="bytes"):
        transitions.with_participants(TXN, begun(), ["x" * (transitions.NAMES_BYTES_MAX + 1)])


def test_without_participants_the_decision_is_the_end() -> None:
    record = transitions.ending(TXN, begun(), Outcome.COMMIT, NOW_MS + 1)
    assert (record.state, record.ended_ms) == (TxnState.COMMITTED, NOW_MS + 1)


def test_a_missing_transaction_has_pulsars_name_in_the_error() -> None:
    assert "(3,7)" in transitions.not_found(TXN).message


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (TxnState.COMMITTING, InvalidTxnStatus),
        (TxnState.ABORTING, InvalidTxnStatus),
        (TxnState.COMMITTED, TransactionNotFound),
        (TxnState.ABORTED, TransactionNotFound),
    ],
)
def test_a_decided_transaction_gets_no_more_participants(
    state: TxnState, error: type[MagnetarError]
) -> None:
    record = TransactionRecord(state=state, opened_ms=1, deadline_ms=2, topics=("t",))
    with pytest.raises(error):
        transitions.with_participants(TXN, record, ["t"])


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["t", "u"])),
        st.tuples(st.just("end"), st.sampled_from(Outcome)),
        st.tuples(st.just("finish"), st.none()),
    ),
    max_size=12,
)


@given(_STEPS)
def test_a_decision_never_changes(steps: list[tuple[str, object]]) -> None:
    record = begun()
    decided: Outcome | None = None
    for step, value in steps:
        try:
            if step == "add":
                record = transitions.with_participants(TXN, record, [str(value)])
                assert decided is None
            elif step == "end":
                assert isinstance(value, Outcome)
                record = transitions.ending(TXN, record, value, NOW_MS)
                decided = decided or value
                assert value is decided
            elif decided is not None:
                record = transitions.ended(record, NOW_MS)
        except MagnetarError:
            assert decided is not None
        assert record.state.outcome is decided
        assert record.owner == "role"
        assert decode_record("key", encode_record(record)) == record
