"""Resource quotas over REST: statuses and texts as recorded from Apache Pulsar 4.2.4."""

from magnetar.broker.balance.quotas import QUOTAS

from .support import Admin

ALL = "~/resource-quotas"
FIRST = "t1/n1/0x00000000_0x40000000"
MISFIT = "t1/n1/0x00000000_0x10000000"
BUNDLE = f"{ALL}/{FIRST}"
DEFAULT = {
    "msgRateIn": 40.0, "msgRateOut": 120.0, "bandwidthIn": 100000.0, "bandwidthOut": 300000.0,
    "memory": 80.0, "dynamic": True,
}  # fmt: skip
FIXED = {
    "msgRateIn": 1.0, "msgRateOut": 2.0, "bandwidthIn": 3.0, "bandwidthOut": 4.0, "memory": 0.0,
    "dynamic": False,
}  # fmt: skip
OTHER = {**FIXED, "bandwidthOut": 6.0}


async def test_quotas_are_set_shown_and_reset(admin: Admin) -> None:
    assert (await admin.done("GET", ALL)).json() == DEFAULT
    assert (await admin.done("GET", BUNDLE)).json() == DEFAULT
    assert (await admin.done("POST", BUNDLE, FIXED)).status_code == 204
    assert (await admin.done("GET", BUNDLE)).json() == FIXED
    assert (await admin.done("POST", ALL, OTHER)).status_code == 204
    assert (await admin.done("GET", ALL)).json() == OTHER
    assert (await admin.done("GET", BUNDLE)).json() == FIXED
    assert (await admin.done("DELETE", BUNDLE)).status_code == 204
    assert (await admin.done("GET", BUNDLE)).json() == OTHER
    again = await admin.call("DELETE", BUNDLE)
    assert (again.status_code, again.json()["reason"]) == (
        404,
        f"path /loadbalance/resource-quota/{FIRST} not found.",
    )


async def test_bundles_and_values_are_checked(admin: Admin) -> None:
    for bundle, status, reason in (
        ("t1/n1/nope", 412, "Invalid bundle range: nope"),
        (
            *(MISFIT, 412),
            f"Invalid upper boundary for bundle {MISFIT}. Expected upper boundary of {FIRST}",
        ),
        ("t1/nope/0x00000000_0x40000000", 404, "Namespace does not exist"),
    ):
        for method, body in (("GET", None), ("POST", FIXED), ("DELETE", None)):
            found = await admin.call(method, f"{ALL}/{bundle}", body)
            assert (found.status_code, found.json()["reason"]) == (status, reason)
    for path in (ALL, BUNDLE):
        negative = await admin.call("POST", path, {**FIXED, "bandwidthIn": -1})
        assert negative.status_code == 412
        assert "bandwidthIn" in negative.json()["reason"]
        unmeasured = await admin.call("POST", path, {**FIXED, "memory": 5.0})
        assert unmeasured.status_code == 412
        assert "memory" in unmeasured.json()["reason"]
        assert (await admin.call("POST", path)).status_code == 400
        wrong = await admin.call("POST", path, {"msgRateIn": "x"})
        assert wrong.status_code == 400
        assert "msgRateIn" in wrong.json()["reason"]
    assert await QUOTAS.read(admin.service.store) is None


async def test_a_deleted_namespace_leaves_no_quota(admin: Admin) -> None:
    await admin.done("PUT", "~/namespaces/t1/n2", {"bundles": {"numBundles": 4}})
    gone = f"{ALL}/t1/n2/0x00000000_0x40000000"
    await admin.done("POST", gone, FIXED)
    await admin.done("POST", BUNDLE, FIXED)
    await admin.done("DELETE", "~/namespaces/t1/n2")
    await admin.done("PUT", "~/namespaces/t1/n2", {"bundles": {"numBundles": 4}})
    assert (await admin.done("GET", gone)).json() == DEFAULT
    assert (await admin.done("GET", BUNDLE)).json() == FIXED
