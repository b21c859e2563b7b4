"""The rig itself: a namespace of one's own, tools with deadlines, containers that run."""

import subprocess

import pytest
from kubernetes import client
from tests.support.kube import TEST_LABEL, Tool, ToolError


@pytest.mark.kube
def test_a_namespace_of_its_own(
    kube_api: client.ApiClient, kube_namespace: str, kubectl: Tool
) -> None:
    found = client.CoreV1Api(kube_api).read_namespace(kube_namespace)
    assert found.metadata and found.metadata.labels == {
        TEST_LABEL: "true",
        "kubernetes.io/metadata.name": kube_namespace,
    }
    mine = kubectl.within(kube_namespace)
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hello"},
        "data": {"word": "hi"},
    }
    mine.apply(manifest)
    assert mine.json("get", "configmap", "hello")["data"] == {"word": "hi"}


@pytest.mark.kube
def test_a_failed_call_shows_what_was_said(kubectl: Tool) -> None:
    with pytest.raises(ToolError, match="nothing-of-this-name"):
        kubectl("get", "namespace", "nothing-of-this-name")
    with pytest.raises(subprocess.TimeoutExpired):
        kubectl("get", "namespaces", "--watch", timeout_s=1)


@pytest.mark.kube
def test_helm_talks_to_the_same_cluster(helm: Tool, kube_namespace: str) -> None:
    assert helm.within(kube_namespace).json("list") == []
