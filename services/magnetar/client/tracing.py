"""OpenTelemetry for producers and consumers: a span per message sent and handled.

The context of the sender's span travels in the properties of the message, as W3C Trace Context
(`traceparent`, `tracestate`), where Java's client puts it (PIP-446) and Go's. So a trace continues
across clients.

    tracing = Tracing()
    async with client.producer("orders", interceptors=[tracing.interceptor()]) as producer: ...
    async with client.consumer("orders", "billing") as consumer:
        await consumer.run(tracing.traced(handle, subscription="billing"))

Names and attributes of spans follow OpenTelemetry's conventions for messaging. This module needs
`magnetar[tracing]`; the application configures an exporter as for any other library.
"""

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from magnetar.client.errors import InvalidConfiguration
from magnetar.client.interceptors import ProducerInterceptor
from magnetar.client.message import Message
from magnetar.client.message_id import MessageId
from magnetar.client.producer.outgoing import OutgoingMessage

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
except ModuleNotFoundError as missing:
    raise InvalidConfiguration(
        "Tracing needs the package opentelemetry-api: pip install 'magnetar[tracing]'"
    ) from missing

NAME: Final = "magnetar.client"
SYSTEM: Final = "pulsar"
R = TypeVar("R")


class _Traced(OutgoingMessage):
    """A message with its span; if it is never sent, the span is dropped with it."""

    span: Any = None


class _Interceptor(ProducerInterceptor):
    """Begins a span for each message, which ends with its receipt."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def before_send(self, topic: str, message: OutgoingMessage) -> OutgoingMessage:
        """Adds the span, and its context to the properties."""
        attributes = {
            **_attributes(topic, "send", "send"),
            "messaging.message.body.size": len(message.payload),
        }
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        properties = dict(message.properties)
        propagate.inject(properties, context=trace.set_span_in_context(span))
        fields = {**msgspec.structs.asdict(message), "properties": properties}
        return _Traced(**fields, span=span)

    def on_sent(
        self,
        topic: str,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: BaseException | None,
    ) -> None:
        """Ends the span, with the message's id or the error."""
        if not isinstance(message, _Traced):
            return
        span: Span = message.span
        if message_id is not None:
            span.set_attribute("messaging.message.id", str(message_id))
        if error is not None:
            _failed(span, error)
        span.end()


class Tracing:
    """Makes the spans of an application's producers and consumers."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        """Without a provider, that of the process (`opentelemetry.trace`)."""
        self._tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)

    def interceptor(self) -> ProducerInterceptor:
        """Returns the interceptor of a producer: `interceptors=[tracing.interceptor()]`."""
        return _Interceptor(self._tracer)

    @contextmanager
    def processing(self, message: Message[Any], *, subscription: str = "") -> Iterator[Span]:
        """Handles a message in a span whose parent is that of its sender.

        An exception is recorded in the span, and passed on.
        """
        attributes: dict[str, str | int] = {
            **_attributes(message.topic, "process", "process"),
            "messaging.message.id": str(message.id),
            "messaging.message.body.size": len(message.data),
        }
        if subscription:
            attributes["messaging.destination.subscription.name"] = subscription
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=context_of(message),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _failed(span, error)
                raise

    def traced(
        self, handle: Callable[[Message[Any]], Awaitable[R]], *, subscription: str = ""
    ) -> Callable[[Message[Any]], Awaitable[R]]:
        """Returns a handler for `Consumer.run` that does its work in `processing`."""

        @functools.wraps(handle)
        async def handle_traced(message: Message[Any]) -> R:
            with self.processing(message, subscription=subscription):
                return await handle(message)

        return handle_traced


def context_of(message: Message[Any]) -> Context:
    """Returns the context of the span that sent a message; an empty one without it."""
    return propagate.extract(message.properties, context=Context())


def _attributes(topic: str, name: str, kind: str) -> dict[str, str | int]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _failed(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))
