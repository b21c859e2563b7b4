"""Reads of etcd, many of them in one request where many are asked for at once.

Up to ALONE_MAX reads are under way, each a request of its own. Who comes then waits until one of
them is answered, and goes out together with all that gathered: as the ranges of one transaction
that changes nothing, which etcd reads as it reads single ones (linearizable). So a broker that
opens thousands of topics spends a request on some ten reads, and nothing waits behind thousands.

Each read has the deadline of a call from the moment at which it was asked for. What is under way
was asked for earlier, so whoever waits has its turn before its own time is over.
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
"""Ranges of one transaction; etcd takes 128 (`--max-txn-ops`)."""


@dataclass(slots=True)
class _Waiting:
    """A read that is to go out with others."""

    request: pb.RangeRequest
    deadline: float
    answer: "asyncio.Future[pb.RangeResponse]"


class Reads:
    """See the module's text."""

    def __init__(self, client: EtcdClient, tasks: TaskSet) -> None:
        self._client = client
        self._tasks = tasks
        self._under_way = 0
        self._waiting: deque[_Waiting] = deque()

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """Raises as `EtcdClient.call` does, and AnswerTooLarge."""
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
        """One that was under way is done: those that gathered go out."""
        self._under_way -= 1
        if not self._waiting:
            return
        count = min(len(self._waiting), TOGETHER_MAX)
        some = [self._waiting.popleft() for _ in range(count)]
        self._under_way += 1
        if self._tasks.start(self._together(some), "read") is None:
            for one in (*some, *self._waiting):
                _fail(one, StoreClosed("the metadata store is closed"))
            self._waiting.clear()
            self._under_way -= 1

    async def _together(self, some: list[_Waiting]) -> None:
        try:
            some = [one for one in some if not one.answer.done()]
            try:
                await self._ask(some)
            except AnswerTooLarge:
                for one in some:
                    await self._ask_one(one)
        except MetadataError as error:
            for one in some:
                _fail(one, error)
        finally:
            for one in some:
                _fail(one, StoreClosed("the metadata store is closed"))
            self._ended()

    async def _ask_one(self, one: _Waiting) -> None:
        try:
            _settle(one, await self._alone(one.request, one.deadline))
        except MetadataError as error:
            _fail(one, error)

    async def _ask(self, some: list[_Waiting]) -> None:
        if len(some) < 2:
            for one in some:
                await self._ask_one(one)
            return
        request = pb.TxnRequest()
        for one in some:
            request.success.add().request_range.CopyFrom(one.request)
        known = self._client.revision
        answer = await self._client.call(TXN, request, repeat=True, deadline=some[0].deadline)
        self._client.note_read(answer.header, known)
        for one, response in zip(some, answer.responses, strict=True):
            found = response.response_range
            found.header.CopyFrom(answer.header)
            _settle(one, found)


def _settle(one: _Waiting, answer: pb.RangeResponse) -> None:
    if not one.answer.done():
        one.answer.set_result(answer)


def _fail(one: _Waiting, error: MetadataError) -> None:
    if not one.answer.done():
        one.answer.set_exception(error)
