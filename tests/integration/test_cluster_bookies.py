"""Bookies that come and go under load: shares of new ledgers, nothing moved, nothing lost."""

import asyncio
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pulsar
import pytest
from tests.support.cluster_processes import running_cluster, wait_for
from tests.support.stream import Stream

from magnetar.cluster.local.cluster import LocalCluster
from magnetar.cluster.local.members import Role
from magnetar.core.clock import SystemClock
from magnetar.ledger.metadata import LEDGERS_PREFIX, LedgerMetadata, LedgerState, decode
from magnetar.metadata.store_url import open_store

TOPICS = 8
LEDGER_ENTRIES = 60
NEW_LEDGERS = 40
FAIR_SHARE = 1 / 4
"""Of the copies of new ledgers, for one of four bookies."""


def records(cluster: LocalCluster) -> dict[int, LedgerMetadata]:
    """Every ledger's record."""

    async def read() -> dict[int, LedgerMetadata]:
        store = await open_store(cluster.metadata_url, SystemClock())
        try:
            found = [decode(one.key, one.value) for one in await store.list(LEDGERS_PREFIX)]
            return {one.ledger_id: one for one in found}
        finally:
            await store.close()

    return asyncio.run(read())


def check(cluster: LocalCluster) -> tuple[int, str]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "magnetar.cli.main", "ledger", "check", "--json"),
            *("--metadata-store", cluster.metadata_url),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(240)
def test_a_bookie_more_and_one_less_under_load(tmp_path: Path) -> None:
    topics = [f"persistent://public/default/grow-{number}" for number in range(TOPICS)]
    with running_cluster(
        tmp_path,
        bookies=3,
        brokers=2,
        ledger_rollover_min_minutes=0,
        ledger_entries_max=LEDGER_ENTRIES,
        retention_minutes=-1,
        retention_size_mb=-1,
        open_ledger_grace_ms=1_000,
        ensemble_size=2,
    ) as cluster:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
        with closing(pulsar.Client(cluster.service_url, logger=logger)) as client:
            with Stream(client, topics) as stream:
                stream.wait_receipts(2 * LEDGER_ENTRIES)
                added = cluster.add(Role.BOOKIE)
                cluster.wait_ready([added.name])
                before = records(cluster)
                wait_for(
                    lambda: len(records(cluster).keys() - before.keys()) >= NEW_LEDGERS,
                    "new ledgers",
                )
                after = records(cluster)
                copies = Counter(
                    one.bookie_id
                    for ledger_id, record in after.items()
                    if ledger_id not in before
                    for one in record.ensembles[-1].bookies
                )
                share = copies[added.name] / copies.total()
                assert FAIR_SHARE / 2.5 < share < FAIR_SHARE * 2, copies
                # An open one gets another bookie where one of its own is late with an answer.
                moved = [
                    ledger_id
                    for ledger_id, record in before.items()
                    if record.state is LedgerState.CLOSED
                    and record.ensembles != after[ledger_id].ensembles
                ]
                assert any(record.state is LedgerState.CLOSED for record in before.values())
                assert not moved, "data of older ledgers was moved"

                cluster.remove("bookie-1")
                names = {
                    one.bookie_id
                    for record in records(cluster).values()
                    for ensemble in record.ensembles
                    for one in ensemble.bookies
                }
                assert "bookie-1" not in names
                stream.wait_receipts(LEDGER_ENTRIES)
            stream.check()
        for broker in cluster.named(Role.BROKER):
            cluster.stop(broker.name)
        code, text = check(cluster)
        assert code == 0, text
