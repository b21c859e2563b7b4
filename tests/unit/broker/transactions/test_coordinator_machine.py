"""Coordinators that take over from each other, over a store that delays, loses and reorders writes.

Brokers crash at any write and at any notification; every answer may be lost. At every moment: an id
is given out once; a client that has its answer, a participant and the stored record never
contradict each other on an outcome; no participant hears of an outcome before it is durable. At the
end, once all is answered again: of a joint commit, all transactions are committed or none by it;
every decided transaction has ended at every participant that a
client has added with success, and no transaction has another outcome than the one answered.
"""

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.broker.transactions.stage import OTHER, TOPIC, Connection, Stage, turns

from magnetar.broker.transactions import groups, participants, writer
from magnetar.broker.transactions.coordinator import Coordinator
from magnetar.core.errors import (
    InvalidTxnStatus,
    MagnetarError,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.transactions.model import Outcome, TxnId
from magnetar.transactions.records import decode_record, records_prefix

TIMEOUT_MS = 10_000
PICKS = st.integers(0, 1_000)


class CoordinatorMachine(RuleBasedStateMachine):
    """Up to two processes that both serve the coordinator, and a model of the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = (groups.RETRY_S_MIN, groups.RETRY_S_MAX, writer.IDLE_DELAY_S)
        groups.RETRY_S_MIN = groups.RETRY_S_MAX = writer.IDLE_DELAY_S = 0.0  # type: ignore[misc]
        self.notify_bounds = (participants.RETRY_S_MIN, participants.RETRY_S_MAX)
        participants.RETRY_S_MIN = participants.RETRY_S_MAX = 0.0  # type: ignore[misc]
        self.loop = asyncio.new_event_loop()
        self.stage = self._run(self._new_stage())
        self.coordinators: list[Coordinator] = [self._run(self.stage.load("0"))]
        self.loads = 1
        self.begun: list[TxnId] = []
        self.added: dict[TxnId, set[str]] = {}
        self.decided: dict[TxnId, Outcome] = {}
        self.heard: dict[TxnId, Outcome] = {}
        self.joint: dict[TxnId, tuple[TxnId, ...]] = {}
        """Leading transactions, which are committed with these or not at all."""
        self.tried: set[TxnId] = set()
        """The transactions whose end was requested."""
        self.asked: dict[asyncio.Task[object], tuple[str, TxnId | None, object]] = {}

    async def _new_stage(self) -> Stage:
        return Stage()

    async def _tick(self, coordinator: Coordinator) -> None:
        coordinator.tick()

    def _run(self, work):
        return self.loop.run_until_complete(work)

    def _settle(self) -> None:
        self._run(turns(30))
        for task in [task for task in self.asked if task.done()]:
            kind, txn, value = self.asked.pop(task)
            error = task.exception()
            assert error is None or isinstance(error, MagnetarError), error
            if kind == "begin" and error is None:
                begun = task.result()
                assert isinstance(begun, TxnId)
                assert begun not in self.begun, "an id was given out twice"
                self.begun.append(begun)
            elif kind == "add" and txn is not None and error is None:
                self.added.setdefault(txn, set()).add(str(value))
            elif kind == "end" and txn is not None:
                self._ended(txn, value, error)

    def _ended(self, txn: TxnId, outcome: object, error: BaseException | None) -> None:
        assert isinstance(outcome, Outcome)
        if error is None:
            assert self.decided.setdefault(txn, outcome) is outcome, "two outcomes were answered"
            if outcome is Outcome.COMMIT:
                for other in self.joint.get(txn, ()):
                    assert self.decided.setdefault(other, outcome) is outcome, (
                        "a joined one differs"
                    )
        elif isinstance(error, InvalidTxnStatus):
            assert self.decided.get(txn) is not outcome, "an answered outcome was denied"
        else:
            assert isinstance(error, TransactionCoordinatorNotFound | TransactionNotFound)

    def _ask(self, work, kind: str, txn: TxnId | None, value: object) -> None:
        self.asked[self.loop.create_task(work)] = (kind, txn, value)
        self._settle()

    def _pick(self, pick: int) -> TxnId:
        return self.begun[pick % len(self.begun)]

    def _coordinator(self, pick: int) -> Coordinator:
        return self.coordinators[pick % len(self.coordinators)]

    @rule(at=PICKS)
    def begins(self, at: int) -> None:
        self._ask(self._coordinator(at).begin(None, TIMEOUT_MS), "begin", None, None)

    @precondition(lambda self: self.begun)
    @rule(at=PICKS, pick=PICKS, topic=st.sampled_from([TOPIC, OTHER]))
    def adds(self, at: int, pick: int, topic: str) -> None:
        txn = self._pick(pick)
        work = self._coordinator(at).add(txn.least, self.stage.caller(), [topic])
        self._ask(work, "add", txn, topic)

    @precondition(lambda self: self.begun)
    @rule(at=PICKS, pick=PICKS, outcome=st.sampled_from(Outcome))
    def ends(self, at: int, pick: int, outcome: Outcome) -> None:
        self._end(at, self._pick(pick), outcome)

    @precondition(lambda self: len(self.begun) > 2)
    @rule(at=PICKS, pick=PICKS, others=st.sets(PICKS, min_size=1, max_size=3))
    def ends_jointly(self, at: int, pick: int, others: set[int]) -> None:
        lead = self._pick(pick)
        joined = {self._pick(other) for other in others} - {lead} - self.joint.keys()
        taken = {txn for group in self.joint.values() for txn in group}
        if lead not in self.tried and lead not in taken and joined:
            self.joint.setdefault(lead, tuple(sorted(joined)))
        self._end(at, lead, Outcome.COMMIT)

    def _end(self, at: int, txn: TxnId, outcome: Outcome) -> None:
        self.tried.add(txn)
        joined = self.joint.get(txn, ()) if outcome is Outcome.COMMIT else ()
        numbers = tuple(other.least for other in joined)
        caller = self.stage.caller(connection=Connection())
        work = self._coordinator(at).end(txn.least, caller, outcome, numbers)
        self._ask(work, "end", txn, outcome)

    @rule()
    def the_store_slows_down(self) -> None:
        self.stage.store.holding = True

    @rule()
    def the_store_recovers(self) -> None:
        self.stage.store.holding = False

    @precondition(lambda self: self.stage.store.held)
    @rule(pick=PICKS, how=st.sampled_from(["lands", "unanswered", "lost"]))
    def a_write_is_done(self, pick: int, how: str) -> None:
        """A lost write stays: it may still take effect after its broker has died."""
        held = self.stage.store.held[pick % len(self.stage.store.held)]
        if how == "lost":
            held.is_lost()
        else:
            self.stage.store.held.remove(held)
            self._run(held.lands() if how == "lands" else held.lands_unanswered())
        self._settle()

    @rule(holding=st.booleans())
    def participants_hang(self, holding: bool) -> None:
        self.stage.participants.holding = holding

    @precondition(lambda self: self.stage.participants.held)
    @rule(pick=PICKS)
    def a_participant_answers(self, pick: int) -> None:
        held = self.stage.participants.held
        future = held.pop(pick % len(held))
        if not future.done():
            future.set_result(None)
        self._settle()

    @rule(ms=st.integers(1, TIMEOUT_MS))
    def time_passes(self, ms: int) -> None:
        self.stage.set_clock.ms += ms
        for coordinator in self.coordinators:
            self._run(self._tick(coordinator))
        self._settle()

    @rule()
    def another_broker_takes_over(self) -> None:
        """The former one may not know it."""
        self.coordinators.append(self._run(self.stage.load(str(self.loads))))
        self.loads += 1
        if len(self.coordinators) > 2:
            self._run(self.coordinators.pop(0).close())
        self._settle()

    @precondition(lambda self: len(self.coordinators) == 2)
    @rule()
    def the_former_broker_dies(self) -> None:
        self._run(self.coordinators.pop(0).close())
        self._settle()

    @invariant()
    def all_agree(self) -> None:
        for _, txn, outcome in self.stage.participants.told:
            assert self.heard.setdefault(txn, outcome) is outcome, "participants disagree"
            assert self.decided.get(txn, outcome) is outcome, "the client was told otherwise"
        for record in self._run(self.stage.store.list(records_prefix(0))):
            txn = TxnId(0, int(record.key.rpartition("/")[2]))
            outcome = decode_record(record.key, record.value).state.outcome
            assert self.heard.get(txn) in (None, outcome), "heard before it was durable"
            assert self.decided.get(txn) in (None, outcome), "answered before it was durable"

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            for coordinator in self.coordinators:
                self._run(coordinator.close())
            for task in self.asked:
                task.cancel()
            self._run(turns(5))
            self.loop.close()
            groups.RETRY_S_MIN, groups.RETRY_S_MAX, writer.IDLE_DELAY_S = self.bounds  # type: ignore[misc]
            participants.RETRY_S_MIN, participants.RETRY_S_MAX = self.notify_bounds  # type: ignore[misc]

    def _finish(self) -> None:
        store, told = self.stage.store, self.stage.participants
        store.holding = told.holding = False
        for held in store.held:
            self._run(held.lands())
        for future in told.held:
            if not future.done():
                future.set_result(None)
        self.another_broker_takes_over()
        last = self.coordinators[-1]
        self._run(turns(200))
        self.stage.set_clock.ms += 2 * TIMEOUT_MS
        self._run(self._tick(last))
        self._run(turns(200))
        self._settle()
        self.all_agree()
        assert not last.active_count, "a transaction did not end"
        for lead, joined in self.joint.items():
            if self.heard.get(lead) is Outcome.COMMIT:
                assert {self.heard.get(txn) for txn in joined} <= {Outcome.COMMIT, None}
        for txn, topics in self.added.items():
            notified = {name for name, other, _ in told.told if other == txn}
            assert topics <= notified, "a participant was forgotten"


TestCoordinator = CoordinatorMachine.TestCase
TestCoordinator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
