"""Carries out a plan's steps through the admin REST, each once, in order.

A step that the cluster refuses does not keep the others from being done; where some were refused
and others went through, the refused ones are tried once more (retention and backlog quotas are
checked against each other, so which goes first may matter). What is there already, or gone
already, counts as done. Broken off anywhere, the next plan has what is left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from magnetar.policies.policy import Policy, Rest
from magnetar_operator.resources.admin_client import Exists, NotFound, Refused
from magnetar_operator.resources.cluster_view import ClusterView
from magnetar_operator.resources.desired import (
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    PARTITIONS,
    PROPERTIES,
    SCHEMA,
    Desired,
    policy_of,
)
from magnetar_operator.resources.looking import schema_body, schema_path
from magnetar_operator.resources.observed import Observed
from magnetar_operator.resources.plan import Action, Verb
from magnetar_operator.resources.targets import NAMESPACE, SUBSCRIPTION, TENANT, TOPIC, Target

GLOBAL_CLUSTER: Final = "global"
METHOD_NOT_ALLOWED: Final = 405
MESSAGE_ID_END: Final = 2**63 - 1


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    done: list[Action] = field(default_factory=list)
    refused: list[tuple[Action, Refused]] = field(default_factory=list)
    existed: Exists | None = None
    """What was to be created was there: it is to be looked at before anything else is done."""
    schema_version: int | None = None


class CarryingOut:
    """The steps of one plan. Raises Unreachable in the middle where the cluster goes away."""

    def __init__(
        self,
        view: ClusterView,
        target: Target,
        desired: Desired,
        observed: Observed | None,
        on_done: Callable[[Action], None] = lambda _action: None,
    ) -> None:
        self._view = view
        self._client = view.client
        self._target = target
        self._desired = desired
        self._observed = observed
        self._on_done = on_done
        self.outcome = Outcome()

    async def run(self, steps: tuple[Action, ...]) -> Outcome:
        """All of them."""
        outcome = self.outcome
        for round_ in range(2):
            if round_ and not (outcome.refused and outcome.done):
                break
            left = steps if not round_ else tuple(action for action, _ in outcome.refused)
            outcome.refused = []
            for action in left:
                try:
                    await self._step(action)
                except Refused as error:
                    outcome.refused.append((action, error))
                    if action.verb is Verb.CREATE:
                        return outcome
                    continue
                if outcome.existed is not None:
                    return outcome
                outcome.done.append(action)
                self._on_done(action)
        return outcome

    async def _step(self, action: Action) -> None:
        name = action.field
        if action.verb is Verb.CREATE:
            await self._create()
        elif name == PARTITIONS:
            await self._client.call("POST", f"{self._target.path}/partitions", action.after)
        elif name == SCHEMA:
            await self._register_schema()
        elif name.startswith(PROPERTIES):
            await self._set_property(name.removeprefix(PROPERTIES), action.after)
        elif name in (ADMIN_ROLES, ALLOWED_CLUSTERS):
            await self._set_tenant(name, action.after)
        elif (known := policy_of(name)) is not None:
            await self._set_policy(*known, action.after)

    # -- creating --------------------------------------------------------------------------------

    async def _create(self) -> None:
        target = self._target
        partitions = int(self._desired.fields.get(PARTITIONS) or 0)
        try:
            if target.kind == TENANT:
                await self._client.call("PUT", target.path, await self._tenant_document({}))
            elif target.kind == NAMESPACE:
                await self._client.call("PUT", target.path, self._namespace_document())
            elif target.kind == TOPIC and partitions:
                await self._client.call("PUT", f"{target.path}/partitions", partitions)
            elif target.kind == TOPIC:
                await self._client.call("PUT", target.path)
            elif target.kind == SUBSCRIPTION:
                await self._client.call("PUT", target.path, self._start())
        except Exists as error:
            # Somebody was faster, or our first attempt was: the lists are behind.
            self._view.forget(target)
            self.outcome.existed = error
            return
        except NotFound:
            above = target.above
            if above is not None:
                self._view.forget(above)
            raise
        self._view.made(target, partitions)

    def _namespace_document(self) -> dict[str, Any]:
        bundles = self._desired.at_birth.get("bundles")
        return {} if bundles is None else {"bundles": {"numBundles": bundles}}

    def _start(self) -> dict[str, Any]:
        earliest = self._desired.at_birth.get("initialPosition") == "Earliest"
        at = -1 if earliest else MESSAGE_ID_END
        return {"ledgerId": at, "entryId": at, "partitionIndex": -1}

    async def _tenant_document(self, there: Mapping[str, Any]) -> dict[str, Any]:
        """Both lists: REST takes the whole document only."""
        wanted = self._desired.fields
        clusters = wanted.get(ALLOWED_CLUSTERS) or there.get(ALLOWED_CLUSTERS)
        if not clusters:
            clusters = sorted(await self._view.clusters() - {GLOBAL_CLUSTER})
        roles = wanted.get(ADMIN_ROLES, there.get(ADMIN_ROLES) or [])
        return {"adminRoles": roles, "allowedClusters": clusters}

    # -- changing --------------------------------------------------------------------------------

    async def _set_tenant(self, name: str, value: list[str]) -> None:
        there = dict(self._observed.fields) if self._observed is not None else {}
        document = await self._tenant_document(there)
        await self._client.call("POST", self._target.path, {**document, name: value})

    async def _set_property(self, key: str, value: str | None) -> None:
        target, path = self._target, f"{self._target.path}/properties"
        if target.kind == SUBSCRIPTION:
            # REST replaces them all: those that are not ours are sent back as they were.
            now = dict(await self._client.find(path) or {})
            wanted = {**now, key: value}
            if value is None:
                del wanted[key]
            await self._client.call("PUT", path, wanted)
        elif value is not None:
            await self._client.call("PUT", path, {key: value})
        elif target.kind == NAMESPACE:
            await self._gone(f"{target.path}/property/{quote(key, safe='')}")
        else:
            await self._gone(path, {"key": key})

    async def _register_schema(self) -> None:
        found = await self._client.call(
            "POST", f"{schema_path(self._target)}/schema", schema_body(self._desired)
        )
        version = ((found or {}).get("version") or {}).get("version")
        self.outcome.schema_version = version if isinstance(version, int) else None

    async def _set_policy(self, policy: Policy, key: str, value: Any) -> None:
        rest = policy.namespace if self._target.kind == NAMESPACE else policy.topic
        assert rest is not None  # noqa: S101  the manifest was checked against the level
        base = self._target.path
        query = {rest.keyed_by: key} if rest.keyed_by else {}
        if value is not None:
            await self._client.call(
                rest.set_verb, f"{base}/{rest.set_path or rest.path}", value, query
            )
        elif policy.undefined is not None:
            await self._client.call(
                rest.set_verb, f"{base}/{rest.set_path or rest.path}", policy.undefined
            )
        else:
            await self._remove_policy(policy, rest, base, query)

    async def _remove_policy(
        self, policy: Policy, rest: Rest, base: str, query: Mapping[str, str]
    ) -> None:
        path = f"{base}/{rest.remove_path or rest.path}"
        try:
            await self._client.call(rest.remove_verb, path, query=query)
        except NotFound:
            return
        except Refused as error:
            # Pulsar cannot unset what always has a value: it gets its default.
            if error.status != METHOD_NOT_ALLOWED or policy.default is None:
                raise
            await self._client.call(
                rest.set_verb, f"{base}/{rest.set_path or rest.path}", policy.default, query
            )

    async def _gone(self, path: str, query: Mapping[str, str] | None = None) -> None:
        """404 is success."""
        try:
            await self._client.call("DELETE", path, query=query)
        except NotFound:
            return
