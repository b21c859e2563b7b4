"""Service URLs: `pulsar://a:6650,b:6650`, `pulsar+ssl://...`, `http://...`, `https://...`.

A URL with several hosts is used in turn, beginning at a random host, so that clients spread over
the brokers and a dead host is skipped.
"""

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from magnetar.client.errors import Disconnected, InvalidConfiguration, LookupFailed

DEFAULT_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 8080, "https": 8443}


class Address(NamedTuple):
    """The scheme, host and port of a service."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        """Whether connections to it use TLS."""
        return self.scheme in ("pulsar+ssl", "https")

    @property
    def http(self) -> bool:
        """Whether it is an admin REST, not a broker's binary protocol."""
        return self.scheme in ("http", "https")

    @property
    def host_port(self) -> str:
        """`host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_port}"


def parse_address(url: str) -> Address:
    """Parses the URL of one service; raises InvalidConfiguration."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidConfiguration(f"{url!r} is not a service URL: {error}") from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise InvalidConfiguration(
            f"{url!r} is not a service URL: use pulsar://HOST:PORT, pulsar+ssl://, http:// or https://"
        )
    return Address(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme])


def broker_address(url: str, topic: str, sender: str) -> Address:
    """Parses the URL of a broker that a broker has sent; raises LookupFailed, for a retry."""
    try:
        return parse_address(url)
    except InvalidConfiguration as error:
        raise LookupFailed(
            f"The address of the topic's broker is none: {error.message}",
            topic=topic,
            broker=sender,
        ) from error


def parse_service_url(url: str) -> list[Address]:
    """Parses a URL of one or several hosts; raises InvalidConfiguration."""
    scheme, separator, hosts = url.strip().partition("://")
    if not separator:
        raise InvalidConfiguration(f"{url!r} is not a service URL: use pulsar://HOST:PORT")
    hosts = hosts.partition("/")[0].partition("?")[0]
    return [parse_address(f"{scheme}://{host.strip()}") for host in hosts.split(",")]


class ServiceUrls:
    """The addresses of a service, used in turn."""

    def __init__(self, addresses: Sequence[Address], random: Random) -> None:
        self._addresses = list(addresses)
        self._next = random.randrange(len(self._addresses))
        self._clusters = 0

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def first(self) -> Address:
        """An address, for the scheme of all."""
        return self._addresses[0]

    def take(self) -> Address:
        """Returns the next address."""
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        return address

    def replace(self, addresses: Sequence[Address]) -> None:
        """Uses other addresses from now on."""
        self._addresses = list(addresses)
        self._next = 0
        self._clusters += 1

    def cluster(self) -> int:
        """Returns a number of the cluster that is used now, for `check_cluster`."""
        return self._clusters

    def check_cluster(self, number: int) -> None:
        """Raises Disconnected if the client has left the cluster.

        A lookup that was answered by the cluster before would otherwise connect to its brokers,
        with the credentials of another.
        """
        if number != self._clusters:
            raise Disconnected("The client has switched to another cluster")
