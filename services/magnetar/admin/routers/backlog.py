"""How much is left to read: in bytes from a message on, and of a subscription in messages."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer
from magnetar.admin.cluster.route import at_owner
from magnetar.admin.context import (
    persistent_topic,
    refuse_broken,
    refuse_partitioned,
    service_of,
    subscription_not_found,
    text_of,
    topic_of,
)
from magnetar.admin.described import described
from magnetar.admin.documents import MessageId
from magnetar.admin.routes import Routes
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.core.ids import EARLIEST, Position
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

router = Routes(prefix="/admin/v2", tags=("topics",), placing=at_owner)

_TOPIC: Final = "/{domain:domain}/{tenant:name}/{namespace:name}/{topic:name}"

SCANNED_ENTRIES_MAX: Final = 10_000
"""subscriptionBacklogScanMaxEntries; the answer says where it stopped short (`aborted`)."""
_ONE_PARTITION: Final = (
    "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic "
    "partition"
)
READ_ENTRIES: Final = 500
READ_BYTES: Final = 4 << 20


@router.put(
    _TOPIC + "/backlogSize",
    summary="Bytes from a message to the end",
    openapi_extra=described(body="Message id", example={"ledgerId": -1, "entryId": -1}),
)
async def backlog_size(request: Request) -> Response:
    topic = await persistent_topic(service_of(request), topic_of(request), "Get backlog size")
    start = (await bodies.parse(request, MessageId) or MessageId()).position
    ledger = topic.managed_ledger
    total = 0
    for info in ledger.ledgers:
        if info.ledger_id < start.ledger_id or not info.entries:
            continue
        before = max(start.entry_id, 0) if info.ledger_id == start.ledger_id else 0
        kept = max(info.entries - before, 0)
        total += info.size_bytes * kept // info.entries
    return answer(total)


@router.post(
    _TOPIC + "/subscription/{subscription:name}/analyzeBacklog",
    summary="Count a subscription's unacknowledged messages by reading them",
    tags=("subscriptions",),
    openapi_extra=described(
        body="Message id to start at; the oldest unacknowledged one by default",
        example={"ledgerId": 3, "entryId": 0},
    ),
)
async def analyze(request: Request) -> Response:
    service, name = service_of(request), topic_of(request)
    await refuse_partitioned(service, name, _ONE_PARTITION)
    topic = await persistent_topic(service, name, "Analyze backlog")
    subscription = topic.subscriptions.get(text_of(request, "subscription"))
    refuse_broken(topic, text_of(request, "subscription"))
    if subscription is None:
        raise subscription_not_found(text_of(request, "subscription"), name)
    given = await bodies.parse(request, MessageId)
    return answer(await _scan(subscription, EARLIEST if given is None else given.cursor_position))


async def _scan(subscription: PersistentSubscription, start: Position) -> dict[str, object]:
    """Counts from `start`, or from the oldest unacknowledged entry if that is later.

    A scan reads SCANNED_ENTRIES_MAX entries at most; clients ask again from behind the last one.
    """
    ledger, cursor = subscription.ledger, subscription.cursor
    entries = messages = markers = scanned = 0
    first = last = None
    position = max(start, ledger.next_position(cursor.mark_delete))
    while scanned < SCANNED_ENTRIES_MAX and position <= ledger.last_confirmed:
        found = await ledger.read(position, READ_ENTRIES, READ_BYTES)
        if not found:
            break
        scanned += len(found)
        for entry in cursor.filter_unacked(found):
            first, last = first or entry.position, entry.position
            entries += 1
            count = _message_count(entry)
            markers += count == 0
            messages += count
        position = ledger.next_position(found[-1].position)
    found_ids = {} if first is None else {"firstMessageId": str(first), "lastMessageId": str(last)}
    return {
        "entries": entries,
        "messages": messages,
        "markerMessages": markers,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": entries,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": messages,
        "filterRescheduledMessages": 0,
        "aborted": position <= ledger.last_confirmed,
        **found_ids,
    }


def _message_count(entry: Entry) -> int:
    """Messages in the entry; 0 for a marker of the broker's own."""
    try:
        metadata = parse_metadata(entry.data)
    except MalformedEntry:
        return 1
    return 0 if metadata.HasField("marker_type") else metadata.num_messages_in_batch
