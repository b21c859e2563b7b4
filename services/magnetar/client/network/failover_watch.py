"""Watches clusters, and switches a client between them."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from magnetar.client.errors import ClientError
from magnetar.client.failover import (
    AutoFailover,
    ControlledFailover,
    FailoverState,
    check_same_protocol,
)
from magnetar.client.network.pool import ConnectionPool
from magnetar.client.network.service_urls import Address, ServiceUrls, parse_service_url
from magnetar.client.network.tls import Tls
from magnetar.core.log import get_logger

log = get_logger("magnetar.client.failover")


class Switch:
    """Moves a client from one cluster to another."""

    def __init__(self, urls: ServiceUrls, pool: ConnectionPool, moved: Callable[[], None]) -> None:
        self._urls = urls
        self._pool = pool
        self._moved = moved

    def to(self, addresses: list[Address]) -> None:
        """Uses another cluster from now on, and closes the connections to the previous one."""
        log.warning("client switches to another cluster", service=str(addresses[0]))
        self._urls.replace(addresses)
        self._moved()
        self._pool.drop("The client has switched to another cluster")


async def watch(
    options: AutoFailover | ControlledFailover,
    clusters: list[list[Address]],
    switch: Switch,
    pool: ConnectionPool,
    tls: Tls,
) -> None:
    """Switches the client until it is cancelled."""
    if isinstance(options, AutoFailover):
        await watch_clusters(options, clusters, switch, pool)
    else:
        await follow_control(options, clusters[0], switch, tls)


async def watch_clusters(
    options: AutoFailover,
    clusters: list[list[Address]],
    switch: Switch,
    pool: ConnectionPool,
) -> None:
    """Checks the clusters until it is cancelled."""
    state = FailoverState(options)
    now = asyncio.get_running_loop().time

    async def answers(index: int) -> bool:
        for address in clusters[index]:
            if await pool.answers(address):
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


async def follow_control(
    options: ControlledFailover,
    primary: list[Address],
    switch: Switch,
    tls: Tls,
) -> None:
    """Asks the control service until it is cancelled; what is refused is logged."""
    current = primary
    while True:
        await asyncio.sleep(options.check_s)
        try:
            addresses = await _controlled(options, tls)
            check_same_protocol(primary, addresses, options.url)
        except (ClientError, msgspec.MsgspecError) as error:
            log.warning("no service URL of the control service", url=options.url, error=str(error))
            continue
        if addresses != current:
            current = addresses
            switch.to(addresses)


async def _controlled(options: ControlledFailover, tls: Tls) -> list[Address]:
    from magnetar.client.network.http import request

    context: Any = tls.context() if options.url.startswith("https") else None
    answer = await request(
        "GET", options.url, headers=options.headers, tls=context, timeout_s=options.timeout_s
    )
    if answer.status != 200:
        raise ClientError(f"The control service answered {answer.status}")
    document = msgspec.json.decode(answer.body, type=_Answer)
    if document.auth_plugin_class_name or document.tls_trust_certs_file_path:
        raise ClientError(
            "The control service names other credentials or TLS files, which are not supported"
        )
    return parse_service_url(document.service_url)
