"""Traces of our client: spans of senders and handlers, joined by the properties of messages."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from magnetar.client import Client, Message
from magnetar.client.errors import ClientError, MessageTooBig
from magnetar.client.tracing import Tracing, context_of

from .client_rig import take
from .support import ServerAddress

TRACEPARENT = r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[13]"


@pytest.fixture
async def own(server: ServerAddress) -> AsyncIterator[Client]:
    async with Client(server.service_url) as client:
        yield client


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    made = TracerProvider()
    yield made
    made.shutdown()


@pytest.fixture
def exported(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def named(exporter: InMemorySpanExporter, prefix: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name.startswith(prefix)]


async def test_a_trace_continues_at_the_consumer(
    own: Client, topic: str, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    tracing = Tracing(provider)
    handled = asyncio.Event()
    failed: list[str] = []

    async def handle(message: Message[Any]) -> None:
        if message.value == b"bad" and not failed:
            failed.append("once")
            raise ValueError("cannot be handled")
        if message.value == b"bad":
            handled.set()

    async with (
        own.consumer(topic, "sub", negative_ack_delay_s=0.1) as consumer,
        own.producer(topic, interceptors=[tracing.interceptor()]) as producer,
    ):
        running = asyncio.create_task(consumer.run(tracing.traced(handle, subscription="sub")))
        with provider.get_tracer("app").start_as_current_span("request") as request:
            good = await producer.send(b"good", properties={"a": "b"})
        await producer.send(b"bad")
        async with asyncio.timeout(30):
            await handled.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    sent, other = named(exported, "send ")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert sent.attributes is not None
    assert sent.attributes["messaging.system"] == "pulsar"
    assert sent.attributes["messaging.destination.name"] == producer.topic
    assert sent.attributes["messaging.message.id"] == str(good)
    assert sent.attributes["messaging.message.body.size"] == 4
    assert other.parent is None

    first, wrong, again = named(exported, "process ")
    assert first.kind is SpanKind.CONSUMER
    assert first.context.trace_id == sent.context.trace_id
    assert first.parent is not None
    assert first.parent.span_id == sent.context.span_id
    assert first.attributes is not None
    assert first.attributes["messaging.destination.subscription.name"] == "sub"
    assert first.attributes["messaging.message.id"] == str(good)
    assert first.status.status_code is StatusCode.UNSET
    assert wrong.status.status_code is StatusCode.ERROR
    assert wrong.attributes is not None
    assert wrong.attributes["error.type"] == "ValueError"
    assert [event.name for event in wrong.events] == ["exception"]
    assert again.status.status_code is StatusCode.UNSET
    assert {wrong.context.trace_id, again.context.trace_id} == {other.context.trace_id}


async def test_the_context_is_that_of_other_clients(
    own: Client, topic: str, provider: TracerProvider
) -> None:
    tracing = Tracing(provider)
    async with (
        own.consumer(topic, "sub") as consumer,
        own.producer(topic, interceptors=[tracing.interceptor()]) as producer,
    ):
        await producer.send(b"x", properties={"a": "b"})
        (message,) = await take(consumer, 1)
        assert re.fullmatch(TRACEPARENT, message.properties["traceparent"])
        assert message.properties["a"] == "b"
        assert context_of(message)
        await producer.send(b"y", properties={"traceparent": "nonsense"})
        (message,) = await take(consumer, 1)
        assert re.fullmatch(TRACEPARENT, message.properties["traceparent"])


async def test_failed_and_refused_sends(
    own: Client, topic: str, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    tracing = Tracing(provider)
    async with own.producer(topic, batching=None, interceptors=[tracing.interceptor()]) as producer:
        with pytest.raises(ClientError):
            await producer.send(bytes(6 << 20))
    spans = named(exported, "send ")
    assert len(spans) <= 1, "a message that was refused before it was queued has no span"
    for span in spans:
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == MessageTooBig.__qualname__
