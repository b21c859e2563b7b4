"""Resources with `adminUrl` and `adminSecret`: a token goes to the address of its Secret only."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.operator.resource_stage import NS, URL, Stage, resource_stage

from magnetar_operator.admin.access import SecretKey
from magnetar_operator.admin.client import Unreachable
from magnetar_operator.catalog.references import recorded_key
from magnetar_operator.cluster.access import FRESH_S, ClusterAccess, access_in
from magnetar_operator.kube.kinds import SECRET, Object
from magnetar_operator.settings import Settings

CREDENTIALS: dict[str, Any] = {"adminUrl": URL, "adminSecret": {"name": "far"}}
KEY = SecretKey(NS, "far", URL)


def secret(url: str, token: str, trust: str = "") -> Object:
    fields = {"ADMIN_URL": url, "TOKEN": token, "ca.crt": trust}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in fields.items() if text}
    metadata = {"name": "far", "namespace": NS}
    return {"apiVersion": "v1", "kind": SECRET.kind, "metadata": metadata, "data": data}


@pytest.fixture
async def on() -> AsyncIterator[Stage]:
    async with resource_stage() as stage:
        stage.access = ClusterAccess(stage.client, Settings(), stage).of
        stage.restart()
        yield stage


async def test_requests_to_the_address_have_the_token(on: Stage) -> None:
    on.kube.put(secret(f"{URL}/", "one\n"))
    await on.ready("Tenant", "t2", CREDENTIALS)
    assert on.rest.presented == {"Bearer one"}
    assert on.status("Tenant", "t2")["adminSecret"] == "far"


async def test_a_topic_has_the_credentials_of_its_namespace(on: Stage) -> None:
    on.kube.put(secret(URL, "one"))
    await on.ready("Namespace", "n2", {**CREDENTIALS, "name": "t1/n2"})
    await on.ready("Topic", "a", {"namespaceRef": {"name": "n2"}})
    assert on.rest.presented == {"Bearer one"}
    assert on.status("Topic", "a")["adminSecret"] == "far"


async def test_a_renewed_token_is_presented(on: Stage) -> None:
    on.kube.put(secret(URL, "one"))
    await on.ready("Tenant", "t2", CREDENTIALS)
    on.kube.put(secret(URL, "two"))
    on.time_s += FRESH_S
    on.rest.presented.clear()
    await on.ready("Tenant", "t2", CREDENTIALS)
    assert on.rest.presented == {"Bearer two"}


async def test_a_deletion_has_the_token_too_also_after_a_restart(on: Stage) -> None:
    on.kube.put(secret(URL, "one"))
    await on.ready("Tenant", "t2", CREDENTIALS)
    on.restart()
    on.rest.presented.clear()
    assert await on.delete("Tenant", "t2") is None
    assert on.get("Tenant", "t2") == {}
    assert ("DELETE", "/tenants/t2") in on.rest.writes
    assert on.rest.presented == {"Bearer one"}


async def test_a_deletion_uses_the_secret_that_the_manifest_names_now(on: Stage) -> None:
    on.kube.put(secret(URL, "one"))
    await on.ready("Tenant", "t2", CREDENTIALS)
    metadata = {"name": "new", "namespace": NS}
    on.kube.put({**secret(URL, "two"), "metadata": metadata})
    on.apply("Tenant", "t2", {**CREDENTIALS, "adminSecret": {"name": "new"}})
    on.rest.presented.clear()
    assert await on.delete("Tenant", "t2") is None
    assert on.rest.presented == {"Bearer two"}


async def test_another_clusters_token_is_not_sent_to_the_address(on: Stage) -> None:
    """Otherwise the author of a Tenant could receive every token that the operator may read."""
    on.kube.put(secret("https://demo-broker.ns.svc:8443", "secret"))
    on.apply("Tenant", "t2", CREDENTIALS)
    await on.look("Tenant", "t2")
    assert on.rest.presented == set()
    text = on.condition("Tenant", "t2")["message"]
    assert f"Secret ns/far is not for {URL}: its field ADMIN_URL must be this address" in text
    assert "secret" not in text.replace("Secret", "")


@pytest.mark.parametrize("exists", [True, False])
async def test_a_missing_secret_or_address_is_named_and_retried(on: Stage, exists: bool) -> None:
    if exists:
        on.kube.put(secret("", "one"))
    on.apply("Tenant", "t2", CREDENTIALS)
    assert await on.look("Tenant", "t2") is not None
    assert "Secret ns/far " in on.condition("Tenant", "t2")["message"]
    assert on.rest.asked == []
    on.kube.put(secret(URL, "one"))
    on.time_s += FRESH_S
    await on.ready("Tenant", "t2", CREDENTIALS)


async def test_an_address_without_a_secret_gets_no_token(on: Stage) -> None:
    await on.ready("Tenant", "t2", {"adminUrl": URL})
    assert on.rest.presented == {""}


def test_a_secret_has_a_token_and_authorities() -> None:
    held = access_in(secret(URL, "one", "PEM"), KEY)
    assert held.headers(URL) == {"authorization": "Bearer one"}
    assert (held.trust, held.only_tls) == (b"PEM", False)
    secure = SecretKey(NS, "far", "https://b:8443")
    held = access_in(secret("https://b:8443", "one"), secure)
    assert held.headers("http://b:8080") == {}
    with pytest.raises(Unreachable, match="ns/far is not for https://b:8443"):
        access_in(secret("https://b:8443@evil", "one"), secure)


def test_the_status_records_the_secret() -> None:
    obj = {"metadata": {"namespace": NS, "name": "a"}}
    status = {"adminSecret": "far", "adminUrl": URL, "cluster": URL}
    assert recorded_key(obj, status) == KEY
    assert recorded_key(obj, {"adminUrl": URL, "cluster": URL}) is None
