"""The operator's credentials: sent to the cluster that they belong to, and to nothing else."""

import base64
import datetime

import httpx
import pytest
from tests.operator.memory_kube import MemoryKube

from magnetar.security.secret import Secret
from magnetar_operator.admin.access import Access, AccessKey, ClusterKey
from magnetar_operator.admin.client import AdminClient, AdminClients, Purpose, Unreachable
from magnetar_operator.cluster.access import FRESH_S, ClusterAccess
from magnetar_operator.kube.kinds import API_VERSION, CLUSTER, SECRET, Object
from magnetar_operator.security import x509
from magnetar_operator.settings import Settings

KEY = ClusterKey("ns", "demo")
HTTPS = "https://demo-broker.ns.svc:8443"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Brokers(httpx.AsyncBaseTransport):
    """Records what each request presents."""

    def __init__(self, location: str = "") -> None:
        self.presented: list[tuple[str, str]] = []
        self._location = location

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.presented.append((str(request.url), request.headers.get("authorization", "")))
        if self._location and len(self.presented) == 1:
            headers = {"location": self._location}
            return httpx.Response(307, headers=headers, request=request)
        return httpx.Response(200, json={}, request=request)


async def secret_access(_key: AccessKey) -> Access:
    return Access(Secret("token-of-demo"), only_tls=True)


async def presented(url: str, key: ClusterKey | None, location: str = "") -> list[tuple[str, str]]:
    brokers = Brokers(location)
    clients = AdminClients(transport=brokers, access=secret_access)
    await clients.at(url, Purpose.CATALOG, key).get("/admin/v2/tenants")
    await clients.close()
    return brokers.presented


async def test_a_cluster_gets_its_token() -> None:
    ((_, header),) = await presented(HTTPS, KEY)
    assert header == "Bearer token-of-demo"


async def test_an_address_without_a_cluster_gets_none() -> None:
    """The author of a resource chooses the address: it could be theirs."""
    ((_, header),) = await presented(HTTPS, None)
    assert header == ""


async def test_a_token_for_tls_is_not_sent_without_it() -> None:
    ((_, header),) = await presented("http://demo-broker.ns.svc:8080", KEY)
    assert header == ""


@pytest.mark.parametrize(
    ("location", "again"),
    [("https://10-0-0-2.ns.pod:8443/x", "Bearer token-of-demo"), ("http://10.0.0.2:8080/x", "")],
)
async def test_a_redirect_gets_the_token_only_with_tls(location: str, again: str) -> None:
    first, second = await presented(HTTPS, KEY, location)
    assert first[1] == "Bearer token-of-demo"
    assert second == (location, again)


async def test_two_clusters_at_one_address_have_their_own_credentials() -> None:
    """A MagnetarCluster may name any address in spec.adminUrl, also that of another cluster."""
    tokens: dict[AccessKey, str] = {KEY: "theirs", ClusterKey("evil", "demo"): "mine"}

    async def access(key: AccessKey) -> Access:
        return Access(Secret(tokens[key]))

    brokers = Brokers()
    clients = AdminClients(transport=brokers, access=access)
    for key in tokens:
        await clients.at(HTTPS, Purpose.CATALOG, key).get("/x")
    await clients.close()
    assert [header for _, header in brokers.presented] == ["Bearer theirs", "Bearer mine"]


def test_credentials_do_not_print() -> None:
    assert "token-of-demo" not in repr(Access(Secret("token-of-demo"), b"trust"))


async def test_unusable_authorities_are_an_outage_that_names_them() -> None:
    async def access() -> Access:
        return Access(trust=b"-----BEGIN CERTIFICATE-----\ngarbage\n-----END CERTIFICATE-----\n")

    client = AdminClient("https://127.0.0.1:1", access=access)
    with pytest.raises(Unreachable, match="trusted authorities are unusable"):
        await client.get("/x")
    await client.close()


class Clock:
    """Set by the test."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def monotonic(self) -> float:
        return self.time_s

    def now_ms(self) -> int:
        return int(self.time_s * 1_000)


def secret(name: str, **fields: bytes) -> Object:
    data = {key.replace("_", "."): base64.b64encode(text).decode() for key, text in fields.items()}
    metadata = {"name": name, "namespace": "ns"}
    return {"apiVersion": "v1", "kind": SECRET.kind, "metadata": metadata, "data": data}


def cluster(**spec: object) -> Object:
    metadata = {"name": "demo", "namespace": "ns"}
    return {"apiVersion": API_VERSION, "kind": CLUSTER.kind, "metadata": metadata, "spec": spec}


async def test_the_secrets_of_the_cluster_are_read_by_name_and_again_after_a_while() -> None:
    kube, clock = MemoryKube(), Clock()
    client = kube.client()
    access = ClusterAccess(client, Settings(), clock)
    trust = x509.create_authority("demo", x509.KeyKind(), datetime.timedelta(1), NOW).certificate
    kube.put(cluster(tls={"enabled": True}, auth={"authentication": {"enabled": True}}))
    kube.put(secret("demo-token-operator-admin", TOKEN=b"first\n"))
    kube.put(secret("demo-tls-broker", ca_crt=trust))
    present = await access.of(KEY)
    assert present.trust == trust
    assert present.headers(HTTPS) == {"authorization": "Bearer first"}
    kube.put(secret("demo-token-operator-admin", TOKEN=b"second"))
    assert (await access.of(KEY)).headers(HTTPS) == {"authorization": "Bearer first"}
    clock.time_s += FRESH_S
    assert (await access.of(KEY)).headers(HTTPS) == {"authorization": "Bearer second"}
    assert not [request for request in kube.asked if request.path.endswith("/secrets")], (
        "no list of Secrets"
    )
    await client.close()


async def test_an_open_cluster_needs_no_secret() -> None:
    kube = MemoryKube()
    client = kube.client()
    kube.put(cluster())
    assert await ClusterAccess(client, Settings(), Clock()).of(KEY) == Access()
    assert not [request for request in kube.asked if "secrets" in request.path]
    await client.close()
