"""The client of the Kubernetes API: retries, errors, and the guard of its writes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.operator.memory_kube import Answer, Asked, MemoryKube, Refusal
from tests.support.kube import NODE

from magnetar_operator.kube.client import (
    ATTEMPTS_MAX,
    MESSAGE_CHARACTERS_MAX,
    Conflict,
    Forbidden,
    Invalid,
    KubeClient,
    KubeError,
    NotFound,
    Unreachable,
    selector,
)
from magnetar_operator.kube.kinds import CONFIG_MAP, POD, SERVICE_MONITOR, TOPIC, Object
from magnetar_operator.kube.lease import NotLeading

Call = Callable[[KubeClient], Awaitable[Any]]


@pytest.fixture
def kube() -> MemoryKube:
    return MemoryKube()


@pytest.fixture
async def client(kube: MemoryKube, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeClient]:
    monkeypatch.setattr("magnetar_operator.kube.client.BACKOFF_FIRST_S", 0.0)
    kube_client = kube.client()
    yield kube_client
    await kube_client.close()


def settings(name: str = "a", **data: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "ns", "labels": {"app": "m"}}, "data": data,
    }  # fmt: skip


def topic(name: str = "t") -> Object:
    return {
        "apiVersion": TOPIC.api_version, "kind": "Topic",
        "metadata": {"name": name, "namespace": "ns"}, "spec": {},
    }  # fmt: skip


REPEATED: dict[str, Call] = {
    "get": lambda client: client.get(CONFIG_MAP, "a", "ns"),
    "list": lambda client: client.list(CONFIG_MAP, "ns"),
    "serves": lambda client: client.serves(SERVICE_MONITOR),
    "apply": lambda client: client.apply(settings(), before=settings()),
    "status": lambda client: client.patch_status(TOPIC, "ns", "t", {}),
    "merge": lambda client: client.merge(CONFIG_MAP, "ns", "a", {}),
    "scale": lambda client: client.scale(CONFIG_MAP, "ns", "a", 1),
    "delete": lambda client: client.delete(CONFIG_MAP, "a", "ns"),
}
"""What asks for the same the second time."""
ONCE: dict[str, Call] = {
    "create": lambda client: client.create(settings("new")),
    "replace": lambda client: client.replace(settings()),
}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("call", REPEATED.values(), ids=REPEATED)
async def test_requests_to_a_busy_server_are_retried_a_bounded_number_of_times(
    kube: MemoryKube, client: KubeClient, call: Call, status: int
) -> None:
    kube.put(settings())
    kube.put(topic())
    kube.refuse = lambda _: Refusal(status, "Busy") if len(kube.asked) < ATTEMPTS_MAX else None
    await call(client)
    assert len(kube.asked) == ATTEMPTS_MAX
    kube.asked.clear()
    kube.refuse = lambda _: Refusal(status, "Busy")
    with pytest.raises(Unreachable):
        await call(client)
    assert len(kube.asked) == ATTEMPTS_MAX


@pytest.mark.parametrize("call", ONCE.values(), ids=ONCE)
async def test_requests_that_may_have_succeeded_are_not_retried(
    kube: MemoryKube, client: KubeClient, call: Call
) -> None:
    kube.put(settings())
    kube.refuse = lambda _: Refusal(503, "Busy")
    with pytest.raises(Unreachable):
        await call(client)
    assert len(kube.asked) == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Invalid), (401, Forbidden), (403, Forbidden), (404, NotFound), (409, Conflict),
        (410, NotFound), (415, Invalid), (422, Invalid), (418, KubeError), (301, KubeError),
    ],
)  # fmt: skip
async def test_a_refusal_is_typed_by_what_the_caller_can_do(
    kube: MemoryKube, client: KubeClient, status: int, error: type[KubeError]
) -> None:
    kube.refuse = lambda _: Refusal(status, "Why", "a text")
    with pytest.raises(KubeError) as raised:
        await client.get(POD, "p", "ns")
    assert type(raised.value) is error
    assert (raised.value.status, raised.value.reason) == (status, "Why")
    assert "/pods/p: a text" in raised.value.message
    assert len(kube.asked) == 1


async def test_an_apply_of_wrong_types_is_not_a_server_failure(
    kube: MemoryKube, client: KubeClient
) -> None:
    text = "failed to create typed patch object (ns/a; v1)"
    kube.refuse = lambda _: Refusal(500, "", text)
    with pytest.raises(Invalid):
        await client.apply(settings(), before=settings())
    assert len(kube.asked) == 1


async def test_an_undecodable_answer_is_quoted_in_part(
    kube: MemoryKube, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Answer(403, b"<html>" + b"x" * 9_000), Answer(200, b""), Answer(200, b"[1]")]
    monkeypatch.setattr(kube, "request", lambda *_, **__: answers.pop(0))
    with pytest.raises(Forbidden, match="<html>xxx") as raised:
        await client.get(POD, "p", "ns")
    assert len(raised.value.message) == MESSAGE_CHARACTERS_MAX
    assert await client.get(POD, "p", "ns") == {}
    with pytest.raises(KubeError):
        await client.get(POD, "p", "ns")


async def test_a_broken_connection_raises_unreachable(kube: MemoryKube, client: KubeClient) -> None:
    def breaks(_: Asked) -> None:
        raise ConnectionResetError("gone")

    kube.refuse = breaks
    with pytest.raises(Unreachable, match="gone"):
        await client.get(POD, "p", "ns")
    assert len(kube.asked) == ATTEMPTS_MAX


async def test_a_list_includes_all_of_its_pages(kube: MemoryKube, client: KubeClient) -> None:
    kube.page_objects = 2
    for number in range(5):
        kube.put(settings(f"m{number}"))
    kube.put({**settings("other"), "metadata": {"name": "other", "namespace": "elsewhere"}})
    objects = await client.list(CONFIG_MAP, "ns", labels={"app": "m"})
    assert [item["metadata"]["name"] for item in objects] == [f"m{at}" for at in range(5)]
    assert {(item["apiVersion"], item["kind"]) for item in objects} == {("v1", "ConfigMap")}
    assert client.requests["list", "", "configmaps"] == len(kube.asked) == 3
    assert len(await client.list(CONFIG_MAP)) == 6
    assert await client.list(CONFIG_MAP, "ns", labels="app=other") == []
    assert selector({"a": "b", "c": "d"}) == "a=b,c=d"


async def test_an_apply_returns_whether_it_created_or_changed_the_object(
    kube: MemoryKube, client: KubeClient
) -> None:
    first = await client.apply(settings(a="1", b="2"))
    assert (first.changed, first.created) == (True, True)
    again = await client.apply(settings(a="1", b="2"))
    assert (again.changed, again.created) == (False, False)
    other = await client.apply(settings(a="2"), before=again.object)
    assert (other.changed, other.created) == (True, False)
    assert kube.get(CONFIG_MAP, "a")["data"] == {"a": "2"}, "what is ours no more goes"
    await client.merge(CONFIG_MAP, "ns", "a", {"data": {"theirs": "1"}})
    await client.apply(settings(a="3"))
    assert kube.get(CONFIG_MAP, "a")["data"] == {"a": "3", "theirs": "1"}
    assert client.requests["create", "", "configmaps"] == 1


async def test_a_deletion_names_the_uid_of_the_object(kube: MemoryKube, client: KubeClient) -> None:
    assert await client.delete(CONFIG_MAP, "a", "ns") is False
    kube.put(settings())
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAP, "a", "ns", uid="another")
    assert await client.delete(CONFIG_MAP, "a", "ns", grace_period_s=0) is True
    last = kube.writes[-1].body
    assert (last["gracePeriodSeconds"], last["propagationPolicy"]) == (0, "Background")
    assert "preconditions" not in last
    assert "gracePeriodSeconds" not in kube.writes[0].body


async def test_a_status_names_the_uid_and_a_replacement_the_version(
    kube: MemoryKube, client: KubeClient
) -> None:
    kube.put(topic())
    with pytest.raises(Conflict):
        await client.patch_status(TOPIC, "ns", "t", {"a": 1}, uid="another")
    uid = kube.get(TOPIC, "t")["metadata"]["uid"]
    after = await client.patch_status(TOPIC, "ns", "t", {"a": 1}, uid=uid)
    assert after["status"] == {"a": 1}
    stale = kube.get(TOPIC, "t")
    kube.put({**stale, "spec": {"name": "x"}})
    with pytest.raises(Conflict):
        await client.replace(stale)
    with pytest.raises(Conflict):
        await client.create(topic())


async def test_without_the_lease_nothing_is_written_but_reads_work(
    kube: MemoryKube, client: KubeClient
) -> None:
    def may_not() -> None:
        raise NotLeading

    kube.put(settings())
    kube.put(topic())
    client.guard = may_not
    kube.asked.clear()
    for name, call in {**REPEATED, **ONCE}.items():
        if name in ("get", "list", "serves"):
            await call(client)
        else:
            with pytest.raises(NotLeading):
                await call(client)
    assert kube.writes == []


class Recorded(MemoryKube):
    """Records the body and the content type of each request."""

    def request(self, method: str, url: str, *given: Any, **options: Any) -> Answer:
        self.sent = (method, options["body"], options["headers"].get("Content-Type"))
        return super().request(method, url, *given, **options)


FORMS = {
    "get": None, "list": None, "serves": None, "apply": "application/apply-patch+yaml",
    "status": "application/apply-patch+yaml", "merge": "application/merge-patch+json",
    "scale": "application/merge-patch+json", "delete": "application/json",
    "create": "application/json", "replace": "application/json",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
async def test_a_write_has_a_content_type_and_a_read_has_neither_type_nor_body(name: str) -> None:
    kube = Recorded()
    kube.put(settings())
    kube.put(topic())
    client = kube.client()
    try:
        await {**REPEATED, **ONCE}[name](client)
    finally:
        await client.close()
    method, body, form = kube.sent
    assert ((method == "GET"), (body is None)) == ((FORMS[name] is None),) * 2
    assert form == FORMS[name]


async def test_served_kinds_are_looked_up_in_their_api_version(
    kube: MemoryKube, client: KubeClient
) -> None:
    assert await client.serves(SERVICE_MONITOR) is False
    kube.served = {SERVICE_MONITOR.kind}
    assert await client.serves(SERVICE_MONITOR) is True
    kube.refuse = lambda _: Refusal(404, "NotFound")
    assert await client.serves(SERVICE_MONITOR) is False
    assert await client.find(POD, "p", "ns") is None
    assert kube.asked[0].path == "/apis/monitoring.coreos.com/v1"


async def test_requests_are_counted_by_the_verbs_and_resources_of_rbac(
    kube: MemoryKube, client: KubeClient
) -> None:
    kube.put(topic())
    for call in {**REPEATED, **ONCE}.values():
        kube.put(settings())
        await call(client)
    assert client.requests == {
        ("get", "", "configmaps"): 1,
        ("list", "", "configmaps"): 1,
        ("patch", "", "configmaps"): 2,
        ("patch", "magnetar.io", "topics/status"): 1,
        ("patch", "", "configmaps/scale"): 1,
        ("delete", "", "configmaps"): 1,
        ("create", "", "configmaps"): 1,
        ("update", "", "configmaps"): 1,
    }


def test_a_kind_has_its_paths() -> None:
    assert POD.path("ns", "p", "status") == "/api/v1/namespaces/ns/pods/p/status"
    assert TOPIC.path(None) == "/apis/magnetar.io/v1alpha1/topics"
    assert NODE.path(None, "n") == "/api/v1/nodes/n"
    with pytest.raises(ValueError, match="needs a namespace"):
        POD.path(None, "p")
    assert (POD.group, TOPIC.group) == ("", "magnetar.io")
