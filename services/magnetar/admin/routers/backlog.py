"""The size of backlogs: in bytes after a message, and in messages of a subscription."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.placement import at_owner
from magnetar.admin.context import (
    persistent_topic,
    refuse_broken,
    refuse_partitioned,
    service_of,
    subscription_not_found,
    text_of,
    topic_of,
)
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.paths import TOPIC_PATH
from magnetar.admin.http.routes import Routes
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.core.ids import EARLIEST, Position
from magnetar.documents.resources import MessageId
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.entry import parse_metadata
from magnetar.wire.framing import MalformedEntry

router = Routes(prefix="/admin/v2", tags=("topics",), placement=at_owner)


SCANNED_ENTRIES_MAX: Final = 10_000
"""subscriptionBacklogScanMaxEntries; `aborted` in the answer says that the limit was reached."""
_ONE_PARTITION: Final = (
    "Analyze backlog on a partitioned topic is not allowed, please try do it on specific topic "
    "partition"
)
READ_ENTRIES: Final = 500
READ_BYTES: Final = 4 << 20


@router.put(
    TOPIC_PATH + "/backlogSize",
    summary="Bytes behind a message; all bytes before the first one",
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
        before = start.entry_id + 1 if info.ledger_id == start.ledger_id else 0
        kept = max(info.entries - before, 0)
        total += info.size_bytes * kept // info.entries
    return answer(total)


@router.post(
    TOPIC_PATH + "/subscription/{subscription:name}/analyzeBacklog",
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
    start = await bodies.parse(request, MessageId)
    return answer(await _scan(subscription, EARLIEST if start is None else start.cursor_position))


async def _scan(subscription: PersistentSubscription, start: Position) -> dict[str, object]:
    """Counts entries from `start`, or from the oldest unacknowledged entry if that is later.

    A scan reads at most SCANNED_ENTRIES_MAX entries; clients continue after the last one.
    """
    ledger, cursor = subscription.ledger, subscription.cursor
    entries = messages = markers = scanned = 0
    first = last = None
    position = max(start, ledger.next_position(cursor.mark_delete))
    while scanned < SCANNED_ENTRIES_MAX and position <= ledger.last_confirmed:
        page = await ledger.read(position, READ_ENTRIES, READ_BYTES)
        if not page:
            break
        scanned += len(page)
        for entry in page:
            if cursor.is_acked(entry.ledger_id, entry.entry_id):
                continue
            first, last = first or entry.position, entry.position
            entries += 1
            count = _message_count(entry)
            markers += count == 0
            messages += count
        position = ledger.next_position(page[-1].position)
    ids = {} if first is None else {"firstMessageId": str(first), "lastMessageId": str(last)}
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
        **ids,
    }


def _message_count(entry: Entry) -> int:
    """Returns the number of messages in the entry; 0 for a marker that the broker wrote."""
    try:
        metadata = parse_metadata(entry.data)
    except MalformedEntry:
        return 1
    return 0 if metadata.HasField("marker_type") else metadata.num_messages_in_batch
