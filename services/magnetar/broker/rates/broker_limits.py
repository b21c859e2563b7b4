"""The limits that all topics of a broker share.

    brokerPublisherThrottlingMaxMessageRate, …ByteRate    what all producers send
    dispatchThrottlingRateInMsg, …InByte                  what is dispatched to all consumers
    maxUnackedMessagesPerBroker                           what all shared consumers hold

Topics read this object when their policies are applied, so a change takes effect once all topics
are notified. A broker without such limits has no limiter and pays nothing for them.
"""

from dataclasses import dataclass
from typing import Final

from magnetar.broker.rates.chain import Limiters
from magnetar.broker.rates.limiter import RateLimiter
from magnetar.broker.rates.rate import Rate
from magnetar.core.clock import Clock
from magnetar.settings.broker import BrokerSettings

PUBLISH: Final = "brokerPublisherThrottlingMaxMessageRate, brokerPublisherThrottlingMaxByteRate"
DISPATCH: Final = "dispatchThrottlingRateInMsg, dispatchThrottlingRateInByte"


@dataclass(slots=True)
class BrokerLimits:
    """The limiters of a broker, and what applies to all its subscriptions."""

    clock: Clock
    publish: RateLimiter | None = None
    dispatch: RateLimiter | None = None
    throttle_tailing: bool = True
    """Whether rates of dispatch apply to subscriptions without a backlog."""
    unacked_share: int = 0
    """The cap of each subscription's unacked messages while the broker has too many; 0: none."""

    def set_rates(self, publish: Rate, dispatch: Rate) -> None:
        """Replaces both rates; the waiters of a limiter that ends are called soon."""
        self.publish = self._limiter(self.publish, publish, PUBLISH)
        self.dispatch = self._limiter(self.dispatch, dispatch, DISPATCH)

    @property
    def publishing(self) -> Limiters:
        """The limiters that publishes pass after the topic's own."""
        return () if self.publish is None else (self.publish,)

    @property
    def dispatching(self) -> Limiters:
        """The limiters that dispatches pass after the topic's own."""
        return () if self.dispatch is None else (self.dispatch,)

    def unacked_cap(self, cap: int) -> int:
        """Returns the cap of a subscription whose policies set `cap`; 0 means no cap."""
        share = self.unacked_share
        return min(cap, share) if cap and share else cap or share

    def _limiter(self, limiter: RateLimiter | None, rate: Rate, source: str) -> RateLimiter | None:
        if not rate.limits:
            if limiter is not None:
                limiter.close()
            return None
        if limiter is None:
            limiter = RateLimiter(self.clock, source)
        limiter.set(rate.messages, rate.size_bytes, rate.period_s)
        return limiter


def set_limits(limits: BrokerLimits, settings: BrokerSettings) -> None:
    """Applies the settings; topics need a notification afterwards."""
    own = settings.limits
    limits.set_rates(
        Rate(own.broker_publish_rate_messages, own.broker_publish_rate_bytes),
        Rate(own.broker_dispatch_rate_messages, own.broker_dispatch_rate_bytes),
    )
    limits.throttle_tailing = settings.policies.dispatch_rate_for_tailing
