"""What tests of all folders share: a Kubernetes, where KUBECONFIG names one.

Tests marked `kube` need an API server, those marked `kube_node` one that also runs containers. They
are deselected, and the run's header says so, where KUBECONFIG is not set, and `kube_node` where no
node runs containers. Where KUBECONFIG is set and nothing answers there, they run and fail.

No test of ours fails for being slow: Hypothesis has no deadline.

Where several processes run the tests, each takes files, and one of them all that a Kubernetes is
asked for: some of its objects (CRDs, rights, API services) are there once in a cluster. And each
draws the ports of its servers from a range of its own: a server that is down for a moment, to be
started again, finds its port free.
"""

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import settings
from kubernetes import client
from tests.support.kube import (
    Images,
    Tool,
    apply_crds,
    capabilities,
    connected,
    delete_namespace,
    fresh_namespace,
    tool,
)
from tests.support.kube_volumes import open_volumes
from xdist.scheduler import LoadFileScheduling

from magnetar.cluster.local import ports

settings.register_profile("magnetar", deadline=None)
settings.load_profile("magnetar")

OF_KUBERNETES: Final = ("tests/chart/", "tests/kube/", "tests/operator/")


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """See the module's text."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "kubernetes" if file.startswith(OF_KUBERNETES) else file


def pytest_configure() -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first, share = ports.FREE_FIRST, (ports.FREE_LAST - ports.FREE_FIRST) // workers
    ports.FREE_FIRST = first + number * share  # type: ignore[misc]
    ports.FREE_LAST = ports.FREE_FIRST + share - 1  # type: ignore[misc]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_report_header() -> str:
    return f"kubernetes: {capabilities().text}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    can = capabilities()
    missing = set()
    if not can.has_api:
        missing.add("kube")
    if not can.runs_containers:
        missing.add("kube_node")
    left_out = [item for item in items if missing & {mark.name for mark in item.iter_markers()}]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def kube_api() -> Iterator[client.ApiClient]:
    """A client of the API server."""
    with connected() as api:
        yield api


@pytest.fixture
def kube_namespace(kube_api: client.ApiClient) -> Iterator[str]:
    """The name of a namespace of this test's own; its end is asked for and not waited for."""
    name = fresh_namespace(kube_api)
    yield name
    delete_namespace(kube_api, name)


@pytest.fixture(scope="session")
def kubectl() -> Tool:
    """`kubectl("get", "pods")`; `.within(namespace)`, `.json(…)`, `.apply(manifest)`, `.run(…)`."""
    return tool("kubectl")


@pytest.fixture(scope="session")
def helm() -> Tool:
    return tool("helm")


@pytest.fixture(scope="session")
def crds(kubectl: Tool) -> list[str]:
    """The CRDs of crds/, served by the cluster; their names."""
    return apply_crds(kubectl)


@pytest.fixture(scope="session")
def images(kubectl: Tool) -> Images:
    """The images of KUBE_TEST_IMAGE and the like, in a cluster whose volumes pods can write to."""
    found = Images.of_environment()
    open_volumes(kubectl, found.magnetar)
    return found
