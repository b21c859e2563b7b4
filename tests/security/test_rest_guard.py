"""The guard of the REST: proxies, other brokers, forged headers, and what a refusal reveals."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.unit.admin.support import append, entry

from magnetar.admin.cluster.sender import LOCAL_HEADER, UNDER_HEADER
from magnetar.admin.rights import guard
from magnetar.admin.rights.caller import ORIGINAL_HEADER, ROLE_HEADER
from magnetar.broker.security.needs import (
    NamespaceNeed,
    NamespaceOperation,
    TopicNeed,
    TopicOperation,
)
from magnetar.broker.security.principal import Principal
from magnetar.broker.topic.persistent import PersistentTopic
from magnetar.core.names import parse_topic
from magnetar.security.api import AuthenticationFailed, Identity, ProviderUnavailable
from magnetar.settings.field import SettingsError

from .rest import (
    BROKER,
    NAMESPACE,
    PROXY,
    SUPER,
    SUPER_PROXY,
    TOPIC,
    WRONG,
    Closed,
    closed_rest,
    expired,
    reason_of,
    token,
)

STATS = "~/persistent/t1/n1/a/stats"
TENANTS = "~/tenants"
PUBLIC = ("/healthz", "/readyz", "/metrics")


@pytest.fixture
async def closed() -> AsyncIterator[Closed]:
    async with closed_rest() as broker:
        yield broker


@pytest.mark.parametrize(
    "credentials",
    [None, "", WRONG, expired(SUPER), token(SUPER, key=b"f" * 32), token(SUPER) + "x"],
    ids=["none", "empty", "wrong", "expired", "another key", "tampered"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", STATS), ("DELETE", "~/tenants/t1"), ("GET", "/nothing"), ("PATCH", "~/clusters")],
)
async def test_without_valid_credentials_every_path_answers_the_same(
    closed: Closed, credentials: str | None, method: str, path: str
) -> None:
    response = await closed.send(method, path, credentials)
    assert (response.status_code, reason_of(response)) == (401, "Authentication required")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_a_path_that_nothing_serves_is_404_for_known_roles(closed: Closed) -> None:
    assert (await closed.call("nobody", "GET", "/nothing")).status_code == 404
    assert (await closed.call("nobody", "PATCH", "~/clusters")).status_code == 405


@pytest.mark.parametrize("path", PUBLIC)
async def test_probes_and_metrics_need_no_credentials(closed: Closed, path: str) -> None:
    for credentials in (None, WRONG):
        assert (await closed.send("GET", path, credentials)).status_code == 200


async def test_the_status_page_needs_no_credentials_and_shows_no_path(tmp_path: Path) -> None:
    async with closed_rest(status_file=str(tmp_path)) as closed:
        for credentials in (None, WRONG):
            answer = await closed.send("GET", "/status.html", credentials)
            assert answer.status_code == 404
            assert str(tmp_path) not in answer.text


async def test_metrics_need_credentials_if_set() -> None:
    async with closed_rest(authenticate_metrics=True) as closed:
        assert (await closed.send("GET", "/metrics", None)).status_code == 401
        assert (await closed.call("nobody", "GET", "/metrics")).status_code == 200
        assert (await closed.send("GET", "/readyz", None)).status_code == 200


async def test_head_is_guarded_as_get(closed: Closed) -> None:
    assert (await closed.send("HEAD", STATS, None)).status_code == 401
    assert (await closed.call("nobody", "HEAD", STATS)).status_code == 401
    assert (await closed.call("cons", "HEAD", STATS)).status_code == 200


@pytest.mark.parametrize(
    "path", [STATS + "/", "~//persistent/t1/n1/a/stats", "~/persistent/t1/n1/%61/stats"]
)
async def test_another_spelling_of_a_path_needs_the_same_right(closed: Closed, path: str) -> None:
    assert (await closed.call("nobody", "GET", path)).status_code in (401, 404)
    assert (await closed.send("GET", path, None)).status_code == 401


async def test_an_encoded_slash_is_part_of_the_topic(closed: Closed) -> None:
    """The grant on `a` is not one on `a/b/c`, nor on a path that leaves the namespace."""
    for path in ("a%2Fb%2Fc", "x%2F..%2F..%2Fa"):
        response = await closed.call("topicprod", "GET", f"~/persistent/t1/n1/{path}/stats")
        assert response.status_code == 401


@pytest.mark.parametrize(
    ("role", "original", "admitted"),
    [
        (PROXY, None, False),
        (PROXY, "", False),
        (PROXY, "cons", False),  # the proxy needs the right as well
        (PROXY, PROXY, False),
        (SUPER_PROXY, None, False),
        (SUPER_PROXY, PROXY, False),
        (SUPER_PROXY, "cons", True),
        (SUPER_PROXY, "nobody", False),
        ("cons", "cons", True),
        ("cons", SUPER, False),
        ("nobody", "cons", False),
        (SUPER, "nobody", False),
    ],
)
async def test_a_proxied_request_needs_the_right_of_both_roles(
    closed: Closed, role: str, original: str | None, admitted: bool
) -> None:
    headers = {} if original is None else {"x_original_principal": original}
    response = await closed.call(role, "GET", STATS, **headers)
    assert response.status_code == (200 if admitted else 401)


async def test_the_texts_for_proxies_are_pulsars(closed: Closed) -> None:
    async def refused(path: str, original: str) -> str:
        response = await closed.call(SUPER_PROXY, "GET", path, x_original_principal=original)
        assert response.status_code == 401
        return reason_of(response)

    assert await refused(TENANTS, "nobody") == (
        "Unauthorized to validateBothTenantOperationAndSuperUser for originalPrincipal [nobody] "
        "and clientAppId [proxysuper] about operation [LIST_TENANTS] "
    )
    assert await refused("~/namespaces/t1/n1/properties", "nobody") == (
        "Proxy not authorized to access resource (proxy:proxysuper,original:nobody)"
    )
    assert await refused("~/bookies/all", "nobody") == (
        "Proxy not authorized for super-user operation (proxy:proxysuper,original:nobody)"
    )


async def test_cve_2023_30428_a_forwarded_request_has_no_right_of_the_broker(
    closed: Closed,
) -> None:
    as_cons = {ROLE_HEADER: "cons"}
    assert (await closed.send("GET", STATS, token(BROKER), headers=as_cons)).status_code == 200
    for path in (TENANTS, "~/namespaces/t1/n1/permissions"):
        refused = await closed.send("GET", path, token(BROKER), headers=as_cons)
        assert refused.status_code in (401, 403)
        assert "[broker]" not in reason_of(refused)
    both = {ROLE_HEADER: SUPER_PROXY, ORIGINAL_HEADER: "nobody"}
    assert (await closed.send("GET", STATS, token(BROKER), headers=both)).status_code == 401
    spaced = {ROLE_HEADER: quote("a role, ünnamed")}
    refused = await closed.send("GET", TENANTS, token(BROKER), headers=spaced)
    assert "[a role, ünnamed]" in reason_of(refused)


@pytest.mark.parametrize("role", ["nobody", "cons", "ta", PROXY])
@pytest.mark.parametrize("named", [SUPER, BROKER, "cons"])
async def test_only_super_users_name_a_role_to_act_for(
    closed: Closed, role: str, named: str
) -> None:
    response = await closed.send("GET", TENANTS, token(role), headers={ROLE_HEADER: named})
    assert (response.status_code, reason_of(response)) == (
        401,
        "Only brokers act for other roles",
    )


@pytest.mark.parametrize("original", [None, "nobody", "cons"])
@pytest.mark.parametrize("named", [SUPER, BROKER, "ta"])
async def test_a_client_behind_a_proxy_names_no_role_to_act_for(
    closed: Closed, original: str | None, named: str
) -> None:
    """Pulsar's proxy passes on its clients' headers, and its role is often a super user."""
    headers = {ROLE_HEADER: named}
    if original is not None:
        headers["x-original-principal"] = original
    for path in (TENANTS, "~/namespaces/t1/n1/permissions"):
        response = await closed.send("GET", path, token(SUPER_PROXY), headers=headers)
        assert response.status_code == 401
    # Nor behind one that is not in proxyRoles.
    if original is not None:
        response = await closed.send("GET", TENANTS, token(SUPER), headers=headers)
        assert (response.status_code, reason_of(response)) == (
            401,
            "Only brokers act for other roles",
        )


async def test_clients_cannot_send_the_headers_of_brokers(closed: Closed) -> None:
    """A deletion mark names any key of the metadata store: its answer would tell its revision."""
    headers = {UNDER_HEADER: "7 /tenants/t2", LOCAL_HEADER: "1"}
    response = await closed.send(
        "DELETE", "~/persistent/t1/n1/a?force=true", token("ta"), headers=headers
    )
    assert response.status_code == 204, "the mark is ignored"
    response = await closed.send(
        "DELETE",
        "~/persistent/t1/n1/p-partition-0?force=true",
        token(BROKER),
        headers=headers | {ROLE_HEADER: "ta"},
    )
    assert response.status_code == 412, "a broker's is not"


async def test_cve_2021_41571_a_topic_reads_its_own_ledgers_only(closed: Closed) -> None:
    """Message ids are positions in ledgers; that of another tenant's topic is none of this one."""
    await closed.done(SUPER, "PUT", "~/persistent/t2/n1/secret")
    service = closed.service
    secret = await service.topics.get_or_open(
        parse_topic("persistent://t2/n1/secret"), create=False
    )
    assert isinstance(secret, PersistentTopic)
    ledger = (await append(secret, entry(b"secret"))).ledger_id
    for role in ("cons", "ta", SUPER):
        response = await closed.call(role, "GET", f"~/persistent/t1/n1/a/ledger/{ledger}/entry/0")
        assert response.status_code == 404
        assert b"secret" not in response.content
    own = await closed.call("tb", "GET", f"~/persistent/t2/n1/secret/ledger/{ledger}/entry/0")
    assert own.content == b"secret"


async def test_a_refusal_comes_before_the_body_is_read(closed: Closed) -> None:
    read = False

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read = True
        yield b"{}"

    headers = {"authorization": f"Bearer {token('nobody')}"}
    response = await closed.admin.http.request(
        "POST", "/admin/v2/namespaces/t1/n1/retention", content=body(), headers=headers
    )
    assert response.status_code == 403
    assert not read


@pytest.mark.parametrize("gone", ["right", "key"])
async def test_a_request_with_a_slow_body_is_checked_when_it_is_complete(
    closed: Closed, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """The client chooses that moment: its right, or the key of its token, may be gone by then."""
    monkeypatch.setattr(guard, "CHECK_AGAIN_AFTER_S", 0.0)
    security = closed.service.security
    assert security is not None
    authorizer = security.authorizer
    assert authorizer is not None

    async def refusing(_headers: object, _peer: object) -> Identity:
        raise AuthenticationFailed("the key was removed")

    async def body() -> AsyncIterator[bytes]:
        yield b'["prod'
        if gone == "key":
            monkeypatch.setattr(security.authenticator, "authenticate_http", refusing)
        else:
            resources = closed.service.resources
            await resources.update_tenant("t1", {"adminRoles": [], "allowedClusters": []})
            need = NamespaceNeed(NAMESPACE, NamespaceOperation.GRANT_PERMISSION)
            async with asyncio.timeout(30):
                while authorizer.allowed_now(Principal("ta"), need):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        yield b'uce"]'

    response = await closed.admin.http.request(
        "POST",
        "/admin/v2/namespaces/t1/n1/permissions/late",
        content=body(),
        headers={"authorization": f"Bearer {token('ta')}", "content-type": "application/json"},
    )
    assert response.status_code in (401, 403)
    document = await closed.service.resources.policies(NAMESPACE)
    assert "late" not in document["auth_policies"]["namespace_auth"]


async def test_an_invalid_name_is_refused_before_anything_is_looked_up(closed: Closed) -> None:
    response = await closed.call("nobody", "GET", "~/persistent/t%201/n1/a/stats")
    assert response.status_code == 412


async def test_the_admins_of_a_tenant_change_it_only_if_the_broker_lets_them() -> None:
    update = {"adminRoles": ["ta", "prod"], "allowedClusters": ["standalone"]}
    async with closed_rest() as closed:
        refused = await closed.call("ta", "POST", "~/tenants/t1", update)
        assert reason_of(refused).startswith("Unauthorized to validateBothTenantOperation")
        assert (await closed.call("ta", "DELETE", "~/tenants/t1")).status_code == 401
        await closed.done(SUPER, "POST", "~/tenants/t1", update)
    async with closed_rest(tenant_admins_update_tenants=True) as closed:
        await closed.done("ta", "POST", "~/tenants/t1", update)
        assert (await closed.call("tb", "POST", "~/tenants/t1", update)).status_code == 401


async def test_a_grant_and_its_revocation_take_effect(closed: Closed) -> None:
    authorizer = closed.service.security.authorizer  # type: ignore[union-attr]
    assert authorizer is not None
    need = TopicNeed(parse_topic(TOPIC), TopicOperation.PRODUCE)
    for actions in (["produce"], ["functions"]):
        await closed.done("ta", "POST", "~/namespaces/t1/n1/permissions/nobody", actions)
        since = time.monotonic()
        while authorizer.allowed_now(Principal("nobody"), need) is not (actions == ["produce"]):
            assert time.monotonic() - since < 30, "the change did not arrive"
            await closed.call("nobody", "GET", "~/clusters")


async def test_grants_on_several_topics(closed: Closed) -> None:
    topics = [{"topic": TOPIC, "role": "r", "actions": ["produce"]}]
    topics += [{"topic": "persistent://t1/n1/p", "role": "r", "actions": ["consume"]}]
    path = "~/namespaces/grantPermissionsOnTopics"
    for role in ("nobody", "cons", "tb"):
        refused = await closed.call(role, "POST", path, topics)
        assert (refused.status_code, reason_of(refused)) == (
            401,
            "Don't have permission to administrate resources on this tenant",
        )
    await closed.done("ta", "POST", path, topics)
    permissions = "~/persistent/t1/n1/{}/permissions"
    assert (await closed.call("ta", "GET", permissions.format("a"))).json()["r"] == ["produce"]
    of_partition = await closed.call("ta", "GET", permissions.format("p-partition-1"))
    assert of_partition.json()["r"] == ["consume"]
    mixed = [*topics, {"topic": "persistent://t2/n1/x", "role": "r", "actions": ["produce"]}]
    refused = await closed.call("ta", "POST", path, mixed)
    assert (refused.status_code, reason_of(refused)) == (400, "The namespace should be the same")
    missing = [{"topic": "persistent://t1/n1/none", "role": "r", "actions": ["produce"]}]
    assert (await closed.call("ta", "POST", path, missing)).status_code == 404
    assert (await closed.call("ta", "POST", path, [])).status_code == 400
    await closed.done("ta", "POST", "~/namespaces/revokePermissionsOnTopics", topics)
    assert "r" not in (await closed.call("ta", "GET", permissions.format("a"))).json()


async def test_a_partition_may_have_grants_of_its_own(closed: Closed) -> None:
    await closed.done(SUPER, "PUT", "~/persistent/t1/n1/p-partition-0/subscription/s")
    path = "~/persistent/t1/n1/p-partition-0/permissions/one"
    await closed.done("ta", "POST", path, ["consume"])
    topics = "~/persistent/t1/n1/p-partition-{}/subscriptions"
    assert (await closed.call("one", "GET", topics.format(0))).status_code == 200
    assert (await closed.call("one", "GET", topics.format(1))).status_code == 401


async def test_an_unreachable_identity_provider_is_503(
    closed: Closed, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = closed.service.security
    assert security is not None

    async def failing(_headers: object, _peer: object) -> Identity:
        raise ProviderUnavailable("connection refused by 10.0.0.1")

    monkeypatch.setattr(security.authenticator, "authenticate_http", failing)
    response = await closed.call(SUPER, "GET", TENANTS)
    assert response.status_code == 503
    assert "10.0.0.1" not in response.text

    async def refusing(_headers: object, _peer: object) -> Identity:
        raise AuthenticationFailed("the password of admin is secret")

    monkeypatch.setattr(security.authenticator, "authenticate_http", refusing)
    response = await closed.call(SUPER, "GET", TENANTS)
    assert (response.status_code, reason_of(response)) == (401, "Authentication required")


async def test_without_authorization_every_role_may_do_everything() -> None:
    async with closed_rest(authorization_enabled=False) as closed:
        assert (await closed.send("GET", TENANTS, None)).status_code == 401
        assert (await closed.call("nobody", "GET", TENANTS)).status_code == 200
        grants = [{"topic": TOPIC, "role": "r", "actions": ["produce"]}]
        await closed.done("nobody", "POST", "~/namespaces/grantPermissionsOnTopics", grants)


async def test_secrets_of_clusters_are_masked_and_kept(closed: Closed) -> None:
    path = "~/clusters/far"
    data = {"serviceUrl": "http://far:8080", "authenticationPlugin": "token"}
    await closed.done(SUPER, "PUT", path, data | {"authenticationParameters": "token:abc"})
    shown = (await closed.call(SUPER, "GET", path)).json()
    assert shown["authenticationParameters"] == "***"
    await closed.done(SUPER, "POST", path, shown | {"serviceUrl": "http://far:8081"})
    stored = await closed.service.resources.cluster("far")
    assert stored["authenticationParameters"] == "token:abc"
    assert stored["serviceUrl"] == "http://far:8081"
    await closed.done(SUPER, "POST", path, data)
    assert "authenticationParameters" not in await closed.service.resources.cluster("far")
    masked = await closed.call(SUPER, "PUT", "~/clusters/x", shown)
    assert (masked.status_code, "masked" in reason_of(masked)) == (400, True)
    named = await closed.call(SUPER, "PUT", "~/clusters/y", {"serviceUrl": "http://u:p@far:8080"})
    assert named.status_code == 400
    assert "u:p" not in named.text


async def test_requests_are_in_the_audit_log_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    async with closed_rest(audit_log_file=file) as closed:
        await closed.done("ta", "POST", "~/namespaces/t1/n1/permissions/x?secret=1", ["produce"])
        await closed.call("ta", "GET", STATS)
        await closed.call("nobody", "GET", STATS)
        await closed.send("GET", STATS, WRONG)
        await closed.call(SUPER_PROXY, "DELETE", "~/tenants/t1", x_original_principal="cons")
        text = await closed.metrics()
        assert re.search(r'denied_total\{[^}]*right="topic"\} 1\n', text)
        assert re.search(r'authentications_total\{[^}]*of="request",result="refused"\} 1\n', text)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    shown = [
        (line["role"], line.get("original", ""), line["action"], line["target"], line["allowed"])
        for line in lines
        if line["role"] != SUPER  # the preparation
    ]
    stats = "GET /admin/v2/persistent/t1/n1/a/stats"
    assert shown == [
        ("ta", "", "POST /admin/v2/namespaces/t1/n1/permissions/x", "", True),
        ("nobody", "", stats, TOPIC, False),
        ("", "", stats, "", False),
        (SUPER_PROXY, "cons", "DELETE /admin/v2/tenants/t1", "t1", False),
    ]
    assert "secret" not in file.read_text()
    assert WRONG not in file.read_text()


async def test_an_audit_log_needs_authentication(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="audit_log_file needs authentication_enabled"):
        async with closed_rest(
            authentication_enabled=False, authorization_enabled=False, audit_log_file=tmp_path / "a"
        ):
            pass


async def test_the_prefix_mode_binds_the_names_of_subscriptions(closed: Closed) -> None:
    """Pulsar's text; the mode is refused where no role is known (`test_policies.py`)."""
    await closed.done("ta", "POST", "~/namespaces/t1/n1/subscriptionAuthMode", "Prefix")
    path = "~/persistent/t1/n1/a/subscription/{}"
    async with asyncio.timeout(30):
        while (await closed.call("cons", "PUT", path.format("s1"))).status_code != 403:
            await closed.done("ta", "DELETE", path.format("s1"))
    refused = await closed.call("cons", "PUT", path.format("s1"))
    assert reason_of(refused) == (
        "Failed to create consumer - The subscription name needs to be prefixed by the "
        "authentication role, like cons-xxxx for topic: persistent://t1/n1/a"
    )
    await closed.done("cons", "PUT", path.format("cons-1"))
    await closed.done("ta", "PUT", path.format("s1"))


async def test_the_prefix_mode_needs_authorization() -> None:
    async with closed_rest(authorization_enabled=False) as closed:
        path = "~/namespaces/t1/n1/subscriptionAuthMode"
        refused = await closed.call("nobody", "POST", path, "Prefix")
        assert refused.status_code == 405
        assert "needs authorization" in reason_of(refused)
        await closed.done("nobody", "POST", path, "None")
