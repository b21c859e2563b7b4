"""A broker that answers as a test wants: nothing, twice, something else, or half a frame.

Without a script it answers enough for a client to open producers, consumers and readers of topics
without partitions, to send, to receive and to close them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.client_decoder import Answer, ClientDecoder
from magnetar.wire.commands import CommandType, command_name
from magnetar.wire.encoder import PONG_FRAME, encode_command

HOST: Final = "127.0.0.1"
LEDGER: Final = 7
CONNECT: Final = pb.CommandLookupTopicResponse.Connect
_PARTITIONS: Final = pb.CommandPartitionedTopicMetadataResponse

Script = Callable[["Session", Any], bool]
"""Gets a command; returns whether it has dealt with it, so that nothing else answers."""


def silent(session: "Session", message: Any) -> bool:
    """Answers nothing."""
    return True


def cut(session: "Session", message: Any) -> bool:
    """Sends a part of a frame, and closes the connection."""
    session.writer.write(encode_command(CommandType.SUCCESS, pb.CommandSuccess(request_id=1))[:-1])
    session.writer.close()
    return True


def twice(session: "Session", message: Any) -> bool:
    """Answers once more than usual."""
    session.answer(message)
    return False


_SUCCESSFUL: Final = (
    pb.CommandSeek,
    pb.CommandSubscribe,
    pb.CommandUnsubscribe,
    pb.CommandCloseConsumer,
    pb.CommandCloseProducer,
)
"""Requests whose answer is SUCCESS."""


def other(session: "Session", message: Any) -> bool:
    """Answers with the answer to another request."""
    if isinstance(message, _SUCCESSFUL):
        answer = pb.CommandProducerSuccess(request_id=message.request_id, producer_name="x")
        session.write(CommandType.PRODUCER_SUCCESS, answer)
    else:
        session.write(CommandType.SUCCESS, pb.CommandSuccess(request_id=message.request_id))
    return True


class Session:
    """One connection of a client."""

    def __init__(self, broker: "ScriptedBroker", writer: asyncio.StreamWriter) -> None:
        self.broker = broker
        self.writer = writer
        self._sent = 0

    def write(self, kind: int, message: Any) -> None:
        """Sends a command."""
        self.writer.write(encode_command(kind, message))

    def received(self, event: Any) -> None:
        """Answers a command, by the script of its type if there is one."""
        if not isinstance(event, Answer):
            return
        name = command_name(event.type)
        self.broker.received.append(name)
        script = self.broker.scripts.get(name)
        if script is None or not script(self, event.message):
            self.answer(event.message)

    def answer(self, message: Any) -> None:
        """Sends the usual answer to a command."""
        answers = _ANSWERS.get(type(message))
        if answers is not None:
            answers(self, message)

    def deliver(self, consumer_id: int, entry_id: int, payload: bytes) -> None:
        """Sends a message to a consumer."""
        message = pb.CommandMessage(consumer_id=consumer_id)
        message.message_id.ledgerId, message.message_id.entryId = LEDGER, entry_id
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=entry_id, publish_time=1)
        encoded = metadata.SerializeToString()
        command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=message).SerializeToString()
        body = len(command).to_bytes(4) + command + len(encoded).to_bytes(4) + encoded + payload
        self.writer.write(len(body).to_bytes(4) + body)

    def sent(self, send: pb.CommandSend) -> None:
        """Stores a message."""
        receipt = pb.CommandSendReceipt(producer_id=send.producer_id, sequence_id=send.sequence_id)
        receipt.message_id.ledgerId, receipt.message_id.entryId = LEDGER, self._sent
        self._sent += 1
        self.write(CommandType.SEND_RECEIPT, receipt)


def _flow(session: Session, message: Any) -> None:
    if session.broker.delivers:
        session.deliver(message.consumer_id, 0, b"delivered")


def _of_transaction(kind: int, answer: type[Any]) -> Callable[[Session, Any], None]:
    def send(session: Session, message: Any) -> None:
        session.write(kind, answer(request_id=message.request_id))

    return send


def _partitions(session: Session, message: Any) -> None:
    answer = _PARTITIONS(
        request_id=message.request_id,
        partitions=int(message.topic.endswith("_assign")),
        response=_PARTITIONS.Success,
    )
    session.write(CommandType.PARTITIONED_METADATA_RESPONSE, answer)


def _lookup(session: Session, message: Any) -> None:
    answer = pb.CommandLookupTopicResponse(
        request_id=message.request_id, brokerServiceUrl=session.broker.url, response=CONNECT
    )
    session.write(CommandType.LOOKUP_RESPONSE, answer)


def _last(session: Session, message: Any) -> None:
    answer = pb.CommandGetLastMessageIdResponse(request_id=message.request_id)
    answer.last_message_id.ledgerId, answer.last_message_id.entryId = LEDGER, 0
    session.write(CommandType.GET_LAST_MESSAGE_ID_RESPONSE, answer)


def _success(session: Session, message: Any) -> None:
    session.write(CommandType.SUCCESS, pb.CommandSuccess(request_id=message.request_id))


_ANSWERS: Final[dict[type, Callable[[Session, Any], None]]] = {
    pb.CommandConnect: lambda session, _: session.write(
        CommandType.CONNECTED, pb.CommandConnected(server_version="scripted", protocol_version=19)
    ),
    pb.CommandPartitionedTopicMetadata: _partitions,
    pb.CommandLookupTopic: _lookup,
    pb.CommandSubscribe: _success,
    pb.CommandSeek: _success,
    pb.CommandUnsubscribe: _success,
    pb.CommandCloseConsumer: _success,
    pb.CommandCloseProducer: _success,
    pb.CommandGetLastMessageId: _last,
    pb.CommandProducer: lambda session, message: session.write(
        CommandType.PRODUCER_SUCCESS,
        pb.CommandProducerSuccess(request_id=message.request_id, producer_name="scripted"),
    ),
    pb.CommandSend: Session.sent,
    pb.CommandAck: lambda session, message: session.write(
        CommandType.ACK_RESPONSE,
        pb.CommandAckResponse(consumer_id=message.consumer_id, request_id=message.request_id),
    ),
    pb.CommandFlow: _flow,
    pb.CommandTcClientConnectRequest: _of_transaction(
        CommandType.TC_CLIENT_CONNECT_RESPONSE, pb.CommandTcClientConnectResponse
    ),
    pb.CommandNewTxn: _of_transaction(CommandType.NEW_TXN_RESPONSE, pb.CommandNewTxnResponse),
    pb.CommandAddPartitionToTxn: _of_transaction(
        CommandType.ADD_PARTITION_TO_TXN_RESPONSE, pb.CommandAddPartitionToTxnResponse
    ),
    pb.CommandAddSubscriptionToTxn: _of_transaction(
        CommandType.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, pb.CommandAddSubscriptionToTxnResponse
    ),
    pb.CommandEndTxn: _of_transaction(CommandType.END_TXN_RESPONSE, pb.CommandEndTxnResponse),
    pb.CommandPing: lambda session, _: session.writer.write(PONG_FRAME),
}


class ScriptedBroker:
    """What the broker does, by the names of commands, and which it got."""

    def __init__(self) -> None:
        self.url = ""
        self.delivers = False
        """Whether consumers get a message when they ask for some."""
        self.scripts: dict[str, Script] = {}
        self.received: list[str] = []
        self.sessions: list[Session] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one client until it closes its connection."""
        decoder, session = ClientDecoder(), Session(self, writer)
        self.sessions.append(session)
        try:
            while data := await reader.read(1 << 16):
                while data:
                    room = decoder.get_buffer()
                    part, data = data[: len(room)], data[len(room) :]
                    room[: len(part)] = part
                    for event in decoder.received(len(part)):
                        session.received(event)
        except ConnectionError:
            pass
        finally:
            self.sessions.remove(session)
            writer.close()


@asynccontextmanager
async def scripted_broker() -> AsyncIterator[ScriptedBroker]:
    """Runs a broker on a free port."""
    broker = ScriptedBroker()
    server = await asyncio.start_server(broker.serve, HOST, 0)
    broker.url = f"pulsar://{HOST}:{server.sockets[0].getsockname()[1]}"
    try:
        yield broker
    finally:
        server.close()
        for session in list(broker.sessions):
            session.writer.transport.abort()
        await server.wait_closed()
