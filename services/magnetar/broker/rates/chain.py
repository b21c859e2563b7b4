"""Several limiters that a sender must pass together, from the narrowest to the widest.

A subscription's or a topic's own limiter comes first, then those that topics share: of the resource
group, of the broker. A sender takes its tokens from all of them at once, so none are reserved while
it waits, and it waits in one queue only: that of the first limiter that refuses it.

While a limiter serves its queue, the sender whose turn it is passes the queues of the narrower
limiters, where it has waited before; it needs only tokens there. If it had to join them again, two
limiters with queues could pass their waiters to each other for ever.
"""

from magnetar.broker.rates.limiter import RateLimiter

Limiters = tuple[RateLimiter, ...]


def blocking(limiters: Limiters) -> RateLimiter | None:
    """Returns the first limiter that does not let the sender go now, None if all do."""
    served = -1
    for index, limiter in enumerate(limiters):
        if limiter.serving:
            served = index
    for index, limiter in enumerate(limiters):
        if not (limiter.has_tokens() if index < served else limiter.may_go()):
            return limiter
    return None


def take(limiters: Limiters, messages: int, size_bytes: int) -> None:
    """Takes tokens for sent messages from all limiters."""
    for limiter in limiters:
        limiter.take(messages, size_bytes)
