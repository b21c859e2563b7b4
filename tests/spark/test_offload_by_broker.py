"""A standalone's offload: the steps of the job, from any point at which it may die."""

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.spark.job_stage import METADATA_URL, TOPIC, JobCluster
from tests.spark.offload_stage import ENTRIES, live
from tests.spark.test_compact_by_broker import CALLS_MAX, Dies, Direct, Mortal, log_of

from magnetar.broker.cold.compactor import Result
from magnetar.core.ids import Position
from magnetar.core.names import parse_topic
from magnetar.jobs.log.log import Log
from magnetar.jobs.log.topics import log_name
from magnetar.jobs.offload import in_worker as offloading
from magnetar.jobs.offload.in_worker import offload_topic
from magnetar.metadata.records import encode
from magnetar.offload.policy import OffloadDefaults
from magnetar.offload.records import (
    ATTEMPTS_PREFIX,
    DEFAULTS_KEY,
    OffloadRequest,
    RequestState,
    decode_request,
    request_key,
)
from magnetar.offload.stores import FILESYSTEM
from magnetar_spark.log.entry_reader import EntryReader
from magnetar_spark.log.settings import LogSettings

NEVER = -1


@pytest.fixture
def cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> JobCluster:
    made = JobCluster(monkeypatch, tmp_path / "cold", capsys)
    defaults(made, threshold_bytes=0, deletion_lag_ms=NEVER)
    return made


def defaults(cluster: JobCluster, **limits: Any) -> None:
    published = OffloadDefaults(driver=FILESYSTEM, folder=str(cluster.folder), **limits)
    cluster.run(cluster.store.put(DEFAULTS_KEY, encode(published)))


async def offload(cluster: JobCluster, log: Log, topic: str = TOPIC) -> Result:
    result, clock = Result(), cluster.clock
    await offload_topic(log, parse_topic(topic), result, job_id=uuid.uuid4().hex, clock=clock)
    return result


def test_a_worker_process_writes_the_files_of_closed_ledgers(cluster: JobCluster) -> None:
    cluster.write(TOPIC, ENTRIES[:4])
    closed = cluster.closed()
    newest = Position(closed[-1] + 1, 0)
    defaults(cluster, threshold_bytes=NEVER, deletion_lag_ms=0)
    result = cluster.run(offload(cluster, log_of(cluster)))
    assert (result.counts, live(cluster)) == ({}, {}), "there is no threshold"
    asked = OffloadRequest(up_to=newest, requested_ms=5, first_unoffloaded=newest)
    cluster.run(cluster.store.put(request_key(log_name(parse_topic(TOPIC))), encode(asked)))
    result = cluster.run(offload(cluster, log_of(cluster)))
    assert (result.errors, result.counts["ledgersOffloaded"]) == ([], 1)
    assert [data for *_, data in cluster.content(live(cluster)[closed[0]].path)] == ENTRIES[:4]
    assert closed[0] not in cluster.on_bookies(), "the lag is 0"
    key = request_key(log_name(parse_topic(TOPIC)))
    stored = cluster.run(cluster.store.get(key))
    assert stored is not None
    assert decode_request(key, stored.value).state is RequestState.SUCCESS
    for lag_ms in (0, NEVER):
        defaults(cluster, threshold_bytes=0, deletion_lag_ms=lag_ms)
        revision = cluster.run(cluster.store.revision())
        assert cluster.run(offload(cluster, log_of(cluster))).counts == {}
        assert cluster.run(cluster.store.revision()) == revision, "a check wrote metadata"


@pytest.mark.parametrize("answered", [False, True])
def test_a_standalone_that_dies_at_any_call_loses_nothing_and_the_next_run_cleans_up(
    cluster: JobCluster, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    async def in_thread(_log: Log, task: partial[Any], _ranges: Any) -> Any:
        return await asyncio.to_thread(task)

    monkeypatch.setattr(offloading, "in_worker", in_thread)
    reader = partial(EntryReader, LogSettings(METADATA_URL), ())
    monkeypatch.setattr(offloading, "open_reader", reader)
    monkeypatch.setattr(
        "magnetar_spark.log.entry_reader.PlannedBookies", lambda *_: Direct(cluster)
    )
    committed = 0
    for call in range(CALLS_MAX):
        topic = f"{TOPIC}-{call}"
        name = log_name(parse_topic(topic))
        cluster.write(topic, ENTRIES[:4])
        (ledger_id,) = cluster.closed(topic)
        mortal = Mortal(cluster.store, call, answered=answered)
        try:
            cluster.run(offload(cluster, log_of(cluster, mortal), topic))
        except Dies:
            for lease in cluster.store.leases:
                cluster.run(cluster.store.revoke_lease(lease.id))
        else:
            break
        committed += ledger_id in live(cluster, name)
        assert ledger_id in cluster.on_bookies(topic)
        result = cluster.run(offload(cluster, log_of(cluster), topic))
        assert result.errors == []
        file = live(cluster, name)[ledger_id]
        assert [data for *_, data in cluster.content(file.path)] == ENTRIES[:4]
        assert cluster.keys(ATTEMPTS_PREFIX) == []
        of_topic = [path for path in cluster.files() if path.startswith(f"{name}/")]
        assert of_topic == [file.path], "nothing is left beside it"
    assert call > committed > 0
