"""A bookie whose metadata store was restored from a copy that is older than its ledgers."""

from pathlib import Path

import pytest
from tests.unit.bookie.net.test_service import add, registration, running

from magnetar.bookie.upkeep.ledger_garbage import LEDGER_ID_KEY
from magnetar.core.errors import MetadataError
from magnetar.metadata.memory import MemoryStore


async def test_bookie_with_ledgers_above_the_last_assigned_id_does_not_start(
    tmp_path: Path,
) -> None:
    """Else a new ledger of that id would be read with the entries of the old one behind its own."""
    store = MemoryStore()
    await store.put(LEDGER_ID_KEY, b"7")
    async with running(store, tmp_path / "data") as service:
        for ledger_id in (3, 6, 7):
            assert await add(service, ledger_id) is None
    await store.put(LEDGER_ID_KEY, b"5")
    with pytest.raises(MetadataError, match="up to 5, and 2 ledgers from 6 to 7 are on this"):
        async with running(store, tmp_path / "data"):
            pass
    assert await registration(store) is None
    await store.put(LEDGER_ID_KEY, b"7")
    async with running(store, tmp_path / "data") as service:
        assert service.registered
        assert await service.bookie.list_ledgers() == [3, 6, 7]


async def test_emptied_ledgers_above_the_last_assigned_id_count_too(tmp_path: Path) -> None:
    """Their fences stay: they would refuse the writer of a new ledger of that id."""
    store = MemoryStore()
    await store.put(LEDGER_ID_KEY, b"7")
    async with running(store, tmp_path / "data") as service:
        assert await add(service, 7) is None
        assert await service.bookie.drop_copies([7]) == [7]
    await store.put(LEDGER_ID_KEY, b"5")
    with pytest.raises(MetadataError, match="up to 5, and 1 ledgers from 7 to 7 are on this"):
        async with running(store, tmp_path / "data"):
            pass
