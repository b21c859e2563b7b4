"""A managed ledger is created only while the records hold that its creation depends on."""

import pytest
from tests.unit.ledger.stage import NAME, Stage

from magnetar.core.errors import NotFound
from magnetar.metadata.store import BadRevision, Check

KEY = "/namespaces/t/n"


async def test_it_is_created_while_its_checks_hold() -> None:
    stage = Stage()
    revision = await stage.store.put(KEY, b"1")
    factory = stage.factory()
    stale = Check(KEY, revision)
    await stage.store.put(KEY, b"2")
    for create in (
        lambda: factory.open(NAME, checks=[stale]),
        lambda: factory.declare(NAME, [stale]),
    ):
        with pytest.raises(BadRevision) as refused:
            await create()
        assert refused.value.key == KEY
        with pytest.raises(NotFound):
            await factory.open(NAME, create=False)
    record = await stage.store.get(KEY)
    assert record is not None
    await factory.declare(NAME, [Check(KEY, record.revision)])
    await factory.close()


async def test_one_that_exists_is_opened_whatever_has_changed() -> None:
    stage = Stage()
    factory = stage.factory()
    await factory.declare(NAME)
    gone = Check(KEY, 7)
    await factory.declare(NAME, [gone])
    assert (await factory.open(NAME, checks=[gone])).name == NAME
    await factory.close()
