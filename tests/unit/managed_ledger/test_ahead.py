"""What would be, asked of acks and of an index without changing them."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.memory_bookie import MemoryBookie
from tests.unit.ledger.stage import NAME, Stage, publish

from magnetar.core.ids import Position
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import SINGLE, Quorums
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.index import LedgerIndex, LedgerInfo
from magnetar.managed_ledger.settings import ManagedLedgerSettings

LEDGERS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 1_000)), min_size=1, max_size=5
)  # (entries, bytes of each)


def index_of(ledgers: list[tuple[int, int]]) -> LedgerIndex:
    index = LedgerIndex()
    for number, (entries, size) in enumerate(ledgers):
        closed_ms = 0 if number == len(ledgers) - 1 else 1
        index.add(
            LedgerInfo(
                3 * number + 1, 1, entries=entries, size_bytes=entries * size, closed_ms=closed_ms
            )
        )
    return index


def test_the_last_entry_before_several_ledgers_without_any() -> None:
    index = index_of([(2, 1), (0, 0), (0, 0), (0, 0), (1, 1)])
    assert index.floor(11, 0) == index.previous_position(13, 0) == Position(1, 1)
    assert index.floor(13, 5) == Position(13, 0)
    state = AckState(index, index.first_position, tracked=False)
    state.ack_cumulative(Position(11, 0))
    assert (state.mark_delete, state.backlog) == (Position(1, 1), 1)


@given(LEDGERS, st.data())
def test_the_mark_and_the_count_of_a_cumulative_ack(
    ledgers: list[tuple[int, int]], data: st.DataObject
) -> None:
    index = index_of(ledgers)
    state = AckState(index, index.first_position, tracked=False)
    places = st.tuples(st.integers(0, 16), st.integers(-1, 7)).map(lambda at: Position(*at))
    for place in data.draw(st.lists(places, max_size=12)):
        state.ack(*place)
    upto = data.draw(places)
    mark, count, backlog = state.mark_delete_after(upto), state.unacked_up_to(upto), state.backlog
    assert (state.backlog, state.mark_delete_after(upto)) == (backlog, mark)
    state.ack_cumulative(upto)
    assert state.mark_delete == mark
    if upto <= index.last_confirmed:  # beyond it an ack changes nothing
        assert backlog - state.backlog == count


@given(LEDGERS, st.integers(0, 20_000))
def test_the_first_place_that_leaves_so_many_bytes(
    ledgers: list[tuple[int, int]], left: int
) -> None:
    index = index_of(ledgers)
    place = index.place_leaving(left)
    assert index.bytes_after(*place) <= left
    before = index.previous_position(*place)
    if index.rank(*before) < index.rank(*place):
        assert index.bytes_after(*before) > left


async def test_an_idle_log_is_rolled_over_and_trimmed() -> None:
    """A ledger without further appends does not stay for ever."""
    stage = Stage()
    settings = ManagedLedgerSettings(rollover_ms_min=0, rollover_ms_max=60_000)
    ledger = await stage.factory(settings).open(NAME)
    ledger.set_retention(0, 0)
    ledger.roll_if_aged()  # there is none
    await publish(ledger, b"one")
    stage.clock.advance(59_999)
    ledger.roll_if_aged()
    assert ledger.state == "LedgerOpened"
    assert not ledger.has_to_trim
    stage.clock.advance(1)
    ledger.roll_if_aged()
    assert ledger.state == "ClosingLedger"
    await ledger.roll_over()  # waits for the one under way
    assert ledger.has_to_trim or not ledger.ledgers
    await ledger.trim()
    assert (ledger.ledgers, ledger.bytes_total, ledger.state) == ([], 0, "ClosedLedger")


async def test_new_ledgers_have_the_quorums_of_the_moment() -> None:
    stage = Stage()
    bookies = LocalBookies([stage.bookie, MemoryBookie("b1"), MemoryBookie("b2")])
    client = LedgerClient(stage.store, bookies, stage.clock, SINGLE)
    ledger = await ManagedLedgerFactory(stage.store, client, stage.clock).open(NAME)
    first, _ = await publish(ledger, b"one")
    ledger.quorums = Quorums(3, 2, 1)
    assert (await publish(ledger, b"two"))[0] == first  # a loaded topic continues with its ledger
    await ledger.roll_over()
    second, _ = await publish(ledger, b"three")
    spread = []
    for ledger_id in (first, second):
        metadata = (await client.open(ledger_id, recover=False)).metadata
        spread.append((metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum))
    assert spread == [(1, 1, 1), (3, 2, 1)]
