"""Whether records, ledgers and what brokers serve agree, once nothing is under way any more.

Asked of the store and of the brokers' memory themselves: a subscription that is served without a
record, a record that nobody serves, and a ledger that a record names and that is gone all look
well from outside for as long as nobody comes by.
"""

from typing import TYPE_CHECKING

from tests.sim.offloads import offloaded

from magnetar.broker.catalog.topic_names import ledger_name, topic_of_ledger
from magnetar.broker.ownership.rings import namespace_key
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import parse_topic
from magnetar.ledger.metadata import LEDGERS_PREFIX, decode
from magnetar.managed_ledger.record import (
    ABORTED_CURSOR,
    MANAGED_LEDGERS_PREFIX,
    NO_LEDGER,
    PAYLOAD_CURSORS,
    CursorRecord,
    cursor_name,
    cursors_prefix,
    decode_cursor,
    decode_managed_ledger,
)

if TYPE_CHECKING:
    from tests.sim.world import World

BROKERS_OWN = {ABORTED_CURSOR, *PAYLOAD_CURSORS}
"""Cursors without a subscription."""


def disagreement(world: "World") -> str:
    """The first thing that does not fit; nothing where all does."""
    records = world.metadata.store._records
    ledgers = {
        decode(key, one.value).ledger_id
        for key, one in records.items()
        if key.startswith(LEDGERS_PREFIX)
    }
    known: set[int] = set()
    for key, one in records.items():
        if not key.startswith(MANAGED_LEDGERS_PREFIX):
            continue
        record, name = decode_managed_ledger(key, one.value), key[len(MANAGED_LEDGERS_PREFIX) :]
        listed, cursors = {item.ledger_id for item in record.ledgers}, _cursors(world, name)
        known |= listed | set(record.deleting)
        for its in cursors.values():
            known |= {its.ledger_id, *its.deleting, *its.kept}
        if record.deleted:
            continue  # the next to open it ends its deletion
        if namespace_key(topic_of_ledger(name).namespace) not in records:
            return f"{name} has no namespace"
        if lost := sorted(listed - ledgers - offloaded(world)):
            return f"{name} lists ledgers {lost}, which do not exist"
        for cursor, its in cursors.items():
            if its.ledger_id != NO_LEDGER and its.ledger_id not in ledgers:
                return f"{name}/{cursor} is in ledger {its.ledger_id}, which does not exist"
    if leaked := sorted(ledgers - known):
        return f"ledgers {leaked} exist, and no record has them"
    return _claims(world) or _served(world)


def trimmed_early(world: "World") -> str:
    """A ledger that holds receipted messages and is gone, though all are kept for longer than a
    run lasts; of topics that nobody deletes."""
    for topic in world.plan.topics:
        name = ledger_name(parse_topic(topic.name))
        stored = world.metadata.store._records.get(f"{MANAGED_LEDGERS_PREFIX}{name}")
        listed = set[int]()
        if stored is not None:
            record = decode_managed_ledger(name, stored.value)
            listed = {item.ledger_id for item in record.ledgers}
        sent = world.history.topic(topic.name).sent.values()
        written = {one.receipt[0] for one in sent if one.receipt is not None}
        if gone := sorted(written - listed):
            return f"{topic.name}: ledgers {gone} are not kept for the time of retention"
    return ""


def _cursors(world: "World", name: str) -> dict[str, CursorRecord]:
    prefix = cursors_prefix(name)
    return {
        cursor_name(key): decode_cursor(key, one.value)
        for key, one in world.metadata.store._records.items()
        if key.startswith(prefix)
    }


def _claims(world: "World") -> str:
    """What a broker takes for its own is its own in the store."""
    for node in world.brokers:
        if not node.alive or node.service is None:
            continue
        for claim in node.service.cluster_ownership.claims.all.values():
            record = world.metadata.store._records.get(claim.key)
            if record is None or record.revision != claim.revision:
                return f"{node.name} has {claim.bundle}, which the store does not say"
    return ""


def _served(world: "World") -> str:
    for node in world.brokers:
        if not node.alive or node.service is None:
            continue
        for topic in node.service.topics:
            if not isinstance(topic, PersistentTopic) or not topic.serving:
                continue
            stored = set(_cursors(world, ledger_name(topic.name))) - BROKERS_OWN
            served = {name for name, one in topic.subscriptions.items() if one.cursor.durable}
            if extra := sorted(served - stored):
                return f"{node.name} serves {topic.full_name}/{extra[0]}, which has no record"
            if unseen := sorted(stored - served):
                broken = topic.managed_ledger.broken_cursors.get(unseen[0])
                why = "" if broken is None else f": {broken[1]}"
                return f"{node.name} does not serve {topic.full_name}/{unseen[0]}{why}"
    return ""
