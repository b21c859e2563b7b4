"""The dispatch rates of a persistent topic: its limiter, and the throttles of its subscriptions.

A subscription's rate is its own (`…/{subscription}/dispatchRate`), else that of the topic's policy
for all its subscriptions. A subscription that no rate limits has no throttle.
"""

from magnetar.broker.rates.dispatch_rate import DispatchThrottle
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.rates.rate import Rate, dispatch_rate
from magnetar.broker.subscription.persistent import PersistentSubscription
from magnetar.broker.topic.context import TopicContext
from magnetar.broker.topic.counters import TopicCounters
from magnetar.core.names import TopicName
from magnetar.policies.rates import DISPATCH_RATE, SUBSCRIPTION_DISPATCH_RATE


class DispatchThrottles:
    """Applies the dispatch rates in force to a topic's subscriptions."""

    __slots__ = ("_context", "_counters", "_name", "_topic")

    def __init__(self, name: TopicName, context: TopicContext, counters: TopicCounters) -> None:
        self._name = name
        self._context = context
        self._counters = counters
        self._topic: RateLimiter | None = None

    def policies_changed(self) -> None:
        """Reads the topic's rate again. `apply` each of its subscriptions afterwards."""
        rate = dispatch_rate(self._context.policies.value(self._name, DISPATCH_RATE))
        self._topic = self._limiter(self._topic, rate, DISPATCH_RATE.manifest)

    def apply(self, subscription: PersistentSubscription) -> None:
        """Limits a subscription to its own rate, and those of topic, resource group and broker."""
        throttle = subscription.throttle
        shared = self._context.dispatching(self._name.namespace)
        policies = self._context.policies
        value, named = policies.subscription_rate(self._name, subscription.name)
        source = f"dispatchRate of {subscription.name}" if named else ""
        own = self._limiter(
            None if throttle is None else throttle.own,
            dispatch_rate(value),
            source or SUBSCRIPTION_DISPATCH_RATE.manifest,
        )
        tailing = self._context.limits.throttle_tailing
        if throttle is None:
            if own is None and self._topic is None and not shared:
                return
            throttle = DispatchThrottle(subscription.cursor, subscription.wake, tailing=tailing)
            subscription.throttle = throttle
        throttle.tailing = tailing
        throttle.set_limiters(own, self._topic, shared)
        subscription.rates_changed()

    def _limiter(self, limiter: RateLimiter | None, rate: Rate, source: str) -> RateLimiter | None:
        """Returns the limiter with that rate, a new one if needed; ends it without a rate."""
        if not rate.limits:
            if limiter is not None:
                limiter.close()
            return None
        counters = self._counters
        if limiter is None:
            limiter = RateLimiter(self._context.clock)
        limiter.source = source
        relative = (
            (lambda: (counters.message_rate_in, counters.bytes_rate_in)) if rate.relative else None
        )
        limiter.set(rate.messages, rate.size_bytes, rate.period_s, relative)
        return limiter
