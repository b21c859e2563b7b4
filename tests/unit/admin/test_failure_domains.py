"""Failure domains and anti-affinity groups over REST, as recorded from Apache Pulsar 4.2.4."""

from magnetar.broker.balance.rules import PlacementRules

from .support import Admin

PATH = "~/clusters/standalone/failureDomains"


async def test_domains_are_set_shown_and_deleted(admin: Admin) -> None:
    assert (await admin.done("GET", PATH)).json() == {}
    assert (await admin.done("GET", "~/clusters/nope/failureDomains")).json() == {}
    assert (await admin.done("POST", PATH + "/d1", {"brokers": ["b", "c"]})).status_code == 204
    await admin.done("POST", PATH + "/d2", {"brokers": ["e", "e"]})
    await admin.done("POST", PATH + "/d3", {})
    assert (await admin.done("GET", PATH)).json() == {
        "d1": {"brokers": ["b", "c"]},
        "d2": {"brokers": ["e"]},
        "d3": {"brokers": []},
    }
    assert (await admin.done("GET", PATH + "/d2")).json() == {"brokers": ["e"]}
    assert (await admin.done("DELETE", PATH + "/d2")).status_code == 200
    unknown, other = "Cluster nope does not exist.", "~/clusters/nope/failureDomains/d1"
    for method, path, body, status, reason in (
        ("GET", PATH + "/d2", None, 404, "Domain d2 for cluster standalone does not exist"),
        (
            *("DELETE", PATH + "/d2", None, 404),
            "Domain-name d2 or cluster standalone does not exist",
        ),
        ("GET", other, None, 412, unknown),
        ("POST", other, {"brokers": ["b"]}, 412, unknown),
        ("DELETE", other, None, 412, unknown),
        ("POST", PATH + "/d2", {"brokers": ["b"]}, 409, "[b] already exists in d1"),
        ("POST", PATH + "/d2", None, 400, "A failure domain is required"),
    ):
        refused = await admin.call(method, path, body)
        assert (refused.status_code, refused.json()["reason"]) == (status, reason)
    assert (await admin.call("POST", PATH + "/d2", {"brokers": "x"})).status_code == 400


async def test_domains_without_an_effect_are_refused(admin: Admin) -> None:
    await admin.done("PUT", "~/clusters/far", {"serviceUrl": "http://far:8080"})
    far = "~/clusters/far/failureDomains/d"
    assert (await admin.call("POST", far, {"brokers": ["b"]})).status_code == 405
    assert (await admin.call("DELETE", far)).status_code == 404
    admin.service.rules = PlacementRules(admin.service.store, uses_domains=False)
    off = await admin.call("POST", PATH + "/d", {"brokers": ["b"]})
    assert off.status_code == 405
    assert "failureDomainsEnabled" in off.json()["reason"]


async def test_the_namespaces_of_a_group_are_listed(admin: Admin) -> None:
    await admin.done("PUT", "~/namespaces/t1/n2")
    for namespace, body in (("n1", b"g1"), ("n2", b'"g1"')):
        await admin.done("POST", f"~/namespaces/t1/{namespace}/antiAffinity", body)
        assert (await admin.done("GET", f"~/namespaces/t1/{namespace}/antiAffinity")).text == "g1"
    group = "~/namespaces/standalone/antiAffinity/g1"
    missing = await admin.call("GET", group)
    assert (missing.status_code, missing.json()["reason"]) == (400, "Tenant should not be null")
    assert (await admin.done("GET", group + "?tenant=t1")).json() == ["t1/n1", "t1/n2"]
    assert (await admin.done("GET", group + "?tenant=nope")).json() == []
    of_tools = "/admin/namespaces/standalone/antiAffinity/g1?property=t1"
    assert (await admin.done("GET", of_tools)).json() == ["t1/n1", "t1/n2"]
    await admin.done("DELETE", "~/namespaces/t1/n2/antiAffinity")
    assert (await admin.done("GET", group + "?tenant=t1")).json() == ["t1/n1"]
    assert (await admin.done("GET", group.replace("g1", "g9") + "?tenant=t1")).json() == []
    unknown = await admin.call("GET", "~/namespaces/nope/antiAffinity/g1?tenant=t1")
    assert (unknown.status_code, unknown.json()["reason"]) == (412, "Cluster nope does not exist.")
