"""What the topics and subscriptions of a transaction know about it.

The owner of each topic answers for it: this broker directly, another one by its REST. A participant
that does not answer has an empty object, so that a broker that is down does not hide the rest.
`Sender` bounds the number of requests at a time.
"""

import asyncio
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.requests import Request

from magnetar.admin.cluster.peers import FAN_OUT_TIMEOUT_S, Peers
from magnetar.admin.cluster.placement import peers_of
from magnetar.admin.context import persistent_topic, service_of
from magnetar.admin.stats.transactions import in_buffer_stats, in_pending_ack_stats
from magnetar.broker.service import BrokerService
from magnetar.core.errors import MagnetarError
from magnetar.core.names import TopicName, parse_topic
from magnetar.transactions.model import SubscriptionInTxn, TransactionRecord, TxnId

V3: Final = "/admin/v3/transactions"
DESCRIBED_MAX: Final = 200
"""Participants that are asked for one answer; the others have empty objects."""

Stats = Mapping[str, object]
Participant = str | SubscriptionInTxn
"""A topic or a subscription, under the names that the client gave."""


async def stats_of(
    request: Request, txn: TxnId, record: TransactionRecord
) -> Mapping[Participant, Stats]:
    """Returns what the participants answer, of those that do within FAN_OUT_TIMEOUT_S."""
    asked: list[Participant] = [*record.topics]
    asked += record.subscriptions
    service, peers = service_of(request), peers_of(request)
    by_participant: dict[Participant, Stats] = {}

    async def ask(participant: Participant) -> None:
        try:
            if peers is None:
                stats = await _here(service, txn, participant)
            else:
                stats = await _at_owner(peers, txn, participant)
        except MagnetarError:
            return
        if stats is not None:
            by_participant[participant] = stats

    try:
        async with asyncio.timeout(FAN_OUT_TIMEOUT_S), asyncio.TaskGroup() as group:
            for participant in asked[:DESCRIBED_MAX]:
                group.create_task(ask(participant), name=f"{participant} in {txn}")
    except TimeoutError:
        pass  # those that have answered are in the answer
    return by_participant


def _names(participant: Participant) -> tuple[TopicName, str | None]:
    if isinstance(participant, SubscriptionInTxn):
        return parse_topic(participant.topic), participant.name
    return parse_topic(participant), None


async def _here(service: BrokerService, txn: TxnId, participant: Participant) -> Stats | None:
    name, subscription_name = _names(participant)
    topic = await persistent_topic(service, name, "Get the transactions")
    if subscription_name is None:
        return in_buffer_stats(topic, txn) or {"aborted": False}
    subscription = topic.subscriptions.get(subscription_name)
    return None if subscription is None else in_pending_ack_stats(subscription, txn)


async def _at_owner(peers: Peers, txn: TxnId, participant: Participant) -> Stats | None:
    name, subscription_name = _names(participant)
    path = f"{name.tenant}/{name.namespace_local}/{name.encoded_local}"
    if subscription_name is None:
        path = f"{V3}/transactionInBufferStats/{path}/{txn.most}/{txn.least}"
    else:
        path = f"{path}/{quote(subscription_name, safe='')}/{txn.most}/{txn.least}"
        path = f"{V3}/transactionInPendingAckStats/{path}"
    answer = await peers.request_owner(name, path)
    return msgspec.json.decode(answer.body, type=dict[str, object]) if answer.succeeded else None
