"""A call to etcd: at which members it is tried, how often, how long, and what its caller learns."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import grpc.aio
import pytest
from tests.unit.ledger.cluster import virtual

from magnetar.core.errors import MetadataError
from magnetar.metadata.etcd.client import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    EtcdClient,
    pause_s,
)
from magnetar.metadata.etcd.endpoints import Endpoint, Headers
from magnetar.metadata.etcd.errors import MetadataRefused, Outcome, PassingFault
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.store import MetadataUnavailable, StoreClosed

MEMBERS: Final = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
ATTEMPT_S: Final = 3.0
OPERATION_S: Final = 10.0


class Channel:
    """A connection that nothing is sent on, for gRPC's own do not live on virtual time."""

    def __init__(self, address: str, options: object) -> None:
        self.closed = False

    async def close(self, grace: float | None) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc.aio, "insecure_channel", Channel)


class NoJitter(Random):
    """Every wait is as long as it may be, and the first member has the first turn."""

    share = 1.0

    def random(self) -> float:
        return self.share

    def getrandbits(self, k: int, /) -> int:
        return 0


class Tries:
    """The attempts of one call: each fails as its row says, or hangs for its whole time."""

    def __init__(self, *rows: PassingFault | Exception | str) -> None:
        self.rows = list(rows)
        self.members: list[str] = []
        self.times: list[float] = []
        self.timeouts: list[float] = []

    async def attempt(self, endpoint: Endpoint, timeout_s: float, headers: Headers) -> str:
        self.members.append(endpoint.address)
        self.times.append(asyncio.get_running_loop().time())
        self.timeouts.append(timeout_s)
        row = self.rows.pop(0) if self.rows else PassingFault(Outcome.UNKNOWN, "lost")
        if row == "hangs":
            await asyncio.sleep(timeout_s)
            raise PassingFault(Outcome.UNKNOWN, "too late")
        if isinstance(row, Exception):
            raise row
        return str(row)


def on_members(
    scenario: Callable[[EtcdClient], Awaitable[None]], members: tuple[str, ...] = MEMBERS
) -> None:
    async def run() -> None:
        settings = EtcdSettings(
            endpoints=members, attempt_timeout_s=ATTEMPT_S, operation_timeout_s=OPERATION_S
        )
        client = EtcdClient(settings, NoJitter(1))
        try:
            await scenario(client)
        finally:
            await client.close()

    virtual(run())


def lost() -> PassingFault:
    return PassingFault(Outcome.UNKNOWN, "lost")


def not_done() -> PassingFault:
    return PassingFault(Outcome.NOT_DONE, "no leader")


def test_every_member_is_asked_before_a_call_waits_and_waits_grow() -> None:
    async def scenario(client: EtcdClient) -> None:
        tries = Tries(*(lost() for _ in range(9)), "found")
        began = asyncio.get_running_loop().time()
        assert await client.run(tries.attempt, repeat=True) == "found"
        for start in (0, 3, 6):
            assert sorted(tries.members[start : start + 3]) == sorted(MEMBERS)
        waits = [0.0, BACKOFF_S_MIN, BACKOFF_S_MIN * 3, BACKOFF_S_MIN * 7]
        expected = [began + waits[number // 3] for number in range(10)]
        assert tries.times == pytest.approx(expected)

    on_members(scenario)


def test_the_next_call_begins_at_the_member_that_answered() -> None:
    async def scenario(client: EtcdClient) -> None:
        first = Tries(lost(), "found")
        await client.run(first.attempt, repeat=True)
        second = Tries("found")
        await client.run(second.attempt, repeat=True)
        assert second.members == first.members[-1:]

    on_members(scenario)


def test_calls_that_fail_together_skip_no_member() -> None:
    async def scenario(client: EtcdClient) -> None:
        bad = client.endpoints.current
        client.endpoints.failed(bad)
        after = client.endpoints.current
        assert after is not bad
        client.endpoints.failed(bad)
        assert client.endpoints.current is after

    on_members(scenario)


def test_a_call_ends_by_its_deadline_and_no_try_lasts_longer_than_what_is_left() -> None:
    async def scenario(client: EtcdClient) -> None:
        tries = Tries(*["hangs"] * 9)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(MetadataUnavailable, match="too late"):
            await client.run(tries.attempt, repeat=True)
        assert loop.time() - began == pytest.approx(OPERATION_S)
        assert tries.timeouts == pytest.approx([3, 3, 3, 1 - BACKOFF_S_MIN])
        # The caller's own deadline and time for a try go before the settings'.
        tries, began = Tries(*["hangs"] * 9), loop.time()
        with pytest.raises(MetadataUnavailable):
            await client.run(
                tries.attempt, repeat=True, deadline=began + 2.0, attempt_timeout_s=1.5
            )
        assert loop.time() - began == pytest.approx(2.0)
        assert tries.timeouts == pytest.approx([1.5, 0.5])

    on_members(scenario)


def test_a_call_does_not_wait_for_a_try_that_its_deadline_rules_out() -> None:
    async def scenario(client: EtcdClient) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        tries = Tries()
        with pytest.raises(MetadataUnavailable):
            await client.run(tries.attempt, repeat=True, deadline=began + BACKOFF_S_MIN)
        assert loop.time() == began
        assert len(tries.times) == 1
        tries = Tries()
        with pytest.raises(MetadataUnavailable):
            await client.run(tries.attempt, repeat=True, deadline=began + 2 * BACKOFF_S_MIN)
        assert tries.times == pytest.approx([began, began + BACKOFF_S_MIN])

    on_members(scenario, MEMBERS[:1])


def test_a_read_that_fails_says_nothing_of_writes() -> None:
    async def scenario(client: EtcdClient) -> None:
        with pytest.raises(MetadataUnavailable) as failure:
            await client.run(Tries().attempt, repeat=True, deadline=0.0)
        assert "(last: lost). Check that etcd runs" in failure.value.message
        assert ", ".join(MEMBERS) in failure.value.message

    on_members(scenario)


def test_a_closed_client_tries_nothing() -> None:
    async def scenario(client: EtcdClient) -> None:
        tries = Tries(lost(), "found")

        async def closing(endpoint: Endpoint, timeout_s: float, headers: Headers) -> str:
            client.closed = True
            return await tries.attempt(endpoint, timeout_s, headers)

        with pytest.raises(StoreClosed):
            await client.run(closing, repeat=True)
        assert len(tries.times) == 1

    on_members(scenario)


@pytest.mark.parametrize("error", [MetadataError("refused"), ValueError("a mistake")])
def test_what_is_final_is_tried_at_one_member_only(error: Exception) -> None:
    async def scenario(client: EtcdClient) -> None:
        tries = Tries(error, "found")
        with pytest.raises(type(error), match=str(error)):
            await client.run(tries.attempt, repeat=True)
        assert len(tries.times) == 1

    on_members(scenario)


def test_a_token_refused_without_a_user_asks_for_one() -> None:
    async def scenario(client: EtcdClient) -> None:
        tries = Tries(PassingFault(Outcome.TOKEN, "user name is empty"), "found")
        with pytest.raises(MetadataRefused, match="set etcd's username"):
            await client.run(tries.attempt, repeat=True)

    on_members(scenario)


def test_back_off_doubles_up_to_its_bound_and_at_most_half_of_it_is_chance() -> None:
    least = NoJitter()
    least.share = 0.0
    for failures, most_s in ((1, 0.05), (2, 0.1), (3, 0.2), (5, 0.8), (6, 1.0), (5_000, 1.0)):
        assert pause_s(failures, NoJitter()) == pytest.approx(most_s)
        assert pause_s(failures, least) == pytest.approx(most_s / 2)
    assert pause_s(40, NoJitter()) == BACKOFF_S_MAX


def test_a_closed_client_has_no_connection_left() -> None:
    channels: list[object] = []

    async def scenario(client: EtcdClient) -> None:
        channels.extend(endpoint.channel for endpoint in client.endpoints._all)

    on_members(scenario)
    assert len(channels) == len(MEMBERS)
    assert all(isinstance(channel, Channel) and channel.closed for channel in channels)


def test_members_are_begun_with_by_chance() -> None:
    async def run() -> None:
        begun = set()
        for seed in range(30):
            client = EtcdClient(EtcdSettings(endpoints=MEMBERS), Random(seed))
            begun.add(client.endpoints.current.address)
            await client.close()
        assert begun == set(MEMBERS)

    virtual(run())
