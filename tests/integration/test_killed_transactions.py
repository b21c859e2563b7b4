"""Transactions over real processes: brokers that coordinate or take part die by kill -9."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.support.cluster_processes import brokers, running_cluster
from tests.support.transactional import TransactionalClient

TOPICS = [f"persistent://public/default/t{number}" for number in range(4)]
ROUNDS = 24
KILL_EVERY = 6
TEST_TIMEOUT_S = 300


@pytest.mark.timeout(TEST_TIMEOUT_S)
async def test_every_transaction_is_whole_or_absent_when_brokers_are_killed(tmp_path: Path) -> None:
    rng = random.Random(20)
    with running_cluster(
        tmp_path, bookies=2, brokers=2, transactions=True, session_timeout_ms=2_000
    ) as cluster:
        addresses = [(broker.host, broker.ports["port"]) for broker in brokers(cluster)]
        expected: list[bytes] = []
        async with TransactionalClient(*addresses) as client:
            assert await client.coordinators() == 16
            for topic in TOPICS:
                await client.receive(topic, 0)
            for number in range(ROUNDS):
                txn = await client.begin(coordinator=number % 16)
                await client.add(txn, *TOPICS)
                payload = b"%d" % number
                for topic in TOPICS:
                    await client.send(topic, txn, payload)
                commit = rng.random() < 0.7
                ending = asyncio.create_task(client.end(txn, commit=commit))
                if number % KILL_EVERY == KILL_EVERY - 1:
                    victim = rng.choice(brokers(cluster)).name
                    await asyncio.sleep(rng.random() / 20)
                    await asyncio.to_thread(cluster.kill, victim)
                    await asyncio.to_thread(cluster.start, victim)
                    await asyncio.to_thread(cluster.wait_ready, [victim])
                await ending  # whatever answers were lost
                if commit:
                    expected.append(payload)
        async with TransactionalClient(*addresses) as client:
            for topic in TOPICS:
                await client.send(topic, None, b"last")
                _, _, received = await client.receive(topic, len(expected) + 1)
                assert [each.payload for each in received] == [*expected, b"last"], topic
