"""The cap on the connections of one role."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.sessions import ADMIN, PROXY, client_as, closed_broker, connecting, security_of
from tests.unit.broker.lifecycle.world import World

from magnetar.broker.security.role_caps import ROLE_TEXT, RoleCaps
from magnetar.core.errors import ServerError

MOST = 2


async def refused(w: World, role: str, **more: str) -> bool:
    client = await connecting(w, role, **more)
    (answer,) = client.told()
    message: Any = answer.message
    if not client.socket.closed:
        return False
    assert message.error == ServerError.NOT_ALLOWED_ERROR
    assert message.message == ROLE_TEXT
    return True


async def test_a_role_has_no_more_connections_than_its_cap() -> None:
    async with closed_broker(role_caps=RoleCaps(MOST)) as w:
        first, second = await client_as(w, "a"), await client_as(w, "a")
        assert await refused(w, "a")
        assert await refused(w, "a")
        assert not await refused(w, "b")
        first.session.lost(None)
        first.session.lost(None)  # counts once
        third = await client_as(w, "a")
        assert await refused(w, "a")
        assert not second.socket.closed
        assert not third.socket.closed
        assert security_of(w).counts.accepted == 4


async def test_a_client_behind_a_proxy_counts_and_the_proxy_does_not() -> None:
    async with closed_broker(role_caps=RoleCaps(1)) as w:
        await client_as(w, PROXY, original_principal="a")
        await client_as(w, PROXY, original_principal="b")
        assert await refused(w, PROXY, original_principal="a")
        assert await refused(w, "b")


async def test_super_users_are_not_limited_and_failed_proofs_do_not_count() -> None:
    async with closed_broker(role_caps=RoleCaps(1)) as w:
        for _ in range(3):
            await client_as(w, ADMIN)
            assert (await connecting(w, "-")).socket.closed
        assert not await refused(w, "a")


@pytest.mark.parametrize("authorization", [True, False])
async def test_without_a_cap_nothing_is_counted(authorization: bool) -> None:
    async with closed_broker(authorization=authorization) as w:
        for _ in range(5):
            await client_as(w, "a")


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_the_count_is_that_of_open_connections(most: int, steps: list[tuple[str, bool]]) -> None:
    caps, model = RoleCaps(most), Counter[str]()
    for role, opens in steps:
        if opens:
            assert caps.opened(role) == (model[role] < most)
            model[role] = min(model[role] + 1, most)
        elif model[role]:
            caps.closed(role)
            model[role] -= 1
    assert caps._connections == +model
