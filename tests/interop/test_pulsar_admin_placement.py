"""The official `pulsar-admin`: isolation policies, failure domains, groups and quotas."""

import pytest

from .java_programs import JAVA_TEST_TIMEOUT_S
from .support import Names, ServerAddress
from .test_pulsar_admin import Run, run

__all__ = ["run"]

pytestmark = pytest.mark.timeout(JAVA_TEST_TIMEOUT_S)


def test_isolation_policies(run: Run, server: ServerAddress) -> None:
    (cluster,) = run("clusters", "list").lines()
    (broker,) = run("brokers", "list", cluster).lines()
    group = "ns-isolation-policy"
    policy = ("--auto-failover-policy-type", "min_available", "--auto-failover-policy-params",
              "min_limit=1,usage_threshold=80")  # fmt: skip
    run(group, "set", cluster, "p", "--namespaces", "isolated/.*", "--primary", "nowhere.*",
        *policy).refused("served nowhere")  # fmt: skip
    run(group, "set", cluster, "p", "--namespaces", "isolated/.*", "--primary", ".*",
        "--secondary", "nowhere.*", "--unload-scope", "none", *policy).done()  # fmt: skip
    stored = run(group, "get", cluster, "p").text()
    assert "isolated/.*" in stored
    assert "nowhere.*" in stored
    assert broker in run(group, "brokers", cluster).text()
    assert "isolated/.*" in run(group, "broker", cluster, "--broker", broker).text()
    run(group, "delete", cluster, "p").done()


def test_failure_domains_and_anti_affinity(run: Run, names: Names) -> None:
    (cluster,) = run("clusters", "list").lines()
    run("clusters", "create-failure-domain", cluster, "--domain-name", "d1",
        "--broker-list", "b1,b2").done()  # fmt: skip
    run("clusters", "create-failure-domain", cluster, "--domain-name", "d2",
        "--broker-list", "b1").refused("[b1] already exists in d1")  # fmt: skip
    assert "d1" in run("clusters", "list-failure-domains", cluster).text()
    run("clusters", "delete-failure-domain", cluster, "--domain-name", "d1").done()
    namespace = names.path
    tenant = namespace.partition("/")[0]
    run("namespaces", "set-anti-affinity-group", namespace, "--group", "apart").done()
    assert run("namespaces", "get-anti-affinity-group", namespace).text().strip('"') == "apart"
    members = run("namespaces", "get-anti-affinity-namespaces", "--cluster", cluster, "--group",
                  "apart", "--tenant", tenant)  # fmt: skip
    assert namespace in members.lines()
    run("namespaces", "delete-anti-affinity-group", namespace).done()


def test_resource_groups(run: Run, names: Names) -> None:
    group, namespace = f"{names.namespace}-g", names.path
    run("resourcegroups", "create", group, "--msg-publish-rate", "10").done()
    run("resourcegroups", "update", group, "--byte-dispatch-rate", "20").done()
    rates = run("resourcegroups", "get", group).json()
    assert (rates["publishRateInMsgs"], rates["dispatchRateInBytes"]) == (10, 20)
    run("namespaces", "set-resource-group", namespace, "-rgn", group).done()
    assert run("namespaces", "get-resource-group", namespace).text() == group
    run("resourcegroups", "delete", group).refused("ResourceGroup is in use")
    run("namespaces", "remove-resource-group", namespace).done()
    run("resourcegroups", "delete", group).done()


def test_resource_quotas(run: Run, names: Names) -> None:
    namespace = names.path
    bundles = run("namespaces", "bundles", namespace).json()["boundaries"]
    assert isinstance(bundles, list)
    one = ("--namespace", namespace, "--bundle", f"{bundles[0]}_{bundles[1]}")
    run("resource-quotas", "set", *one, "-mi", "1", "-mo", "2", "-bi", "3", "-bo", "4",
        "-mem", "0").done()  # fmt: skip
    quota = run("resource-quotas", "get", *one).json()
    assert (quota["bandwidthOut"], quota["dynamic"]) == (4, False)
    run("resource-quotas", "reset-namespace-bundle-quota", *one).done()
    assert run("resource-quotas", "get", *one).json()["bandwidthOut"] == 300_000
