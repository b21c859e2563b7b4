"""Failover of a client to another cluster.

    Client("pulsar://a:6650", failover=AutoFailover(["pulsar://b:6650"]))
    Client("pulsar://a:6650", failover=ControlledFailover("http://control/service-url"))

A client that switches closes its connections; its producers and consumers attach to the other
cluster, and what has no receipt is sent there. Subscriptions start there where that cluster has
them. A `Cluster` in the place of a URL has its own credentials and TLS settings:

    AutoFailover([Cluster("pulsar+ssl://b:6651", auth=Token("..."), tls=Tls(...))])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from magnetar.client.errors import InvalidConfiguration
from magnetar.client.network.service_urls import Address, parse_service_url

if TYPE_CHECKING:
    from magnetar.client.auth.api import Authentication
    from magnetar.client.network.tls import Tls


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with its own credentials or TLS settings; None for those of the client."""

    url: str
    auth: "Authentication | None" = None
    """`NoAuthentication()` for none, if the client has credentials."""
    tls: "Tls | None" = None


@dataclass(frozen=True, slots=True)
class AutoFailover:
    """Switches to the first cluster that answers, and back to the primary when it answers again."""

    secondaries: Sequence[str | Cluster]
    """Service URLs or clusters, the preferred one first."""
    failover_delay_s: float = 30.0
    """How long a cluster does not answer before the client leaves it."""
    switch_back_delay_s: float = 60.0
    """How long the primary answers before the client returns to it."""
    check_s: float = 5.0
    """Between two checks."""

    def __post_init__(self) -> None:
        if isinstance(self.secondaries, str) or not self.secondaries:
            raise InvalidConfiguration("failover: secondaries is a list of service URLs")
        if self.check_s <= 0 or min(self.failover_delay_s, self.switch_back_delay_s) < 0:
            raise InvalidConfiguration("failover: check_s is above 0, and no delay is below 0")


@dataclass(frozen=True, slots=True)
class ControlledFailover:
    """Follows a service that answers with the service URL to use, as `{"serviceUrl": ...}`.

    `authPluginClassName` with `authParamsString`, and `tlsTrustCertsFilePath`, replace what the
    client has, as in Java's client.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    check_s: float = 30.0
    """Between two requests."""
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise InvalidConfiguration(f"failover: {self.url!r} is not an http or https URL")
        if self.check_s <= 0 or self.timeout_s <= 0:
            raise InvalidConfiguration("failover: check_s and timeout_s are above 0")


Failover = AutoFailover | ControlledFailover


def addresses_of(primary: str, failover: Failover) -> list[list[Address]]:
    """Returns the addresses of all clusters, the primary's first; raises InvalidConfiguration."""
    urls = [primary]
    if isinstance(failover, AutoFailover):
        urls += [_url_of(cluster) for cluster in failover.secondaries]
    elif not isinstance(failover, ControlledFailover):
        raise InvalidConfiguration("failover is an AutoFailover or a ControlledFailover")
    clusters = [parse_service_url(url) for url in urls]
    for url, addresses in zip(urls, clusters, strict=True):
        check_same_protocol(clusters[0], addresses, url)
    return clusters


def _url_of(cluster: str | Cluster) -> str:
    url = cluster.url if isinstance(cluster, Cluster) else cluster
    if not isinstance(url, str):
        raise InvalidConfiguration("failover: each of secondaries is a service URL or a Cluster")
    return url


def check_same_protocol(primary: list[Address], other: list[Address], url: str) -> None:
    """Raises InvalidConfiguration if one URL is HTTP and the other is not."""
    if primary[0].http != other[0].http:
        raise InvalidConfiguration(
            f"failover: {url} and the client's service URL must both be pulsar or both be http"
        )


def own_authentications(failover: Failover) -> "list[Authentication | None]":
    """Returns the authentications of clusters that have their own."""
    if not isinstance(failover, AutoFailover):
        return []
    return [part.auth for part in failover.secondaries if isinstance(part, Cluster)]


class FailoverState:
    """Decides which cluster to use; cluster 0 is the primary. Times are those of the checks."""

    def __init__(self, options: AutoFailover) -> None:
        self._options = options
        self.current = 0
        self._failing_since: float | None = None
        self._primary_since: float | None = None

    def to_check(self) -> list[int]:
        """Returns the clusters whose answer `decide` needs first."""
        return [self.current] if self.current == 0 else [self.current, 0]

    def decide(self, answers: Mapping[int, bool], now: float) -> list[int]:
        """Takes the answers of checks; returns the clusters to try, in order, or none."""
        if answers[self.current]:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        if not answers.get(0, False) or self.current == 0:
            self._primary_since = None
        elif self._primary_since is None:
            self._primary_since = now
        options = self._options
        if (
            self._primary_since is not None
            and now - self._primary_since >= options.switch_back_delay_s
        ):
            return [0]
        if (
            self._failing_since is not None
            and now - self._failing_since >= options.failover_delay_s
        ):
            count = len(options.secondaries) + 1
            return [index for index in range(count) if index != self.current]
        return []

    def switched(self, index: int) -> None:
        """Records that the client uses another cluster."""
        self.current = index
        self._failing_since = self._primary_since = None
