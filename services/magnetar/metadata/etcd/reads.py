"""Reads of etcd, batched under load.

Up to ALONE_MAX reads are in flight as single requests. Further reads wait until one is answered,
and then form a batch: a read-only transaction of ranges, which is as linearizable as single reads.
A broker that opens thousands of topics thus makes one request for about ten reads, and no read
waits behind thousands.

A read's deadline counts from its call. The reads in flight were called earlier, so every waiting
read gets its turn before its deadline.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from magnetar.core.errors import MetadataError
from magnetar.core.tasks import TaskSet
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import RANGE, TXN
from magnetar.metadata.etcd.client import EtcdClient
from magnetar.metadata.etcd.errors import AnswerTooLarge
from magnetar.metadata.store import StoreClosed

ALONE_MAX: Final = 4
TOGETHER_MAX: Final = 64
"""Ranges per transaction; etcd accepts 128 (`--max-txn-ops`)."""


@dataclass(slots=True)
class _Waiting:
    """A read that waits for a batch."""

    request: pb.RangeRequest
    deadline: float
    answer: "asyncio.Future[pb.RangeResponse]"


class Reads:
    """Reads ranges of etcd, batched under load."""

    def __init__(self, client: EtcdClient, tasks: TaskSet) -> None:
        self._client = client
        self._tasks = tasks
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """Reads a range. Raises the errors of `EtcdClient.call`, and AnswerTooLarge."""
        deadline = self._client.deadline()
        if self._under_way < ALONE_MAX:
            self._under_way += 1
            try:
                return await self._alone(request, deadline)
            finally:
                self._ended()
        answer: asyncio.Future[pb.RangeResponse] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, deadline, answer))
        return await answer

    async def _alone(self, request: pb.RangeRequest, deadline: float) -> pb.RangeResponse:
        known = self._client.revision
        answer = await self._client.call(RANGE, request, repeat=True, deadline=deadline)
        self._client.note_read(answer.header, known)
        return answer

    def _ended(self) -> None:
        """Ends a request, and sends the waiting reads as a batch."""
        self._under_way -= 1
        if not self._waiting:
            return
        count = min(len(self._waiting), TOGETHER_MAX)
        batch = [self._waiting.popleft() for _ in range(count)]
        self._under_way += 1
        if self._tasks.start(self._together(batch), "read") is None:
            for read in (*batch, *self._waiting):
                _fail(read, StoreClosed("the metadata store is closed"))
            self._waiting.clear()
            self._under_way -= 1

    async def _together(self, batch: list[_Waiting]) -> None:
        try:
            batch = [read for read in batch if not read.answer.done()]
            try:
                await self._send(batch)
            except AnswerTooLarge:
                for read in batch:
                    await self._send_single(read)
        except MetadataError as error:
            for read in batch:
                _fail(read, error)
        finally:
            for read in batch:
                _fail(read, StoreClosed("the metadata store is closed"))
            self._ended()

    async def _send_single(self, read: _Waiting) -> None:
        try:
            _settle(read, await self._alone(read.request, read.deadline))
        except MetadataError as error:
            _fail(read, error)

    async def _send(self, batch: list[_Waiting]) -> None:
        if len(batch) < 2:
            for read in batch:
                await self._send_single(read)
            return
        request = pb.TxnRequest()
        for read in batch:
            request.success.add().request_range.CopyFrom(read.request)
        known = self._client.revision
        answer = await self._client.call(TXN, request, repeat=True, deadline=batch[0].deadline)
        self._client.note_read(answer.header, known)
        for read, response in zip(batch, answer.responses, strict=True):
            range_answer = response.response_range
            range_answer.header.CopyFrom(answer.header)
            _settle(read, range_answer)


def _settle(read: _Waiting, answer: pb.RangeResponse) -> None:
    if not read.answer.done():
        read.answer.set_result(answer)


def _fail(read: _Waiting, error: MetadataError) -> None:
    if not read.answer.done():
        read.answer.set_exception(error)
