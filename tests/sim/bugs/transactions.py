"""Planted bugs of transactions: topics, subscriptions, coordinators."""

from typing import Any, Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import faults, together, topics, transactions

from magnetar.broker.ownership.ownership import ClusterOwnership
from magnetar.broker.session import transactions as commands
from magnetar.broker.session.transactions import _RESPONSES
from magnetar.broker.subscription.transactions import SubscriptionTransactions
from magnetar.broker.topic.transactions import topic_transactions
from magnetar.broker.topic.transactions.buffer import OpenTxn, TxnBuffer
from magnetar.broker.topic.transactions.questions import Questions
from magnetar.broker.topic.transactions.topic_transactions import TopicTransactions
from magnetar.broker.transactions.coordinator import Coordinator
from magnetar.managed_ledger.ack_state import AckState
from magnetar.managed_ledger.cursors import Cursors
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.pending_acks import Part, PendingAcks
from magnetar.transactions.model import Outcome


def _nothing(*_given: Any) -> None:
    """Takes the place of what must happen."""


def open_messages_are_dispatched() -> None:
    plant(ManagedLedger, "move_horizon", _nothing)


def the_horizon_is_the_last_transaction() -> None:
    def last(self: TxnBuffer) -> Any:
        found = [open_txn.first for open_txn in self._with_entries.values()]
        return found[-1] if found else None

    plant(TxnBuffer, "horizon", property(last))


def aborts_are_answered_before_they_are_durable() -> None:
    async def abort(self: ManagedLedger, entries: Any) -> None:
        for cursor in self._cursors.skipping():
            for ledger_id, ids in entries.items():
                cursor.skip_entries(ledger_id, ids)

    plant(ManagedLedger, "abort_entries", abort)


def new_cursors_see_aborted_entries() -> None:
    plant(AckState, "skip_all_of", _nothing)


def recovery_takes_all_for_committed() -> None:
    async def nothing(*_given: Any, **_more: Any) -> None:
        pass

    plant(topic_transactions, "scan", nothing)


def an_end_does_not_wait_for_appends() -> None:
    async def at_once(self: Any) -> None:
        pass

    plant(OpenTxn, "when_drained", at_once)


def late_messages_open_their_transaction_again() -> None:
    plant(topic_transactions, "send_refusal", _nothing)
    answered = TopicTransactions._answered

    def always(self: TopicTransactions, txn: Any, record: Any, error: Any) -> None:
        if error is None and record is None:
            self.buffer.admit(txn, 1 << 50)
            self._on_answer()
            return
        answered(self, txn, record, error)

    plant(TopicTransactions, "_answered", always)


def pending_acks_are_delivered_again() -> None:
    plant(PendingAcks, "withholds", lambda *_: False)
    plant(PendingAcks, "left_of", lambda *given: given[-1])


def acks_conflict_with_nothing() -> None:
    def free(self: PendingAcks, *_given: Any) -> None:
        pass

    plant(PendingAcks, "check_entry", free)
    plant(PendingAcks, "check_part", free)
    plant(PendingAcks, "check_cumulative", free)


def committed_messages_of_a_batch_may_be_acked_again() -> None:
    plant(Part, "is_new", lambda self, remaining, **_: bool(remaining & self.named))


def commits_of_acks_are_not_flushed() -> None:
    async def end(self: SubscriptionTransactions, txn: Any, outcome: Outcome) -> None:
        commit = outcome is Outcome.COMMIT
        acks = self._cursor.end_pending(txn, commit=commit)
        dispatcher = self._subscription.dispatcher
        if acks is not None and dispatcher is not None:
            (dispatcher.committed if commit else dispatcher.aborted)(acks)

    plant(SubscriptionTransactions, "_end", end)


def pending_acks_are_not_stored() -> None:
    plant(PendingAcks, "take_fresh", lambda _: {})


def an_abort_redelivers_nothing() -> None:
    end = SubscriptionTransactions._end

    async def silent(self: SubscriptionTransactions, txn: Any, outcome: Outcome) -> None:
        if outcome is Outcome.ABORT:
            self._cursor.end_pending(txn, commit=False)
        await end(self, txn, outcome)

    plant(SubscriptionTransactions, "_end", silent)


def ends_during_a_question_are_forgotten() -> None:
    plant(Questions, "ended", _nothing)


def aborted_entries_are_not_loaded() -> None:
    async def skipped(self: Cursors, cursor_log: Any) -> None:
        pass

    plant(Cursors, "_load_aborted", skipped)


def a_joint_commit_commits_its_leader_only() -> None:
    def alone(self: Coordinator, number: int, txn: Any) -> None:
        self._release(txn.record.joined, None)
        self._notify(number, txn)

    plant(Coordinator, "_commit_joined", alone)


def a_recovered_joint_commit_commits_its_leader_only() -> None:
    recover, commit_joined = Coordinator._recover, Coordinator._commit_joined
    recovering: set[Coordinator] = set()

    def recovered(self: Coordinator, records: Any) -> None:
        recovering.add(self)
        recover(self, records)
        recovering.discard(self)

    def alone(self: Coordinator, number: int, txn: Any) -> None:
        (Coordinator._notify if self in recovering else commit_joined)(self, number, txn)

    plant(Coordinator, "_recover", recovered)
    plant(Coordinator, "_commit_joined", alone)


def a_coordinator_outlives_its_tenure() -> None:
    plant(ClusterOwnership, "tenure", lambda *_: 0)
    # Otherwise the write that confirms a refusal shows it that it is not the owner.
    plant(Coordinator, "_refuse", lambda _self, _number, refusal, on_done: on_done(refusal))


def a_listed_transaction_may_end_meanwhile() -> None:
    plant(Coordinator, "_hold", _nothing)


def a_joint_commit_leaves_out_what_has_ended() -> None:
    request_end: Any = Coordinator.request_end

    def without(self: Coordinator, number: int, *given: Any) -> None:
        *others, joined = given
        request_end(self, number, *others, tuple(one for one in joined if one in self._active))

    plant(Coordinator, "request_end", without)


def refusals_name_no_coordinator() -> None:
    def response(kind: int, command: Any) -> Any:
        answer = _RESPONSES[kind][1](request_id=command.request_id)
        if hasattr(command, "txnid_most_bits"):
            answer.txnid_most_bits = command.txnid_most_bits
            answer.txnid_least_bits = command.txnid_least_bits
        return answer

    plant(commands, "_response", response)


MOVES: Final = together(topics(), transactions())
JOINT: Final = together(MOVES, transactions(source_kind=1, joint_chance=1.0))
UNLOADS: Final = together(MOVES, faults("unload topic", "unload bundles", count=6))
KILLS: Final = together(MOVES, faults("kill broker", "unload topic", "resets", count=6))

BUGS: Final = (
    Bug(
        "messages of open transactions are dispatched",
        "A consumer gets messages before their commit.",
        open_messages_are_dispatched,
        0,
        MOVES,
    ),
    Bug(
        "the horizon is the newest transaction",
        "Messages between the first and the last open transaction are delivered.",
        the_horizon_is_the_last_transaction,
        0,
        MOVES,
    ),
    Bug(
        "an abort is answered before it is durable",
        "The topic's broker dies after the answer; without a record, the messages are committed.",
        aborts_are_answered_before_they_are_durable,
        0,
        together(KILLS, transactions(retention_s=1, abort_chance=0.5)),
    ),
    Bug(
        "aborted entries are forgotten with their owner",
        "The next owner of a topic does not load them.",
        aborted_entries_are_not_loaded,
        0,
        together(UNLOADS, transactions(retention_s=1, abort_chance=0.5)),
    ),
    Bug(
        "recovery finds no open transactions",
        "The next owner of a topic takes all messages for committed.",
        recovery_takes_all_for_committed,
        0,
        together(UNLOADS, transactions(pace_s=0.5)),
    ),
    Bug(
        "the end does not wait for appends",
        "A message that is being stored during an abort is not hidden.",
        an_end_does_not_wait_for_appends,
        3,
        together(MOVES, faults("slow disk", "late copy", "stalls", count=6)),
    ),
    Bug(
        "a transaction without a record is admitted",
        "A late message of an ended transaction holds its topic back for good.",
        late_messages_open_their_transaction_again,
        0,
        together(KILLS, transactions(retention_s=1, timeout_s=2.0, pace_s=0.5)),
    ),
    Bug(
        "pending acks are delivered again",
        "A consumer that attaches gets messages that an open transaction has acked.",
        pending_acks_are_delivered_again,
        0,
        together(UNLOADS, transactions(timeout_s=20.0, pace_s=0.5)),
    ),
    Bug(
        "acks of transactions are never in conflict",
        "Two transactions ack the same message, and both are committed.",
        acks_conflict_with_nothing,
        5,
        together(MOVES, transactions(source_kind=1, abort_chance=0.5, pace_s=0.5)),
    ),
    Bug(
        "messages of a batch may be acked twice",
        "A transaction acks messages of a batch of which another one has committed some.",
        committed_messages_of_a_batch_may_be_acked_again,
        16,
        together(MOVES, transactions(source_kind=1, abort_chance=0.5)),
    ),
    Bug(
        "the commit of acks is answered before it is durable",
        "A broker dies after the answer, and the messages come again.",
        commits_of_acks_are_not_flushed,
        8,
        together(MOVES, faults("kill at a receipt", count=6), transactions(retention_s=0)),
    ),
    Bug(
        "pending acks are not stored",
        "The next owner of a topic does not know them: the commit acks nothing.",
        pending_acks_are_not_stored,
        0,
        together(UNLOADS, transactions(pace_s=0.5)),
    ),
    Bug(
        "an abort of acks redelivers nothing",
        "The messages stay unacked at no consumer.",
        an_abort_redelivers_nothing,
        2,
        together(MOVES, transactions(abort_chance=0.5)),
    ),
    Bug(
        "the end during a question is forgotten",
        "A record that was read before the end admits a message after it.",
        ends_during_a_question_are_forgotten,
        106,
        together(MOVES, faults("slow writes", "late writes", "cut off metadata", count=6)),
    ),
    Bug(
        "a joint commit commits its leader only",
        "The other transactions time out, and half of the messages are aborted.",
        a_joint_commit_commits_its_leader_only,
        1,
        JOINT,
    ),
    Bug(
        "a recovered joint commit commits its leader only",
        "The coordinator's broker dies once the list is durable, and its successor ignores it.",
        a_recovered_joint_commit_commits_its_leader_only,
        0,
        together(JOINT, transactions(timeout_s=2.0), faults("strike at a record", count=8)),
    ),
    Bug(
        "a coordinator that comes back is the former one",
        "It refuses what another broker has begun and decided meanwhile, and asks nobody.",
        a_coordinator_outlives_its_tenure,
        126,
        together(
            MOVES,
            transactions(retention_s=600, messages=120, pace_s=0.05),
            faults("strike at a record", count=12),
        ),
    ),
    Bug(
        "a transaction ends while its joint commit is written",
        "It times out between the request and the record, which lists it.",
        a_listed_transaction_may_end_meanwhile,
        4,
        together(
            JOINT,
            transactions(timeout_s=2.0, pace_s=2.0),
            faults("slow writes", "late writes", "cut off metadata", count=10),
        ),
    ),
    Bug(
        "a joint commit leaves out what has ended",
        "One of its transactions has timed out, and the others are committed.",
        a_joint_commit_leaves_out_what_has_ended,
        103,
        together(JOINT, transactions(timeout_s=2.0, pace_s=2.0)),
    ),
    Bug(
        "a refusal of NEW_TXN names no coordinator",
        "Java's client takes it for an answer to another one, and never looks its own up again.",
        refusals_name_no_coordinator,
        11,
        together(
            MOVES,
            transactions(messages=120, pace_s=0.05),
            faults("unload bundles", "cut off metadata", count=8, for_s=8.0),
        ),
    ),
)
