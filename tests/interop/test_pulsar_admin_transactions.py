"""The official `pulsar-admin transactions`, unmodified: each of its commands."""

import asyncio
import re
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.transactional import TransactionalClient, Txn

from .java_programs import JAVA_TEST_TIMEOUT_S
from .support import Names, ServerAddress
from .test_pulsar_admin import Run, run

__all__ = ["run"]

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)

NOT_IN_A_LOG = "managed ledger"


async def begun(server: ServerAddress, topic: str) -> tuple[Txn, tuple[int, int]]:
    """Begins a transaction, in which the topic has a message, and its subscription an ack.

    Returns it with the position of the acked message.
    """
    url = urlsplit(server.service_url)
    assert url.hostname is not None
    assert url.port is not None
    async with TransactionalClient((url.hostname, url.port)) as client:
        await client.coordinators()
        await client.receive(topic, 0)
        await client.send(topic, None, b"acked")
        txn = await client.begin(coordinator=3)
        await client.add(txn, topic)
        await client.add_subscription(txn, topic, "s")
        connection, consumer, received = await client.receive(topic, 1)
        await client.ack(connection, consumer, txn, received)
        await client.send(topic, txn, b"open")
        return txn, (received[0].ledger_id, received[0].entry_id)


def field(text: str, name: str) -> str:
    """Returns the value of a field: some commands print JSON, others what Java prints."""
    match = re.search(rf'"?{name}"?\s*[:=]\s*"?([^,"}})\s]*)', text)
    assert match is not None, f"no {name} in {text}"
    return match[1]


def test_every_command(run: Run, server: ServerAddress, admin: httpx.Client, names: Names) -> None:
    topic = names.topic()
    (most, least), (ledger, entry) = asyncio.run(begun(server, topic))

    def ask(*words: object) -> str:
        return run("transactions", *words).text()

    id_ = f"({most},{least})"
    txn = ("-m", most, "-l", least)
    of_subscription = ("-t", topic, "-s", "s")
    coordinators = ask("coordinators-list").splitlines()
    assert [int(line.split()[0]) for line in coordinators] == list(range(len(coordinators)))
    assert len(coordinators) >= 16
    own = ask("coordinator-stats", "-c", most)
    assert (field(own, "state"), field(own, "ongoingTxnSize")) == ("Ready", "1")
    assert any(line.split()[0] == str(most) for line in ask("coordinator-stats").splitlines())

    metadata = ask("transaction-metadata", *txn)
    assert id_ in metadata
    assert field(metadata, "status") == "OPEN"
    assert topic in metadata
    assert re.fullmatch(r"\d+:\d+", field(metadata, "startPosition"))
    assert id_ in ask("slow-transactions", "-t", "1s")
    assert id_ not in ask("slow-transactions", "-t", "1h", "-c", most)

    assert field(ask("transaction-buffer-stats", "-t", topic), "ongoingTxnSize") == "1"
    assert field(ask("transaction-in-buffer-stats", *txn, "-t", topic), "aborted") == "false"
    assert field(ask("pending-ack-stats", *of_subscription), "ongoingTxnSize") == "1"
    acks = ask("transaction-in-pending-ack-stats", *txn, *of_subscription)
    assert acks == "{ }"  # without a cumulative ack
    position = ("-l", ledger, "-e", entry)
    # The tool asks, and prints nothing of the answer.
    run("transactions", "position-stats-in-pending-ack", *of_subscription, *position).done()
    path = f"/admin/v3/transactions/positionStatsInPendingAck/{names.path}/topic/s/{ledger}/{entry}"
    assert admin.get(path).json() == {"state": "PendingAck"}

    for words in (
        ("coordinator-internal-stats", "-c", most),
        ("pending-ack-internal-stats", *of_subscription),
        ("buffer-snapshot-internal-stats", "-t", topic),
    ):
        run("transactions", *words).refused(NOT_IN_A_LOG)

    run("transactions", "abort-transaction", *txn).done()
    run("transactions", "abort-transaction", *txn).done()  # a request is a connection of its own
    run("transactions", "transaction-metadata", *txn).refused("not found")
    buffer = ask("transaction-buffer-stats", "-t", topic)
    assert field(buffer, "totalAbortedTransactions") == "1"
    assert field(ask("pending-ack-stats", *of_subscription), "ongoingTxnSize") == "0"

    count = len(coordinators) + 1
    run("transactions", "scale-transactionCoordinators", "-r", count).done()
    run("transactions", "scale-transactionCoordinators", "-r", 2).refused("more than the current")
    assert len(ask("coordinators-list").splitlines()) == count
