"""The admin REST, request by request: status, reason and body as Apache Pulsar answers them.

Each case was recorded from a real server first. Reasons are compared in full, since tools match
on them.
"""

import socket

import httpx
import pytest

from .support import Names

Case = tuple[str, str, object, int, str | None]
NO_BODY = object()

# {n} is a fresh namespace of tenant {t}; it holds topic `plain`, and `parts` of 3 partitions, each
# with the subscription `sub`. The cases of one list run in order.
CLUSTERS: list[Case] = [
    ("GET", "clusters/no-such", NO_BODY, 404, "Cluster does not exist"),
    ("POST", "clusters/no-such", {"serviceUrl": "http://x:1"}, 404, "Cluster does not exist"),
    ("DELETE", "clusters/no-such", NO_BODY, 404, "Cluster does not exist"),
    ("PUT", "clusters/bad$name", {"serviceUrl": "http://x:1"}, 412, "Cluster name is not valid"),
    ("PUT", "clusters/fresh", {"serviceUrl": "http://x:1"}, 200, None),
    ("PUT", "clusters/fresh", {"serviceUrl": "http://x:1"}, 409, "Cluster already exists"),
    ("POST", "clusters/fresh", {"serviceUrl": "http://y:1"}, 200, None),
    ("GET", "clusters/fresh", NO_BODY, 200, None),
    ("DELETE", "clusters/fresh", NO_BODY, 204, None),
    ("GET", "clusters/fresh", NO_BODY, 404, "Cluster does not exist"),
]
TENANT_BODY = {"adminRoles": ["me"], "allowedClusters": ["standalone"]}
TENANTS: list[Case] = [
    ("GET", "tenants/no-such", NO_BODY, 404, "Tenant does not exist"),
    ("PUT", "tenants/{t}-x", TENANT_BODY, 204, None),
    ("PUT", "tenants/{t}-x", TENANT_BODY, 409, "Tenant already exist"),
    ("GET", "tenants/{t}-x", NO_BODY, 200, None),
    ("POST", "tenants/{t}-x", {**TENANT_BODY, "adminRoles": []}, 204, None),
    ("POST", "tenants/no-such", TENANT_BODY, 404, "Tenant no-such not found"),
    (
        *("PUT", "tenants/y", {"adminRoles": [], "allowedClusters": ["no-such"]}),
        *(412, "Clusters do not exist"),
    ),
    (
        *("PUT", "tenants/y", {"adminRoles": [], "allowedClusters": []}),
        *(412, "Clusters cannot be empty or blank"),
    ),
    ("PUT", "tenants/b@d", TENANT_BODY, 412, "Tenant name is not valid"),
    ("GET", "namespaces/{t}-x", NO_BODY, 200, None),
    ("PUT", "namespaces/{t}-x/ns", NO_BODY, 204, None),
    ("DELETE", "tenants/{t}-x", NO_BODY, 409, "The tenant still has active namespaces"),
    ("DELETE", "namespaces/{t}-x/ns", NO_BODY, 204, None),
    ("DELETE", "tenants/{t}-x", NO_BODY, 204, None),
    ("DELETE", "tenants/{t}-x", NO_BODY, 404, "Tenant doesn't exist"),
]
NAMESPACES: list[Case] = [
    ("GET", "namespaces/no-such", NO_BODY, 404, "Tenant not found"),
    ("GET", "namespaces/{t}/no-such", NO_BODY, 404, "Namespace does not exist"),
    ("GET", "namespaces/{t}/no-such/topics", NO_BODY, 404, "Namespace does not exist"),
    ("PUT", "namespaces/no-such/ns", NO_BODY, 404, "Tenant does not exist"),
    ("PUT", "namespaces/{n}", NO_BODY, 409, "Namespace already exists"),
    ("PUT", "namespaces/{t}/b@d", NO_BODY, 412, "Namespace name is not valid"),
    (
        *("PUT", "namespaces/{n}-y", {"replication_clusters": ["no-such"]}, 403),
        "Cluster [no-such] is not in the list of allowed clusters list for tenant [{t}]",
    ),
    ("PUT", "namespaces/{n}-x", {"bundles": {"numBundles": 8}}, 204, None),
    ("GET", "namespaces/{n}-x", NO_BODY, 200, None),
    ("DELETE", "namespaces/{n}-x", NO_BODY, 204, None),
    ("DELETE", "namespaces/{n}-x", NO_BODY, 404, "Namespace {n}-x does not exist."),
    ("DELETE", "namespaces/{n}", NO_BODY, 409, "Cannot delete non empty namespace"),
    ("PUT", "namespaces/{t}/no-such/unload", NO_BODY, 404, "Namespace not found"),
    ("PUT", "namespaces/{n}/unload", NO_BODY, 204, None),
]
SHRINK = "Desired partitions 2 can't be less than the current partitions 3."
USE_PARTITIONED = (
    "persistent://{n}/parts is a partitioned topic, instead of calling delete topic,"
    " please call delete-partitioned-topic."
)
USE_PLAIN = (
    "persistent://{n}/plain is a non-partitioned topic. Instead of calling"
    " delete-partitioned-topic please call delete."
)
NO_PARENT = (
    'Can\'t create topic x-partition-0 with "-partition-" followed by numeric value'
    " if there isn't a partitioned topic x created."
)
NOT_A_PARTITION_COUNT = "Number of partitions should be more than 0"
PARTITION_NAME = "Partitioned Topic Name should not contain '-partition-'"
TOPICS: list[Case] = [
    ("PUT", "persistent/{n}/plain", NO_BODY, 409, "This topic already exists"),
    ("PUT", "persistent/{n}/parts", NO_BODY, 409, "This topic already exists"),
    ("PUT", "persistent/{n}/plain/partitions", 2, 409, "This topic already exists"),
    ("PUT", "persistent/{n}/parts/partitions", 2, 409, "This topic already exists"),
    ("PUT", "persistent/{n}/new/partitions", 0, 406, NOT_A_PARTITION_COUNT),
    ("PUT", "persistent/{n}/new/partitions", -1, 406, NOT_A_PARTITION_COUNT),
    ("PUT", "persistent/{n}/parts-partition-0/partitions", 2, 412, PARTITION_NAME),
    ("PUT", "persistent/{n}/x-partition-0", NO_BODY, 412, NO_PARENT),
    ("PUT", "persistent/{n}/parts-partition-1", NO_BODY, 409, "This topic already exists"),
    ("PUT", "persistent/{t}/no-such/x", NO_BODY, 404, "Namespace not found"),
    ("PUT", "persistent/{t}/no-such/x/partitions", 2, 404, "Namespace not found"),
    ("GET", "persistent/{t}/no-such", NO_BODY, 404, "Namespace does not exist"),
    ("GET", "persistent/{t}/no-such/partitioned", NO_BODY, 404, "Namespace does not exist"),
    ("GET", "persistent/{n}/x/partitions", NO_BODY, 404, "Topic persistent://{n}/x not found"),
    ("POST", "persistent/{n}/parts/partitions", 2, 422, SHRINK),
    (
        *("POST", "persistent/{n}/plain/partitions", 2, 409),
        "Topic persistent://{n}/plain is not the partitioned topic.",
    ),
    ("POST", "persistent/{n}/parts/partitions", 3, 204, None),
    ("DELETE", "persistent/{n}/parts", NO_BODY, 409, USE_PARTITIONED),
    ("DELETE", "persistent/{n}/plain/partitions", NO_BODY, 409, USE_PLAIN),
    ("DELETE", "persistent/{n}/x", NO_BODY, 404, "Topic persistent://{n}/x not found"),
    ("DELETE", "persistent/{n}/x/partitions", NO_BODY, 404, "Topic persistent://{n}/x not found."),
    ("PUT", "persistent/{n}/x/unload", NO_BODY, 404, "Topic persistent://{n}/x not found"),
    ("PUT", "persistent/{n}/plain/unload", NO_BODY, 204, None),
    ("PUT", "persistent/{n}/parts/unload", NO_BODY, 204, None),
    ("PUT", "non-persistent/{n}/np", NO_BODY, 204, None),
    ("PUT", "non-persistent/{n}/np", NO_BODY, 409, "This topic already exists"),
    (
        *("GET", "non-persistent/{n}/np/lastMessageId", NO_BODY, 405),
        "GetLastMessageId on a non-persistent topic is not allowed",
    ),
    ("DELETE", "non-persistent/{n}/np", NO_BODY, 204, None),
    ("DELETE", "persistent/{n}/plain", NO_BODY, 204, None),
    ("DELETE", "persistent/{n}/plain", NO_BODY, 404, "Topic persistent://{n}/plain not found"),
    ("DELETE", "persistent/{n}/parts/partitions", NO_BODY, 204, None),
    ("GET", "persistent/{n}/parts-partition-0/stats", NO_BODY, 404, None),
]
STATISTICS: list[Case] = [
    ("GET", "persistent/{n}/plain/partitioned-stats", NO_BODY, 404, None),
    ("GET", "persistent/{n}/parts/stats", NO_BODY, 404, "Topic persistent://{n}/parts not found"),
    ("GET", "persistent/{n}/x/stats", NO_BODY, 404, "Topic persistent://{n}/x not found"),
    ("GET", "persistent/{n}/x/internalStats", NO_BODY, 404, "Topic persistent://{n}/x not found"),
    ("GET", "persistent/{n}/x/subscriptions", NO_BODY, 404, "Topic persistent://{n}/x not found"),
    ("GET", "persistent/{n}/x/lastMessageId", NO_BODY, 404, "Topic persistent://{n}/x not found"),
    (
        *("GET", "persistent/{n}/x/partitioned-stats", NO_BODY, 404),
        "Partitioned Topic persistent://{n}/x not found",
    ),
    ("GET", "persistent/{t}/no-such/x/stats", NO_BODY, 404, "Namespace not found"),
    ("GET", "persistent/{t}/no-such/x/subscriptions", NO_BODY, 404, "Namespace not found"),
]
GONE = "Subscription gone not found for topic persistent://{n}/plain"
SUBSCRIPTIONS: list[Case] = [
    (
        *("PUT", "persistent/{n}/plain/subscription/sub", NO_BODY, 409),
        "Subscription already exists for topic",
    ),
    ("PUT", "persistent/{t}/no-such/x/subscription/s", NO_BODY, 404, "Namespace not found"),
    ("PUT", "persistent/{n}/plain/subscription/gone", NO_BODY, 204, None),
    ("DELETE", "persistent/{n}/plain/subscription/gone", NO_BODY, 204, None),
    ("DELETE", "persistent/{n}/plain/subscription/gone", NO_BODY, 404, GONE),
    (
        *("DELETE", "persistent/{n}/x/subscription/sub", NO_BODY, 404),
        "Topic persistent://{n}/x not found",
    ),
    ("DELETE", "persistent/{n}/parts/subscription/sub", NO_BODY, 204, None),
    (
        *("GET", "persistent/{n}/parts/subscription/sub/position/1", NO_BODY, 405),
        "Peek messages on a partitioned topic is not allowed",
    ),
    (
        *("GET", "persistent/{n}/plain/subscription/sub/position/1", NO_BODY, 404),
        "Message not found",
    ),
    (
        *("POST", "persistent/{n}/parts/subscription/sub/skip/1", NO_BODY, 405),
        "Skip messages on a partitioned topic is not allowed",
    ),
    (
        *("POST", "persistent/{n}/x/subscription/sub/skip/1", NO_BODY, 404),
        "Topic persistent://{n}/x not found",
    ),
    (
        *("POST", "persistent/{n}/x/subscription/sub/skip_all", NO_BODY, 404),
        "Topic persistent://{n}/x not found",
    ),
    (
        *("POST", "persistent/{n}/x/subscription/sub/resetcursor/0", NO_BODY, 404),
        "Topic persistent://{n}/x not found",
    ),
    (
        *("POST", "persistent/{n}/x/subscription/sub/expireMessages/1", NO_BODY, 404),
        "Topic persistent://{n}/x not found",
    ),
    (
        *("POST", "persistent/{n}/x/all_subscription/expireMessages/1", NO_BODY, 404),
        "Topic persistent://{n}/x not found",
    ),
    ("POST", "persistent/{n}/plain/subscription/sub/skip_all", NO_BODY, 204, None),
    ("POST", "persistent/{n}/plain/subscription/sub/resetcursor/0", NO_BODY, 204, None),
]


@pytest.mark.parametrize(
    "cases",
    [CLUSTERS, TENANTS, NAMESPACES, TOPICS, STATISTICS, SUBSCRIPTIONS],
    ids=["clusters", "tenants", "namespaces", "topics", "statistics", "subscriptions"],
)
def test_statuses_and_reasons(admin: httpx.Client, names: Names, cases: list[Case]) -> None:
    base = f"/admin/v2/persistent/{names.path}"
    admin.put(f"{base}/plain").raise_for_status()
    admin.put(f"{base}/parts/partitions", json=3).raise_for_status()
    for local in ("plain", "parts"):
        admin.put(f"{base}/{local}/subscription/sub").raise_for_status()
    placeholders = {"t": names.tenant, "n": names.path}
    wrong: list[str] = []
    for method, path, body, status, reason in cases:
        where = f"/admin/v2/{path.format(**placeholders)}"
        content = {} if body is NO_BODY else {"json": body}
        answer = admin.request(method, where, **content)  # type: ignore[arg-type]
        expected = (status, reason and reason.format(**placeholders))
        found = (answer.status_code, answer.json()["reason"] if reason else None)
        if found != expected:
            wrong.append(f"{method} {where}: {answer.status_code} {answer.text}, not {expected}")
    assert not wrong, "\n".join(wrong)


def test_malformed_requests(admin: httpx.Client) -> None:
    json_type = {"content-type": "application/json"}
    tenant = "/admin/v2/tenants/malformed"
    assert admin.put(tenant, content="{bad", headers=json_type).status_code == 400
    assert admin.put(tenant, content=b"\xff\xfe", headers=json_type).status_code == 400
    assert admin.put(tenant, json=["a"]).status_code == 400
    assert admin.put(tenant, content="x", headers={"content-type": "text/plain"}).status_code == 415
    assert admin.post("/admin/v2/tenants").status_code == 405
    assert admin.get("/admin/v2/no-such-resource").status_code == 404
    assert admin.get("/admin/v2/tenants/malformed").status_code == 404


def test_a_body_may_hold_no_field_that_nobody_knows(admin: httpx.Client, names: Names) -> None:
    body: dict[str, object] = {"adminRoles": [], "allowedClusters": ["standalone"]}
    path = f"/admin/v2/tenants/{names.namespace}-t"
    assert admin.put(path, json={**body, "newer": {"a": 1}}).status_code == 400
    assert admin.put(path, json={**body, "newer": None}).status_code == 204
    assert admin.get(path).json() == {"adminRoles": [], "allowedClusters": ["standalone"]}
    admin.delete(path).raise_for_status()


def test_an_offer_of_http_2_keeps_the_body(admin: httpx.Client, names: Names) -> None:
    """Java's own HTTP client offers an upgrade with its first request; nobody has to take it."""
    offer = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2-settings": "AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA",
        "content-type": "application/json",
    }
    base = f"/admin/v2/persistent/{names.path}"
    with socket.create_connection((admin.base_url.host, admin.base_url.port), 30) as raw:
        headers = "".join(f"{name}: {value}\r\n" for name, value in offer.items())
        line = f"PUT {base}/offered/partitions HTTP/1.1\r\nhost: localhost\r\n"
        raw.sendall(f"{line}{headers}content-length: 1\r\n\r\n3".encode())
        assert raw.recv(4096).split(b"\r\n")[0].split()[1] in {b"101", b"204"}
    assert admin.get(f"{base}/offered/partitions").json()["partitions"] == 3
