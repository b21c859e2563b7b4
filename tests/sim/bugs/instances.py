"""Planted bugs of former instances of a topic, and of deletions that are cut or not answered."""

from typing import Final

from tests.sim.bugs.bug import Bug, plant
from tests.sim.bugs.leaning import churn, faults, many_rollovers, together, topics

from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.errors import ConsumerBusy, SubscriptionNotFound
from magnetar.managed_ledger.cursor_log import CursorLog
from magnetar.managed_ledger.cursors import Cursors
from magnetar.managed_ledger.tenure import Tenure
from magnetar.metadata.store import Check, MetadataUnavailable


def former_instances_write_on() -> None:
    async def checks(self: Tenure) -> tuple[Check, ...]:
        return (await self._context.guard(self.name)).checks

    async def at_once(self: Tenure) -> None:
        return None

    plant(Tenure, "error", property(lambda _: None))
    plant(Tenure, "_checks", checks)
    plant(Tenure, "settled", at_once)


def announced_ledgers_are_deleted() -> None:
    async def retire(self: CursorLog) -> None:
        await self._delete(self.record.deleting)

    former_instances_write_on()
    plant(CursorLog, "retire", retire)


def a_cut_deletion_is_as_before() -> None:
    async def delete(self: PersistentTopic, name: str, *, force: bool = False) -> None:
        self._check_serving()
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} not found")
        if subscription.consumers and not force:
            raise ConsumerBusy("Subscription has active connected consumers", http_status=412)
        subscription.end()
        try:
            await self.managed_ledger.delete_cursor(name)
        finally:
            if self.subscriptions.get(name) is subscription:
                del self.subscriptions[name]
                if name in self.managed_ledger.cursors:
                    self.subscriptions[name] = self._subscription(name)

    plant(PersistentTopic, "delete_subscription", delete)


def an_unknown_deletion_is_as_before() -> None:
    delete = Cursors.delete

    async def believed(self: Cursors, name: str) -> None:
        try:
            await delete(self, name)
        except MetadataUnavailable:
            cursor_log, error = self.doubted.pop(name)
            self._resume(name, cursor_log, error)
            raise

    plant(Cursors, "delete", believed)


UNDER_WAY: Final = faults("writes under way", "expire lease", "unload topic", count=8)

BUGS: Final = (
    Bug(
        "a cursor's new ledger is deleted before the switch",
        "A topic is closed and opened again by the same broker while a cursor's ledger is being "
        "rolled. The new instance deletes the ledger that the record retires, and the former "
        "instance then switches the record to it: every ack of the subscription is lost.",
        announced_ledgers_are_deleted,
        348,
        together(topics(), churn(cursor_bytes=1, hoard_chance=0.5, churners=2), UNDER_WAY),
    ),
    Bug(
        "a cut UNSUBSCRIBE leaves the subscription",
        "The connection is lost while UNSUBSCRIBE is under way: the cursor goes, the subscription "
        "stays in memory, and answers SUCCESS to a consumer that gets nothing after the next move.",
        a_cut_deletion_is_as_before,
        6,
        together(topics(), churn(cut_chance=0.4, churners=3), faults("slow network", count=3)),
    ),
    Bug(
        "a deletion without an answer is taken for none",
        "The store deletes a subscription's record and never answers. The subscription is served "
        "on, and receipts acks, until the topic moves: then it is gone.",
        an_unknown_deletion_is_as_before,
        2,
        together(topics(), churn(churners=3), faults("unanswered writes", count=2, for_s=8.0)),
    ),
    Bug(
        "a former instance writes under a later claim",
        "A write is not answered, the lease is lost, the bundle claimed again. The former instance "
        "repeats the write under the new claim: it trims ledgers that the new one still lists, "
        "deletes a subscription that has answered SUCCESS since, or undoes receipted acks.",
        former_instances_write_on,
        1218,
        together(
            topics(),
            many_rollovers(),
            churn(hoard_chance=0.5, churners=3, rest_chance=0.2),
            UNDER_WAY,
        ),
    ),
)
