"""A broker's offload settings for jobs, and its cached facts of moved ledgers."""

from typing import Any

import pytest
from tests.unit.admin.support import start_service, stop_service
from tests.unit.ledger.stage import publish

from magnetar.broker.catalog.topic_names import ledger_name
from magnetar.broker.cold import offload as offloading_module
from magnetar.broker.cold.offload import offload_defaults, publish_defaults
from magnetar.broker.service import BrokerService
from magnetar.core.names import NamespaceName, TopicName, parse_topic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import encode
from magnetar.offload.policy import (
    OffloadDefaults,
    OffloadPlan,
    decode_defaults,
    effective,
)
from magnetar.offload.records import DEFAULTS_KEY, OffloadRecord, offload_key
from magnetar.offload.stores import StoreSpec
from magnetar.settings.broker import BrokerSettings
from magnetar.settings.field import compose

FOLDER = {"managedLedgerOffloadDriver": "filesystem", "managedLedgerOffloadBucket": "/cold"}


async def published(store: MemoryStore) -> OffloadDefaults | None:
    record = await store.get(DEFAULTS_KEY)
    return None if record is None else decode_defaults(DEFAULTS_KEY, record.value)


async def test_settings_are_published_for_jobs() -> None:
    store = MemoryStore()
    await publish_defaults(store, OffloadDefaults())
    assert await published(store) is None  # nothing is set: nothing is written
    settings = compose(
        BrokerSettings, offload_driver="S3", offload_bucket="b", offload_threshold_s=60
    )
    defaults = offload_defaults(settings.offload)
    assert (defaults.driver, defaults.bucket, defaults.threshold_s) == ("S3", "b", 60)
    await publish_defaults(store, defaults)
    assert await published(store) == defaults
    revision = await store.revision()
    await publish_defaults(store, defaults)
    assert await store.revision() == revision
    await publish_defaults(store, OffloadDefaults())
    assert await published(store) == OffloadDefaults()


async def with_moved_ledger(service: BrokerService, name: TopicName) -> ManagedLedger:
    """A topic with a closed ledger and an open one; of the first one a record says it was moved."""
    ledger = await service.ledgers.open(ledger_name(name))
    ledger_id, _ = await publish(ledger, b"x" * 70)
    await ledger.roll_over()
    await publish(ledger, b"y")
    record = OffloadRecord(
        ledger_id, "a", StoreSpec("filesystem", "/cold"), "p", 9, 1, 70, 1, 1, 2, 3
    )
    await service.store.put(offload_key(ledger.name, ledger_id), encode(record))
    return ledger


async def test_only_topics_that_are_offloaded_are_requested() -> None:
    service = await start_service()
    plain = await with_moved_ledger(service, parse_topic("persistent://t1/n1/plain"))
    own = parse_topic("persistent://t1/n1/own")
    part = await with_moved_ledger(service, own.partition(3))
    await service.topics.create(own, {})
    await service.policies.update(own, lambda policies: policies.having("offload", FOLDER))
    offloading = service.offloading
    assert offloading.plan(own.partition(3)).store == StoreSpec("filesystem", "/cold")
    assert offloading.cold_first(part.name)
    assert not offloading.cold_first(plain.name)
    await offloading.refresh_all(service.ledgers.opened)
    assert (offloading.moved(plain).size_bytes, offloading.moved(part).size_bytes) == (0, 70)

    await service.resources.update_policies(
        NamespaceName("t1", "n1"), lambda document: {**document, "offload_policies": FOLDER}
    )
    await offloading.refresh_all(service.ledgers.opened)
    assert offloading.moved(plain).size_bytes == 70
    await offloading.refresh_all({})
    assert offloading.moved(plain).size_bytes == 0
    await stop_service(service)


async def test_whether_a_namespace_is_offloaded_is_worked_out_once_for_all_of_its_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = await start_service()
    ledger = await service.ledgers.open(ledger_name(parse_topic("persistent://t1/n1/t")))
    worked_out = 0

    def counted(*arguments: Any) -> OffloadPlan:
        nonlocal worked_out
        worked_out += 1
        return effective(*arguments)

    monkeypatch.setattr(offloading_module, "effective", counted)
    names = [f"t1/{space}/persistent/t{number}" for number in range(50) for space in ("n1", "n2")]
    await service.offloading.refresh_all(dict.fromkeys(names, ledger))
    assert worked_out == 2
    await stop_service(service)
