"""Limits of HTTP requests by address and role: 429 for those who exceed them, and nobody else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.admin.support import NO_BODY

from magnetar.admin.app import create_app
from magnetar.admin.rights.caller import ROLE_HEADER
from magnetar.broker.rates import request_limit
from magnetar.broker.rates.request_limit import RequestLimit

from .rest import BROKER, SUPER, SUPER_PROXY, WRONG, Closed, closed_rest, token

PER_S = 10.0
BURST = 5
"""Half a second's requests."""
TENANTS = "/admin/v2/tenants"


class Stopped:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Limited:
    """A closed broker whose limit has a clock of the test, and clients at several addresses."""

    def __init__(self, closed: Closed, clock: Stopped) -> None:
        self.closed = closed
        self.clock = clock
        service = closed.service
        service.request_limit = self.limit = RequestLimit(PER_S, clock)
        self._app = create_app(service, closed.admin.page)

    async def ask(
        self,
        path: str = TENANTS,
        *,
        role: str | None = SUPER,
        address: str = "10.0.0.1",
        method: str = "GET",
        **headers: str,
    ) -> int:
        own = {} if role is None else {"authorization": f"Bearer {token(role)}"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.ASGITransport(self._app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://b") as http:
            return (await http.request(method, path, headers=own | named)).status_code

    async def asks(self, count: int, path: str = TENANTS, **more: str | None) -> list[int]:
        return [await self.ask(path, **more) for _ in range(count)]  # type: ignore[arg-type]


@asynccontextmanager
async def limited_rest(**settings: object) -> AsyncIterator[Limited]:
    async with closed_rest(**settings) as closed:
        yield Limited(closed, Stopped())


@pytest.fixture
async def limited() -> AsyncIterator[Limited]:
    async with limited_rest() as made:
        yield made


async def test_an_address_that_exceeds_the_rate_gets_429_and_others_do_not(
    limited: Limited,
) -> None:
    assert await limited.asks(BURST + 2, role=None) == [401] * BURST + [429] * 2
    assert await limited.ask(address="10.0.0.2") == 200
    limited.clock.now_s += 0.1
    assert await limited.asks(2, role=None) == [401, 429]
    text = await limited.closed.metrics()
    assert 'magnetar_http_requests_limited_total{cluster="standalone",by="address"} 3' in text


async def test_a_role_is_limited_wherever_it_connects_from(limited: Limited) -> None:
    from_everywhere = [await limited.ask(address=f"10.0.1.{n}") for n in range(BURST + 1)]
    assert from_everywhere == [200] * BURST + [429]
    assert await limited.ask(role="ta", address="10.0.1.1", path="/admin/v2/clusters") == 200


async def test_wrong_credentials_are_counted_for_the_address(limited: Limited) -> None:
    tries = [await limited.ask(role=None, authorization=f"Bearer {WRONG}") for _ in range(6)]
    assert tries == [401] * BURST + [429]
    assert await limited.ask() == 429, "nothing is verified for this address now"


@pytest.mark.parametrize("address", ["2001:db8::", "::ffff:10.0.0."])
async def test_the_addresses_of_an_ipv6_network_are_one(limited: Limited, address: str) -> None:
    answers = [await limited.ask(role=None, address=f"{address}{n}") for n in range(1, BURST + 2)]
    mapped = address.startswith("::ffff")
    assert answers[-1] == (401 if mapped else 429)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_are_not_limited(limited: Limited, path: str) -> None:
    assert await limited.asks(3 * BURST, path, role=None) == [200] * 3 * BURST
    assert await limited.asks(BURST, path, role=None, method="HEAD") == [200] * BURST


@pytest.mark.parametrize(("path", "method"), [("/%68ealthz", "GET"), ("/healthz", "POST")])
async def test_what_looks_like_a_probe_is_limited(limited: Limited, path: str, method: str) -> None:
    """It needs credentials, so it would be an oracle for guesses."""
    answers = await limited.asks(BURST + 1, path, role=None, method=method)
    assert answers == [401] * BURST + [429]


async def test_requests_that_a_broker_passes_on_are_not_counted_again(limited: Limited) -> None:
    headers = {ROLE_HEADER: "ta"}
    answers = [
        await limited.ask("/admin/v2/clusters", role=BROKER, **headers) for _ in range(3 * BURST)
    ]
    assert answers == [200] * 3 * BURST


async def test_a_client_behind_a_proxy_has_a_limit_of_its_own(limited: Limited) -> None:
    async def through_proxy(client: str, number: int) -> int:
        return await limited.ask(
            "/admin/v2/clusters",
            role=SUPER_PROXY,
            address=f"10.0.2.{number}",
            x_original_principal=client,
        )

    assert [await through_proxy("a", n) for n in range(BURST + 1)] == [200] * BURST + [429]
    assert await through_proxy("b", BURST) == 200


async def test_without_authorization_nobody_claims_to_be_a_broker() -> None:
    async with limited_rest(authorization_enabled=False) as limited:
        headers = {ROLE_HEADER: "ta"}
        answers = [
            await limited.ask(address=f"10.0.3.{n}", role="x", **headers) for n in range(BURST + 1)
        ]
        assert answers == [200] * BURST + [429]


async def test_it_is_off_by_default_and_follows_the_settings() -> None:
    async with closed_rest() as closed:
        assert closed.service.request_limit is None
    # The preparation of this broker has the burst for itself.
    async with closed_rest(http_requests_limited=True, http_requests_per_s=100.0) as closed:
        answers = [
            (await closed.admin.http.request("GET", TENANTS)).status_code for _ in range(100)
        ]
        assert {401, 429} == set(answers)
        response = await closed.admin.call("GET", TENANTS, NO_BODY, {})
        if response.status_code == 429:
            assert response.headers["retry-after"] == "1"
            assert "httpRequestsMaxPerSecond" in response.json()["reason"]


def test_the_senders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limit, "SENDERS_MAX", 10)
    limit = RequestLimit(1.0, Stopped())
    for number in range(100):
        assert limit.admits_role(f"role {number}")
    assert len(limit._buckets) == 10
    assert not limit.admits_role("role 99")
    assert limit.admits_role("role 0"), "it was forgotten"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 2)), max_size=80),
    st.floats(0.5, 50),
)
def test_no_sender_exceeds_its_rate(steps: list[tuple[str, float]], per_s: float) -> None:
    """Over the whole run: at most the burst and the rate times the time, for each sender."""
    clock = Stopped()
    limit = RequestLimit(per_s, clock)
    admitted = {"a": 0, "b": 0}
    for sender, pause_s in steps:
        clock.now_s += pause_s
        admitted[sender] += limit.admits_role(sender)
    allowed = max(1.0, per_s / 2) + per_s * (clock.now_s - 1_000.0)
    assert max(admitted.values()) <= allowed + 1e-3
