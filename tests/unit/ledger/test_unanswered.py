"""Writes of records whose answers are lost: done, not done, or done later."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.cluster import Cluster, virtual

from magnetar.bookie.api import NoSuchLedger
from magnetar.core.errors import MagnetarError
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LEDGERS_PREFIX, ledger_key
from magnetar.ledger.records import RecordChanged, read_record, swap
from magnetar.ledger.settings import LedgerSettings
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.store import ABSENT, MetadataUnavailable, Operation, Put

SETTINGS = LedgerSettings(metadata_timeout_s=5.0)


def shared(cluster: Cluster) -> LedgerContext:
    client, links = cluster.client()
    return LedgerContext(cluster.store, links, client._context.clock, SETTINGS, Random(1))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 16), st.sampled_from([0.0, 0.3, 0.6, 0.9]))
def test_a_swap_that_returns_has_happened_once(seed: int, trouble: float) -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS, seed)
        writer, _ = await cluster.writer()
        context = shared(cluster)
        metadata, revision = await read_record(context, writer.ledger_id)
        cluster.store.trouble = trouble
        known = metadata
        for number in range(1, 6):
            wanted = known.counted(number, 10 * number)
            try:
                revision = await swap(context, wanted, revision)
            except MetadataUnavailable:
                cluster.store.trouble = 0.0
                await asyncio.sleep(10)
                known, revision = await read_record(context, writer.ledger_id)
                assert known.counted_entries in (number, number - 1)
            else:
                known = wanted
                assert (await cluster.record(writer.ledger_id)).counted_entries == number
            await asyncio.sleep(10)  # pending requests may still arrive: they overwrite nothing
            record = await MemoryStore.get(cluster.store, ledger_key(writer.ledger_id))
            assert record is not None
            assert record.revision == revision

    virtual(main())


def test_a_swap_tells_what_others_have_made_of_the_record() -> None:
    async def main() -> None:
        cluster = Cluster(2, SETTINGS)
        writer, _ = await cluster.writer()
        context = shared(cluster)
        metadata, revision = await read_record(context, writer.ledger_id)
        changed = await swap(context, metadata.in_recovery(), revision)
        with pytest.raises(RecordChanged) as caught:
            await swap(context, metadata.counted(1, 1), revision)
        assert (caught.value.metadata, caught.value.revision) == (metadata.in_recovery(), changed)
        assert await swap(context, metadata.in_recovery(), revision) == changed  # said already
        await MemoryStore.delete(cluster.store, ledger_key(writer.ledger_id))
        with pytest.raises(NoSuchLedger):
            await swap(context, metadata, changed)

    virtual(main())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 16), st.sampled_from([0.2, 0.5, 0.9]), st.integers(1, 4))
def test_a_creation_whose_answer_is_lost_is_found(seed: int, trouble: float, topics: int) -> None:
    """apache/pulsar#12221: a ledger that no topic knows, or two that think they are the newest."""

    async def main() -> None:
        cluster = Cluster(2, SETTINGS, seed)
        client, _ = cluster.client()
        other, _ = cluster.client()
        cluster.store.trouble = trouble

        async def create(topic: str) -> None:
            revision, count = ABSENT, 0
            for _ in range(3):

                def with_ledger(
                    ledger_id: int, expected: int = revision, value: int = count
                ) -> list[Operation]:
                    return [Put(topic, b"%d %d" % (value, ledger_id), expected)]

                chosen = client if count % 2 else other
                try:
                    writer = await chosen.create({}, with_ledger=with_ledger)
                except MagnetarError:
                    return  # its owner reads the record again
                record = await MemoryStore.get(cluster.store, topic)
                assert record is not None
                assert record.value == b"%d %d" % (count, writer.ledger_id)
                assert record.revision == writer.revision
                revision, count = writer.revision, count + 1
                made.append(writer.ledger_id)

        made: list[int] = []
        await asyncio.gather(*(create(f"/topics/{number}") for number in range(topics)))
        cluster.store.trouble = 0.0
        await asyncio.sleep(20)
        ids = [int(one.key[len(LEDGERS_PREFIX) :]) for one in await cluster.store.list("/ledgers/")]
        assert len(set(made)) == len(made)
        assert set(made) <= set(ids)
        named = {int(one.value.split()[1]) for one in await cluster.store.list("/topics/")}
        assert named <= set(ids) <= named | set(made)
        await client.close()
        await other.close()

    virtual(main())
