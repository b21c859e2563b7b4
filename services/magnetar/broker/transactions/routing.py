"""The topics and subscriptions of the whole cluster as participants of transactions.

Those of this broker are called directly. For the others, the broker looks up their owners, as
clients do, and sends END_TXN_ON_PARTITION or END_TXN_ON_SUBSCRIPTION there.
"""

from collections.abc import Callable
from typing import Final

from google.protobuf.message import Message

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.peers.client import PeerClient
from magnetar.broker.transactions.local import LocalParticipants
from magnetar.core.errors import ServiceNotReady, TopicNotFound
from magnetar.core.names import parse_topic
from magnetar.transactions.model import Outcome, TxnId
from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType

ACTIONS: Final = {Outcome.COMMIT: pb.TxnAction.COMMIT, Outcome.ABORT: pb.TxnAction.ABORT}


class RoutedParticipants:
    """Ends transactions on all brokers (`Participants`)."""

    def __init__(self, local: LocalParticipants, peers: PeerClient) -> None:
        self._local = local
        self._peers = peers

    def end_on_topic_at_once(self, topic: str, txn: TxnId, outcome: Outcome) -> bool:
        """See `Participants`."""
        return self._local.end_on_topic_at_once(topic, txn, outcome)

    async def end_on_topic(self, topic: str, txn: TxnId, outcome: Outcome) -> None:
        """See `Participants`."""
        try:
            broker = await self._broker_of(topic)
        except TopicNotFound:
            return  # deleted with its namespace
        if broker is None:
            await self._local.end_on_topic(topic, txn, outcome)
            return
        await self._request(
            broker,
            CommandType.END_TXN_ON_PARTITION,
            lambda request_id: pb.CommandEndTxnOnPartition(
                request_id=request_id,
                txnid_most_bits=txn.most,
                txnid_least_bits=txn.least,
                topic=topic,
                txn_action=ACTIONS[outcome],
            ),
        )

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, outcome: Outcome
    ) -> None:
        """See `Participants`."""
        try:
            broker = await self._broker_of(topic)
        except TopicNotFound:
            return
        if broker is None:
            await self._local.end_on_subscription(topic, subscription, txn, outcome)
            return
        await self._request(
            broker,
            CommandType.END_TXN_ON_SUBSCRIPTION,
            lambda request_id: pb.CommandEndTxnOnSubscription(
                request_id=request_id,
                txnid_most_bits=txn.most,
                txnid_least_bits=txn.least,
                subscription=pb.Subscription(topic=topic, subscription=subscription),
                txn_action=ACTIONS[outcome],
            ),
        )

    async def _broker_of(self, topic: str) -> BrokerRecord | None:
        """Returns the broker that serves the topic, None if it is this one."""
        name = parse_topic(topic)
        if self._local.owns(name):
            return None
        located = await self._local.ownership.locate(name, authoritative=False)
        return located.broker

    async def _request(
        self, broker: BrokerRecord, kind: int, command: Callable[[int], Message]
    ) -> None:
        """Sends a request; raises ServiceNotReady if it failed."""
        response = await self._peers.request(broker, kind, command)
        if not isinstance(
            response,
            pb.CommandEndTxnOnPartitionResponse | pb.CommandEndTxnOnSubscriptionResponse,
        ):
            raise ServiceNotReady(f"Broker {broker.broker_id} sent another response")
        if response.HasField("error"):
            raise ServiceNotReady(f"Broker {broker.broker_id}: {response.message}")
