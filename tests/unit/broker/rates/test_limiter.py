"""Waiters for a rate: served in turn, woken once tokens accumulate, never polling."""

import asyncio

from tests.unit.ledger.cluster import virtual
from tests.unit.ledger.flaky_store import LoopClock

from magnetar.broker.rates.limiter import RateLimiter


class Taker:
    """Takes one message each time it may, until it has had `wanted`."""

    def __init__(self, limiter: RateLimiter, wanted: int, *, at_once: int = 1) -> None:
        self.limiter, self.wanted, self.at_once = limiter, wanted, at_once
        self.taken: list[float] = []
        self.calls = 0

    def go(self) -> None:
        self.calls += 1
        while len(self.taken) < self.wanted:
            if not self.limiter.may_go():
                self.limiter.wait(self.go)
                return
            self.limiter.take(self.at_once, 0)
            self.taken.append(asyncio.get_running_loop().time())


def test_a_rate_holds_over_five_seconds_to_a_tenth() -> None:
    async def scenario() -> None:
        for rate in (3, 100, 5_000):
            limiter = RateLimiter(LoopClock())
            limiter.set(rate, 0, 1.0)
            taker = Taker(limiter, 12 * rate)
            begun = asyncio.get_running_loop().time()
            taker.go()
            await asyncio.sleep(11.0)
            for since in (0.0, 1.0, 5.5):
                window = [at for at in taker.taken if since <= at - begun < since + 5.0]
                assert abs(len(window) - 5 * rate) <= max(1, 0.1 * 5 * rate), (rate, since)
            limiter.close()

    virtual(scenario())


def test_it_wakes_only_for_accumulated_tokens() -> None:
    async def scenario() -> None:
        limiter = RateLimiter(LoopClock())
        limiter.set(2, 0, 1.0)
        taker = Taker(limiter, 1_000)
        taker.go()
        await asyncio.sleep(100.0)
        assert 198 <= len(taker.taken) <= 202
        assert taker.calls <= len(taker.taken) + 2
        limiter.close()

    virtual(scenario())


def test_waiters_take_turns_and_are_not_overtaken() -> None:
    async def scenario() -> None:
        limiter = RateLimiter(LoopClock())
        limiter.set(10, 0, 1.0)
        takers = [Taker(limiter, 1_000) for _ in range(4)]
        for taker in takers:
            taker.go()
        assert not limiter.may_go()
        await asyncio.sleep(40.0)
        assert not limiter.may_go()
        counts = [len(taker.taken) for taker in takers]
        assert abs(sum(counts) - 405) <= 2
        assert max(counts) - min(counts) <= 8, counts
        limiter.close()

    virtual(scenario())


def test_a_debt_is_paid_before_the_next_dispatch() -> None:
    async def scenario() -> None:
        limiter = RateLimiter(LoopClock())
        limiter.set(100, 0, 1.0)
        taker = Taker(limiter, 3, at_once=1_000)
        begun = asyncio.get_running_loop().time()
        taker.go()
        await asyncio.sleep(60.0)
        first, second, third = (at - begun for at in taker.taken)
        assert first == 0.0
        assert 9.5 <= second <= 9.6
        assert 19.5 <= third <= 19.7

    virtual(scenario())


def test_bytes_and_messages_both_need_tokens() -> None:
    async def scenario() -> None:
        limiter = RateLimiter(LoopClock())
        limiter.set(1_000, 100, 1.0)
        taken = 0

        def go() -> None:
            nonlocal taken
            while limiter.may_go():
                limiter.take(1, 10)
                taken += 1
            limiter.wait(go)

        go()
        await asyncio.sleep(10.0)
        assert 104 <= taken <= 106
        limiter.forget(go)

    virtual(scenario())


def test_a_changed_or_removed_rate_applies_to_waiters() -> None:
    async def scenario() -> None:
        limiter = RateLimiter(LoopClock())
        limiter.set(1, 0, 1.0)
        taker = Taker(limiter, 1_000)
        taker.go()
        await asyncio.sleep(10.0)
        assert 9 <= len(taker.taken) <= 12
        limiter.set(10, 0, 1.0)
        await asyncio.sleep(10.0)
        assert 105 <= len(taker.taken) <= 120
        limiter.close()
        await asyncio.sleep(0.1)
        assert len(taker.taken) == 1_000
        assert limiter.waiting == 0

    virtual(scenario())


def test_the_publish_rate_is_added() -> None:
    async def scenario() -> None:
        publishing = 20.0
        limiter = RateLimiter(LoopClock())
        limiter.set(10, 0, 1.0, lambda: (publishing, 0.0))
        taker = Taker(limiter, 100_000)
        taker.go()
        await asyncio.sleep(10.0)
        before = len(taker.taken)
        assert 295 <= before <= 320
        publishing = 90.0
        await asyncio.sleep(10.0)
        assert 990 <= len(taker.taken) - before <= 1_060
        limiter.close()

    virtual(scenario())


def test_a_forgotten_waiter_is_not_called() -> None:
    async def scenario() -> None:
        limiter = RateLimiter(LoopClock())
        limiter.set(1, 0, 1.0)
        limiter.take(10, 0)
        called: list[int] = []
        waiter, other = (lambda: called.append(1)), (lambda: called.append(2))
        limiter.wait(waiter)
        limiter.wait(other)
        limiter.forget(waiter)
        await asyncio.sleep(30.0)
        assert called == [2]

    virtual(scenario())
