"""A store over a fake etcd."""

from collections.abc import AsyncIterator

import pytest
from tests.support.fake_etcd import FakeEtcd
from tests.unit.metadata.etcd_rig import open_fake

from magnetar.metadata.etcd.store import EtcdStore


@pytest.fixture
async def fake() -> AsyncIterator[FakeEtcd]:
    fake = FakeEtcd()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def store(fake: FakeEtcd) -> AsyncIterator[EtcdStore]:
    store = await open_fake(fake)
    fake.calls.clear()
    yield store
    await store.close()
