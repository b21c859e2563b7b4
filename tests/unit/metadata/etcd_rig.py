"""A store over a fake etcd that gives the answers of a test, call by call."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
from tests.support.fake_etcd import FakeEtcd, Refusal

from magnetar.core.clock import Clock, SystemClock
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.etcd.store import EtcdStore, open_etcd

WITHIN_S = 20.0
PATIENT_S = 60.0
"""Of calls that are answered, however late."""
SOON_S = 0.3
"""Of calls that are to fail for they are not."""
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
ROOT = "/r"


async def open_fake(*fakes: FakeEtcd, clock: Clock | None = None, **more: Any) -> EtcdStore:
    settings = EtcdSettings(
        endpoints=[f"127.0.0.1:{fake.port}" for fake in fakes],
        root=ROOT,
        attempt_timeout_s=PATIENT_S,
        operation_timeout_s=PATIENT_S,
        **more,
    )
    return await open_etcd(settings, clock or SystemClock())


def in_a_hurry(store: EtcdStore) -> None:
    """From now on its calls wait for no answer that does not come soon."""
    client = store._client
    client.settings = replace(client.settings, attempt_timeout_s=SOON_S, operation_timeout_s=SOON_S)


def head(revision: int) -> pb.ResponseHeader:
    return pb.ResponseHeader(revision=revision)


def txn(*, succeeded: bool, revision: int = 8, actual: int = 0) -> pb.TxnResponse:
    answer = pb.TxnResponse(header=head(revision), succeeded=succeeded)
    if succeeded:
        answer.responses.add().response_put.SetInParent()
    else:
        kvs = answer.responses.add().response_range.kvs
        if actual:
            kvs.add(mod_revision=actual)
    return answer


def answers(*rows: Any) -> Callable[[Any], Awaitable[Any]]:
    """Returns the answers one after another; raises those that are exceptions."""
    left = list(rows)

    async def handler(request: Any) -> Any:
        row = left.pop(0)
        if isinstance(row, Exception):
            raise row
        return row

    return handler


LOST = Refusal(UNAVAILABLE, "etcdserver: request timed out, possibly due to connection lost")
