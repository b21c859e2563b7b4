"""Creates, changes and refuses resources of our kinds on a real API server, in one namespace."""

import json
from typing import Any, Final

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from magnetar_operator.kube.kinds import API_VERSION, GROUP, VERSION
from magnetar_operator.models.kinds import BY_KIND

CALL_TIMEOUT_S: Final = 20
NAME: Final = "one"
"""Of each resource: one of a kind is enough."""
SHORTEST: Final[dict[str, dict[str, Any]]] = {
    "MagnetarCluster": {},
    "Tenant": {},
    "Namespace": {"tenant": "shop"},
    "Topic": {"name": "persistent://shop/orders/created"},
    "Subscription": {"topic": "persistent://shop/orders/created"},
    "SparkJob": {"type": "Backlog"},
}
"""The shortest valid spec of each kind."""


class Resources:
    """Resources of one namespace, by kind; refusals are texts."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._api = client.CustomObjectsApi(api)
        self._namespace = namespace

    def _where(self, kind: str) -> dict[str, Any]:
        return {"group": GROUP, "version": VERSION, "namespace": self._namespace,
                "plural": BY_KIND[kind].plural, "_request_timeout": CALL_TIMEOUT_S}  # fmt: skip

    def create(self, kind: str, spec: dict[str, Any], *, dry: bool = False) -> Any:
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": NAME}, "spec": spec}
        asked = {**self._where(kind), "body": body, "field_validation": "Strict"}
        if dry:
            asked["dry_run"] = "All"
        return self._api.create_namespaced_custom_object(**asked)

    def refusal(self, kind: str, spec: dict[str, Any]) -> str:
        """The reason why it is not created; empty if it would be."""
        try:
            self.create(kind, spec, dry=True)
        except ApiException as error:
            return said(error)
        return ""

    def _seen(self, kind: str) -> dict[str, Any]:
        stored: Any = self._api.get_namespaced_custom_object(**self._where(kind), name=NAME)
        assert isinstance(stored, dict)
        return stored

    def replace(self, kind: str, spec: dict[str, Any]) -> Any:
        return self._api.replace_namespaced_custom_object(
            **self._where(kind), name=NAME, body={**self._seen(kind), "spec": spec}
        )

    def replace_status(self, kind: str, status: dict[str, Any]) -> Any:
        return self._api.replace_namespaced_custom_object_status(
            **self._where(kind), name=NAME, body={**self._seen(kind), "status": status},
            field_validation="Strict",
        )  # fmt: skip


def said(error: ApiException) -> str:
    assert error.status in (400, 422), error
    text: str = json.loads(error.body or "")["message"]
    return text
