"""Autorecovery and its commands over real disks and real processes."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.support.cluster_processes import running_cluster

from magnetar.autorecovery.check.ledger_check import LedgerChecker, LedgerReport
from magnetar.autorecovery.check.prover import Prover
from magnetar.autorecovery.check.repairer import Repairer
from magnetar.autorecovery.copier import Copier
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.stats import AutorecoveryStats
from magnetar.bookie.local import LocalBookie
from magnetar.bookie.settings import BookieSettings
from magnetar.cluster.identity import CLUSTER_KEY, ClusterIdentity
from magnetar.core.clock import SystemClock
from magnetar.core.errors import MagnetarError
from magnetar.ledger.bookies import LocalBookies
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.registered_bookies import RegisteredBookies
from magnetar.ledger.settings import LedgerSettings
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store_url import open_store

CLOCK = SystemClock()
SETTINGS = AutorecoverySettings()
DISKS = BookieSettings(
    journal_file_bytes=1 << 20,
    journal_preallocate_bytes=1 << 16,
    journal_reserve_bytes=1 << 14,
    write_cache_bytes=1 << 20,
    disk_usage_high=1.0,
    disk_free_bytes_min=0,
    disk_reserve_bytes=0,
)


async def append(writer: LedgerWriter, count: int) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_appended(_first: int, error: MagnetarError | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    writer.append([b"entry %d " % number * 20 for number in range(count)], on_appended)
    await done


async def open_bookies(path: Path) -> list[LocalBookie]:
    return [
        await LocalBookie.open(path / name, name, settings=DISKS) for name in ("b1", "b2", "b3")
    ]


def flip_a_bit(path: Path, text: bytes) -> None:
    """In one of the entry logs that hold it."""
    log, _ = sorted(one for one in path.rglob("*.log") if text in one.read_bytes())
    data = bytearray(log.read_bytes())
    data[data.index(text)] ^= 1
    log.write_bytes(data)


async def check(
    bookies: LocalBookies, metadata: LedgerMetadata, *, repair: bool = False
) -> LedgerReport:
    rate = ByteRate(0, CLOCK)
    prover = Prover(bookies, rate, 30.0)
    stats = AutorecoveryStats(CLOCK, 60.0)
    repairer = Repairer(prover, Copier(bookies, SETTINGS, rate, stats)) if repair else None
    return await LedgerChecker(bookies, prover, repairer, 30.0).check(metadata)


async def test_a_copy_that_rots_on_disk_is_found_and_written_again(tmp_path: Path) -> None:
    store = MemoryStore()
    opened = await open_bookies(tmp_path)
    client = LedgerClient(store, LocalBookies(opened), CLOCK, LedgerSettings(3, 2, 2, 4))
    writer = await client.create({})
    await append(writer, 40)
    metadata = await writer.close()
    await client.close()
    for bookie in opened:
        await bookie.flush()
        await bookie.close()
    flip_a_bit(tmp_path, b"entry 5 ")

    opened = await open_bookies(tmp_path)
    bookies = LocalBookies(opened)
    before = await check(bookies, metadata)
    assert before.verdict == "too few proven copies"
    assert {answer.text for one in before.findings for answer in one.answers} >= {
        "present",
        "corrupt",
    }
    repaired = await check(bookies, metadata, repair=True)
    assert repaired.repair_failed == ""
    assert repaired.repaired_entries == before.entries_wrong
    assert (await check(bookies, metadata)).verdict == "healthy"
    for bookie in opened:
        await bookie.close()
    opened = await open_bookies(tmp_path)
    assert (await check(LocalBookies(opened), metadata)).verdict == "healthy"
    for bookie in opened:
        await bookie.close()
    await store.close()


@contextlib.asynccontextmanager
async def ledgers_of(url: str) -> AsyncIterator[LedgerClient]:
    store = await open_store(url, CLOCK)
    record = await store.get(CLUSTER_KEY)
    assert record is not None
    cluster = msgspec.json.decode(record.value, type=ClusterIdentity)
    bookies = RegisteredBookies(store, CLOCK, cluster=cluster.cluster_id, client="test")
    await bookies.start()
    client = LedgerClient(store, bookies, CLOCK, LedgerSettings(3, 2, 2, 16))
    yield client
    await client.close()
    await bookies.stop()
    await store.close()


async def write_ledgers(url: str, count: int) -> None:
    async with ledgers_of(url) as client:
        for _ in range(count):
            writer = await client.create({})
            await append(writer, 200)
            await writer.close()


def command(url: str, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "magnetar.cli.main", *words, "--metadata-store", url, "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    # Beside what was found, a slow machine may make a library say something of its own.
    return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.timeout(240)
def test_a_killed_bookie_is_made_up_for_and_another_may_be_removed(tmp_path: Path) -> None:
    with running_cluster(tmp_path, bookies=5, brokers=0, lost_bookie_delay_s=1) as cluster:
        url = cluster.metadata_url
        asyncio.run(write_ledgers(url, 12))
        code, text = command(url, "ledger", "check")
        assert code == 0, text
        assert json.loads(text.splitlines()[-1])["summary"]["verdicts"] == {"healthy": 12}

        cluster.kill("bookie-2")
        code, text = command(url, "bookie", "decommission", "--bookie-id", "bookie-2")
        assert code == 0, text
        code, text = command(url, "ledger", "check")
        assert code == 0, text

        code, text = command(url, "bookie", "decommission", "--bookie-id", "bookie-1")
        assert code == 0, text
        assert "may be removed" in text
        cluster.kill("bookie-1")
        code, text = command(url, "ledger", "check")
        assert code == 0, text
        assert command(url, "ledger", "underreplicated") == (0, "")

        code, text = command(url, "bookie", "decommission", "--bookie-id", "bookie-3")
        assert code == 1
        assert "bookies would be left" in text
