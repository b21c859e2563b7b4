"""The simulation's own ground: order, time, kills, pauses, and that a seed decides everything."""

import asyncio
import random

import pytest
from tests.sim.loop import CANCELLED_TIMERS_MIN, Deadlock, Process, SimLoop, run
from tests.sim.network import Network, Weather


def test_time_is_virtual_and_timers_fire_in_order() -> None:
    loop = SimLoop(1)
    told: list[tuple[str, float]] = []

    async def main() -> None:
        loop.call_later(3600, lambda: told.append(("later", loop.time())))
        loop.call_later(60, lambda: told.append(("sooner", loop.time())))
        loop.call_later(30, lambda: told.append(("never", 0.0))).cancel()
        await asyncio.sleep(7200)

    begun = loop.time()
    run(loop, main())
    assert [name for name, _ in told] == ["sooner", "later"]
    assert told[0][1] == pytest.approx(begun + 60)
    assert loop.time() >= begun + 7200


def test_cancelled_timers_are_dropped_and_the_others_fire_in_order() -> None:
    """A run sets thousands of deadlines that never come; each would slow down all others."""
    loop = SimLoop(1)
    told: list[int] = []
    kept = [3 * CANCELLED_TIMERS_MIN, CANCELLED_TIMERS_MIN, 0]

    async def main() -> None:
        for number in kept:
            loop.call_later(100 + number, told.append, number)
        for number in range(4 * CANCELLED_TIMERS_MIN):
            loop.call_later(100 + number, told.append, -1).cancel()
        assert loop.timer_count <= 2 * CANCELLED_TIMERS_MIN
        await asyncio.sleep(100 + 4 * CANCELLED_TIMERS_MIN)

    run(loop, main())
    assert told == sorted(kept)


def test_timers_and_events_of_one_time_run_in_the_order_in_which_they_were_made() -> None:
    loop = SimLoop(1)
    told: list[str] = []
    process = Process(loop, "a", "a", instant=True)

    async def main() -> None:
        when = loop.time() + 1
        process.context.run(loop.call_at, when, told.append, "timer")
        loop.at(when, process.post, told.append, "event")
        process.context.run(loop.call_at, when, told.append, "second timer")
        loop.at(when, process.post, told.append, "second event")
        await asyncio.sleep(2)

    run(loop, main())
    assert told == ["timer", "event", "second timer", "second event"]


def test_a_coroutine_of_turns_runs_without_a_task_and_may_wait_for_nothing_else() -> None:
    loop = SimLoop(1)
    told: list[object] = []
    process = Process(loop, "a", "a")

    async def turns() -> None:
        for number in range(3):
            told.append((number, process.turns))
            await asyncio.sleep(0)

    async def waits() -> None:
        await asyncio.sleep(1)
        told.append("too far")

    async def main() -> None:
        process.take_turns(turns())
        await asyncio.sleep(1)
        process.take_turns(waits())
        await asyncio.sleep(3)

    run(loop, main())
    assert told == [(0, 1), (1, 2), (2, 3)]
    assert [type(error) for _, _, error in loop.failures] == [RuntimeError]


def test_what_nothing_can_wake_is_a_deadlock() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        run(loop, main())


def test_a_killed_process_runs_no_more_not_even_its_finally() -> None:
    loop = SimLoop(1)
    told: list[str] = []
    process = Process(loop, "a", "a")

    async def work() -> None:
        try:
            while True:
                told.append("work")
                await asyncio.sleep(1)
        finally:
            told.append("finally")

    async def main() -> None:
        process.start(work(), "work")
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10)

    run(loop, main())
    assert told == ["work"] * 3


def test_a_paused_process_finds_its_timers_due_when_it_continues() -> None:
    loop = SimLoop(1)
    told: list[float] = []
    process = Process(loop, "a", "a")

    async def work() -> None:
        asyncio.get_running_loop().call_later(1, lambda: told.append(loop.time()))
        asyncio.get_running_loop().call_later(2, lambda: told.append(loop.time()))
        await asyncio.sleep(100)

    async def main() -> None:
        process.start(work(), "work")
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(10)
        assert not told
        process.resume()
        await asyncio.sleep(0.1)

    begun = loop.time()
    run(loop, main())
    assert len(told) == 2
    assert told[0] >= begun + 10.5


def test_an_exception_that_nobody_catches_is_known() -> None:
    loop = SimLoop(1)
    process = Process(loop, "a", "a")

    async def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        process.start(fail(), "fail")
        process.loop.call_soon(lambda: 1 / 0, context=process.context.copy())
        await asyncio.sleep(1)

    run(loop, main())
    loop.unread_failures([process])
    assert {type(error) for _, _, error in loop.failures} == {KeyError, ZeroDivisionError}
    assert {process for process, _, _ in loop.failures} == {process}


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


class Caller(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: Exception | str | None = "no"
        self.paused = 0
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.changed.set()

    def pause_writing(self) -> None:
        self.paused += 1


class Pair:
    """A server on host a and a caller on host b."""

    def __init__(self, seed: int = 1, weather: Weather | None = None) -> None:
        self.loop = SimLoop(seed)
        self.network = Network(self.loop, weather)
        self.a, self.b = Process(self.loop, "a", "a"), Process(self.loop, "b", "b")

    async def connect(self) -> Caller:
        async def serve() -> None:
            await self.loop.create_server(Echo, "0.0.0.0", 7)  # noqa: S104  # simulated

        async def call() -> Caller:
            _, caller = await self.loop.create_connection(Caller, "a", 7)
            return caller  # type: ignore[no-any-return]

        await self.a.start(serve(), "serve")
        return await self.b.start(call(), "call")


def test_bytes_arrive_in_order_whatever_the_weather() -> None:
    pair = Pair(3, Weather(jitter_s=0.05, slow_chance=0.3, slow_s=2.0))
    sent = random.Random(1).randbytes(300_000)

    async def main() -> None:
        caller = await pair.connect()
        for at in range(0, len(sent), 1000):
            caller.transport.write(sent[at : at + 1000])
            await asyncio.sleep(0.001)
        await asyncio.sleep(1000)
        assert bytes(caller.received) == sent

    run(pair.loop, main())


def test_a_cut_holds_bytes_back_and_a_long_one_ends_the_connection() -> None:
    pair = Pair()

    async def main() -> None:
        caller = await pair.connect()
        pair.network.cut("b", "a")
        caller.transport.write(b"one")
        await asyncio.sleep(5)
        assert not caller.received
        pair.network.heal("b", "a")
        await asyncio.sleep(2)
        assert caller.received == b"one"
        pair.network.cut("a", "b")
        caller.transport.write(b"two")
        await asyncio.sleep(1000)
        assert caller.received == b"one"
        pair.network.heal("a", "b")
        await asyncio.sleep(2)
        caller.transport.write(b"three")
        await asyncio.sleep(2)
        assert isinstance(caller.lost, ConnectionResetError)

    run(pair.loop, main())


def test_a_killed_peer_resets_and_one_without_power_is_silent() -> None:
    for power in (False, True):
        pair = Pair()

        async def main(pair: Pair = pair, power: bool = power) -> None:
            caller = await pair.connect()
            pair.a.kill()
            if power:
                pair.network.lost_power(pair.a)
                pair.network.power_off("a")
            else:
                pair.network.killed(pair.a)
            await asyncio.sleep(5)
            assert isinstance(caller.lost, ConnectionResetError) is not power
            if power:
                pair.network.power_on("a")
                caller.transport.write(b"anybody?")
                await asyncio.sleep(5)
                assert isinstance(caller.lost, ConnectionResetError)
            with pytest.raises(ConnectionRefusedError):
                await pair.b.start(pair.loop.create_connection(Caller, "a", 7), "again")

        run(pair.loop, main())


def test_a_reader_that_rests_makes_its_writer_pause() -> None:
    pair = Pair()

    async def main() -> None:
        caller = await pair.connect()
        caller.transport.pause_reading()
        for _ in range(40):
            caller.transport.write(bytes(100_000))
            await asyncio.sleep(0.01)
        assert caller.transport.get_write_buffer_size() == 0 or caller.paused
        assert len(caller.received) == 0
        caller.transport.resume_reading()
        await asyncio.sleep(10)
        assert len(caller.received) == 4_000_000

    run(pair.loop, main())


def test_the_seed_decides_everything() -> None:
    def trace(seed: int) -> tuple[int, float]:
        pair = Pair(seed, Weather(jitter_s=0.01, slow_chance=0.1))

        async def main() -> None:
            caller = await pair.connect()
            for _ in range(50):
                caller.transport.write(random.Random(seed).randbytes(5000))
                await asyncio.sleep(pair.loop.rng.random() / 100)
            while len(caller.received) < 250_000:
                caller.changed.clear()
                await caller.changed.wait()

        run(pair.loop, main())
        return pair.loop.trace_hash, pair.loop.now

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)
