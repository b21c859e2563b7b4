"""An etcd of which a test decides what it answers, call by call: for what a real one does rarely.

It speaks gRPC on a port of loopback. Unary calls are answered by handlers that the test sets; a
keep-alive by `keep_alive`; watches by what the test puts into `to_watches`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import (
    AUTHENTICATE,
    LEASE_GRANT,
    LEASE_KEEP_ALIVE,
    LEASE_REVOKE,
    RANGE,
    TXN,
    WATCH,
)
from magnetar.metadata.etcd.endpoints import Method

Handler = Callable[[Any], Awaitable[Any]]


class Refusal(Exception):
    """Raised by a handler: the status that the call ends with."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


async def empty_range(request: pb.RangeRequest) -> pb.RangeResponse:
    return pb.RangeResponse(header=pb.ResponseHeader(revision=7))


class FakeEtcd(grpc.GenericRpcHandler):
    """See the module's text."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {RANGE.path: empty_range}
        self.calls: list[str] = []
        self.headers: list[tuple[str, dict[str, str]]] = []
        """Of every call and stream, by its method's last segment."""
        self.keep_alive: Handler | None = None
        self.to_watches: asyncio.Queue[pb.WatchResponse | Refusal | None] = asyncio.Queue()
        """None ends the stream, a refusal ends it with its status."""
        self.from_watches: asyncio.Queue[pb.WatchRequest] = asyncio.Queue()
        self.streams_opened = 0
        self.keep_alives_ended = asyncio.Semaphore(0)
        """Released at the end of each stream of keep-alives."""
        self._methods: dict[str, Method[Any, Any]] = {
            method.path: method for method in (RANGE, TXN, LEASE_GRANT, LEASE_REVOKE, AUTHENTICATE)
        }
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        self.port = 0

    def on(self, method: Method[Any, Any], handler: Handler) -> None:
        self.handlers[method.path] = handler

    async def start(self) -> None:
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """grpc asks what to do with a method."""
        path = str(handler_call_details.method)
        given = {key: str(value) for key, value in handler_call_details.invocation_metadata or ()}
        self.headers.append((path.rpartition("/")[2], given))
        if path == WATCH.path:
            return grpc.stream_stream_rpc_method_handler(
                self._watch, pb.WatchRequest.FromString, pb.WatchResponse.SerializeToString
            )
        if path == LEASE_KEEP_ALIVE.path:
            return grpc.stream_stream_rpc_method_handler(
                self._keep_alive,
                pb.LeaseKeepAliveRequest.FromString,
                pb.LeaseKeepAliveResponse.SerializeToString,
            )
        method = self._methods[path]

        async def unary(request: Any, context: Any) -> Any:
            self.calls.append(path.rpartition("/")[2])
            try:
                return await self.handlers[path](request)
            except Refusal as refusal:
                await context.abort(refusal.code, refusal.text)

        return grpc.unary_unary_rpc_method_handler(
            unary, method.request.FromString, method.response.SerializeToString
        )

    async def _keep_alive(
        self, requests: AsyncIterator[pb.LeaseKeepAliveRequest], context: Any
    ) -> AsyncIterator[pb.LeaseKeepAliveResponse]:
        """Where the test's handler gives None, the stream ends without an answer."""
        try:
            async for request in requests:
                self.calls.append("LeaseKeepAlive")
                assert self.keep_alive is not None
                try:
                    answer = await self.keep_alive(request)
                except Refusal as refusal:
                    await context.abort(refusal.code, refusal.text)
                if answer is None:
                    return
                yield answer
        finally:
            self.keep_alives_ended.release()

    async def _watch(
        self, requests: AsyncIterator[pb.WatchRequest], context: Any
    ) -> AsyncIterator[pb.WatchResponse]:
        self.streams_opened += 1

        async def listen() -> None:
            async for request in requests:
                await self.from_watches.put(request)

        listening = asyncio.ensure_future(listen())
        try:
            while (response := await self.to_watches.get()) is not None:
                if isinstance(response, Refusal):
                    await context.abort(response.code, response.text)
                else:
                    yield response
        finally:
            listening.cancel()
