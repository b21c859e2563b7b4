"""Reads and writes of records while the store is unavailable: deadlines, retries, errors."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.ledger.cluster import Cluster, virtual
from tests.unit.ledger.test_unanswered import SETTINGS, shared

from magnetar.bookie.api import NoSuchLedger
from magnetar.ledger.context import BACKOFF_S_MAX, BACKOFF_S_MIN
from magnetar.ledger.records import ATTEMPT_TIMEOUT_S, get_key, read_record, swap
from magnetar.metadata.store import MetadataUnavailable, Operation, Record

ATTEMPTS_MAX = 25
"""In the five seconds of SETTINGS, with pauses that double up to a second."""


def test_pauses_between_attempts_double_up_to_a_bound() -> None:
    async def main() -> None:
        context = shared(Cluster(2, SETTINGS))
        loop = asyncio.get_running_loop()
        for attempt in (0, 1, 2, 3, 5, 9, 10, 100, 10_000):
            pause_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2.0 ** min(attempt, 50))
            for _ in range(5):
                begun = loop.time()
                await context.back_off(attempt)
                assert 0.49 * pause_s <= loop.time() - begun <= 1.01 * pause_s

    virtual(main())


@pytest.mark.parametrize("hangs", [False, True])
def test_a_store_that_stays_away_is_given_up_in_the_named_time_and_not_stormed(hangs: bool) -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        writer, _ = await cluster.writer()
        context = shared(cluster)
        metadata, revision = await read_record(context, writer.ledger_id)
        attempts = 0

        async def away(*_: object, **__: object) -> Record | None:
            nonlocal attempts
            attempts += 1
            if hangs:
                await asyncio.sleep(1e6)
            raise MetadataUnavailable("away")

        cluster.store.get = away  # type: ignore[method-assign]
        cluster.store.put = away  # type: ignore[assignment,method-assign]
        loop = asyncio.get_running_loop()
        limit_s = SETTINGS.metadata_timeout_s
        for what, said in (
            (get_key(context, "/key"), "/key could not be read"),
            (read_record(context, writer.ledger_id), "could not be read"),
            (swap(context, metadata.in_recovery(), revision), "was written is not known"),
        ):
            begun, attempts = loop.time(), 0
            with pytest.raises(MetadataUnavailable, match=said):
                await what
            took_s = loop.time() - begun
            if hangs:
                assert took_s == pytest.approx(ATTEMPT_TIMEOUT_S)
                assert attempts == 1
            else:
                assert limit_s <= took_s <= limit_s + 2 * BACKOFF_S_MAX
                assert 5 <= attempts <= ATTEMPTS_MAX

    virtual(main())


def test_a_creation_does_not_storm_a_store_that_is_away() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        client, _ = cluster.client()
        attempts = 0

        async def away(_: Sequence[Operation]) -> int:
            nonlocal attempts
            attempts += 1
            raise MetadataUnavailable("away")

        cluster.store.transact = away  # type: ignore[assignment,method-assign]
        with pytest.raises(MetadataUnavailable, match="ledger 1 was created is not known"):
            await client.create({})
        assert 5 <= attempts <= ATTEMPTS_MAX

    virtual(main())


def test_a_store_that_is_back_in_time_is_answered_from() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        writer, _ = await cluster.writer()
        context = shared(cluster)
        metadata, revision = await read_record(context, writer.ledger_id)
        loop = asyncio.get_running_loop()
        loop.call_later(3.0, setattr, cluster.store, "reads_fail", False)
        cluster.store.reads_fail = True
        assert await read_record(context, writer.ledger_id) == (metadata, revision)
        with pytest.raises(NoSuchLedger, match="ledger 99 does not exist"):
            await read_record(context, 99)
        assert await get_key(context, "/nothing") is None
        cluster.store.trouble, cluster.store.outcome = 1.0, 0
        loop.call_later(3.0, setattr, cluster.store, "trouble", 0.0)
        written = await swap(context, metadata.in_recovery(), revision)
        assert await read_record(context, writer.ledger_id) == (metadata.in_recovery(), written)

    virtual(main())
