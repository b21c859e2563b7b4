"""Watches clusters, and switches a client between them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from magnetar.client.errors import ClientError
from magnetar.client.failover import (
    AutoFailover,
    ControlledFailover,
    FailoverState,
    check_same_protocol,
)
from magnetar.client.network.access import Access, Target
from magnetar.client.network.pool import ConnectionPool
from magnetar.client.network.service_urls import ServiceUrls, parse_service_url
from magnetar.core.log import get_logger

log = get_logger("magnetar.client.failover")


class Switch:
    """Moves a client from one cluster to another."""

    def __init__(self, urls: ServiceUrls, pool: ConnectionPool, moved: Callable[[], None]) -> None:
        self._urls = urls
        self._pool = pool
        self._moved = moved

    def to(self, target: Target) -> None:
        """Uses another cluster from now on, and closes the connections to the previous one."""
        log.warning("client switches to another cluster", service=str(target.addresses[0]))
        # Both before any await: no cluster gets the credentials of another.
        self._urls.replace(target.addresses)
        self._pool.access = target.access
        self._moved()
        self._pool.drop("The client has switched to another cluster")


async def watch(
    options: AutoFailover | ControlledFailover,
    clusters: list[Target],
    switch: Switch,
    pool: ConnectionPool,
) -> None:
    """Switches the client until it is cancelled."""
    if isinstance(options, AutoFailover):
        await watch_clusters(options, clusters, switch, pool)
    else:
        await follow_control(options, clusters[0], switch)


async def watch_clusters(
    options: AutoFailover,
    clusters: list[Target],
    switch: Switch,
    pool: ConnectionPool,
) -> None:
    """Checks the clusters until it is cancelled."""
    state = FailoverState(options)
    now = asyncio.get_running_loop().time

    async def answers(index: int) -> bool:
        for address in clusters[index].addresses:
            if await pool.answers(address, clusters[index].access):
                return True
        return False

    while True:
        await asyncio.sleep(options.check_s)
        checked = {index: await answers(index) for index in state.to_check()}
        for index in state.decide(checked, now()):
            if checked.get(index) or (index not in checked and await answers(index)):
                state.switched(index)
                switch.to(clusters[index])
                break


class _Answer(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    service_url: str
    tls_trust_certs_file_path: str | None = None
    auth_plugin_class_name: str | None = None
    auth_params_string: str | None = None


async def follow_control(options: ControlledFailover, primary: Target, switch: Switch) -> None:
    """Asks the control service until it is cancelled; what is refused is logged."""
    current: _Answer | None = None
    target = primary
    while True:
        await asyncio.sleep(options.check_s)
        try:
            answer = await _controlled(options, primary.access)
            if answer == current:
                continue
            named = _target(answer, primary.access)
            check_same_protocol(primary.addresses, named.addresses, options.url)
        except (ClientError, msgspec.MsgspecError) as error:
            log.warning("no service URL of the control service", url=options.url, error=str(error))
            continue
        current = answer
        if named != target:
            target = named
            switch.to(named)


async def _controlled(options: ControlledFailover, access: Access) -> _Answer:
    from magnetar.client.network.http import request

    context: Any = access.tls.context() if options.url.startswith("https") else None
    answer = await request(
        "GET", options.url, headers=options.headers, tls=context, timeout_s=options.timeout_s
    )
    if answer.status != 200:
        raise ClientError(f"The control service answered {answer.status}")
    return msgspec.json.decode(answer.body, type=_Answer)


def _target(answer: _Answer, own: Access) -> Target:
    """Returns the cluster of an answer; what it does not name is the client's own."""
    from magnetar.client.auth.plugin import authentication_of

    tls, auth = own.tls, own.auth
    if answer.tls_trust_certs_file_path:
        tls = replace(tls, trust_certificates_file=answer.tls_trust_certs_file_path)
    if answer.auth_plugin_class_name:
        auth = authentication_of(answer.auth_plugin_class_name, answer.auth_params_string or "")
    return Target(parse_service_url(answer.service_url), Access(tls, auth))
