"""The REST of transactions in a cluster: redirects to owners, and answers of all brokers."""

from urllib.parse import quote

import httpx
from tests.support.rest_cluster import SETTINGS, Member, RestCluster
from tests.support.settings import changed
from tests.support.transactional import TransactionalClient

from magnetar.broker.transactions.assignment import assign_partition
from magnetar.core.names import parse_topic

V3 = "/admin/v3/transactions"
SUBSCRIPTION = "s/1 ä"
COORDINATORS = 4


async def topics_of_both(cluster: RestCluster) -> list[str]:
    """A topic of each broker."""
    found: dict[str, str] = {}
    for number in range(32):
        name = f"persistent://public/default/t{number}"
        await cluster.members[0].done("PUT", f"~/persistent/public/default/t{number}")
        found.setdefault(cluster.owner(parse_topic(name)).service.broker_id, name)
        if len(found) == 2:
            return list(found.values())
    raise AssertionError("one broker owns all topics")


async def test_every_broker_answers_about_a_transaction_on_both() -> None:
    cluster = RestCluster(settings=changed(SETTINGS, transactions=True))
    try:
        await cluster.start(2)
        urls = [httpx.URL(member.service.service_url) for member in cluster.members]
        async with TransactionalClient(*((url.host, url.port or 0) for url in urls)) as client:
            await client.coordinators()
            await _check(cluster, client)
    finally:
        await cluster.stop()


async def _check(cluster: RestCluster, client: TransactionalClient) -> None:
    topics = await topics_of_both(cluster)
    txns = [await client.begin(number) for number in range(COORDINATORS)]
    txn = txns[0]
    owner = cluster.owner(assign_partition(txn[0]))
    (other,) = cluster.others(owner)
    await client.add(txn, *topics)
    for topic in topics:
        await client.receive(topic, 0, SUBSCRIPTION)
        await client.send(topic, None, b"acked")
        await client.add_subscription(txn, topic, SUBSCRIPTION)
        connection, consumer, received = await client.receive(topic, 1, SUBSCRIPTION)
        await client.ack(connection, consumer, txn, received)
        await client.send(topic, txn, b"open")

    id_ = f"{txn[0]}/{txn[1]}"
    for path in (
        f"/transactionMetadata/{id_}",
        f"/coordinatorStats?coordinatorId={txn[0]}",
        f"/slowTransactions/1?coordinatorId={txn[0]}",
        f"/abortTransaction/{id_}",
    ):
        method = "POST" if path.startswith("/abort") else "GET"
        redirect = await other.call(method, V3 + path, follow=False)
        assert redirect.status_code == 307, redirect.text
        assert redirect.headers["location"].startswith(owner.service.http_url + V3 + path[:12])
    for member in cluster.members:
        await _check_answers(member, txn, txns, topics)
    await other.done("POST", f"{V3}/abortTransaction/{id_}")
    local = topics[1].removeprefix("persistent://")
    after = await other.done("GET", f"{V3}/transactionInBufferStats/{local}/{id_}")
    assert after.json() == {"aborted": True}
    gone = await other.call("GET", f"{V3}/transactionMetadata/{id_}")
    assert gone.status_code == 404
    unknown = await other.call("GET", f"{V3}/coordinatorStats?coordinatorId=99")
    assert unknown.status_code == 404
    fewer = await other.call("POST", f"{V3}/transactionCoordinator/replicas", 2)
    assert fewer.status_code == 406


async def _check_answers(
    member: Member, txn: tuple[int, int], txns: list[tuple[int, int]], topics: list[str]
) -> None:
    name, id_ = f"({txn[0]},{txn[1]})", f"{txn[0]}/{txn[1]}"
    found = (await member.done("GET", f"{V3}/transactionMetadata/{id_}")).json()
    assert (found["txnId"], found["status"]) == (name, "OPEN")
    for topic in topics:
        produced = found["producedPartitions"][topic]
        assert (produced["startPosition"].partition(":")[2], produced["aborted"]) == ("1", False)
        assert found["ackedPartitions"][topic] == {SUBSCRIPTION: {}}
        local = topic.removeprefix("persistent://")
        stats = await member.done("GET", f"{V3}/transactionBufferStats/{local}")
        assert stats.json()["ongoingTxnSize"] == 1
        acks = await member.done("GET", f"{V3}/pendingAckStats/{local}/{quote(SUBSCRIPTION, '')}")
        assert acks.json()["ongoingTxnSize"] == 1
    listed = (await member.done("GET", f"{V3}/coordinators")).json()
    assert [each["id"] for each in listed] == list(range(16))
    assert len({each["brokerServiceUrl"] for each in listed}) <= 2
    all_stats = (await member.done("GET", f"{V3}/coordinatorStats")).json()
    assert {number for number, _ in txns} <= set(map(int, all_stats))
    slow = (await member.done("GET", f"{V3}/slowTransactions/1")).json()
    assert set(slow) == {f"({most},{least})" for most, least in txns}
