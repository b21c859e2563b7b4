"""Carries out a plan's actions through the admin REST, each once, in order.

An action that the cluster refuses does not stop the others. If some were refused and others
succeeded, the refused ones are retried once: brokers check retention and backlog quotas against
each other, so the order may matter. Creating what exists, or deleting what does not, succeeds.
After a cancellation, the next plan has the remaining actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import quote

from magnetar.policies.policy import Level, Policy, Rest
from magnetar.policies.registry import rest_of
from magnetar_operator.admin.client import Exists, NotFound, Refused
from magnetar_operator.admin.target import (
    NAMESPACE,
    PERMISSION,
    SUBSCRIPTION,
    TENANT,
    TOPIC,
    Target,
)
from magnetar_operator.admin.view import ClusterView
from magnetar_operator.catalog.observe import schema_body, schema_path, subscription_roles
from magnetar_operator.catalog.plan import Action, Verb
from magnetar_operator.catalog.state import (
    ACTIONS,
    ADMIN_ROLES,
    ALLOWED_CLUSTERS,
    PARTITIONS,
    PROPERTIES,
    SCHEMA,
    Desired,
    Observed,
    policy_of,
)
from magnetar_operator.engine.executor import Executor
from magnetar_operator.engine.plan import Outcome

GLOBAL_CLUSTER: Final = "global"
METHOD_NOT_ALLOWED: Final = 405
MESSAGE_ID_END: Final = 2**63 - 1


@dataclass(slots=True)
class CatalogOutcome(Outcome[Action]):
    """The outcome of a target's plan, with the version of a registered schema."""

    schema_version: int | None = None
    """The version of the schema that was registered; None: none was."""


class CatalogExecutor(Executor[Action]):
    """Carries out the plan of one target. Raises Unreachable if the cluster does not answer."""

    refusals: ClassVar = (Refused,)
    rounds: ClassVar = 2

    def __init__(
        self, view: ClusterView, target: Target, desired: Desired, observed: Observed | None
    ) -> None:
        self._view = view
        self._client = view.client
        self._target = target
        self._desired = desired
        self._observed = observed
        self._schema_version: int | None = None

    async def carry_out(self, steps: Sequence[Action]) -> CatalogOutcome:
        """Carries out all steps, in order, and returns their outcome."""
        outcome = await self.run(steps)
        return CatalogOutcome(
            outcome.done, outcome.failed, outcome.skipped, outcome.stale, self._schema_version
        )

    def is_needed_by_all_after(self, action: Action) -> bool:
        return action.verb is Verb.CREATE

    async def execute(self, action: Action, outcome: Outcome[Action]) -> None:
        """Carries out one action. An action whose effect already exists succeeds."""
        name = action.field
        if action.verb is Verb.CREATE:
            outcome.stale = await self._create()
        elif name == PARTITIONS:
            await self._client.call("POST", f"{self._target.path}/partitions", action.after)
        elif name == SCHEMA:
            await self._register_schema()
        elif name.startswith(PROPERTIES):
            await self._set_property(name.removeprefix(PROPERTIES), action.after)
        elif name == ACTIONS:
            await self._client.call("POST", self._target.path, action.after)
        elif name in (ADMIN_ROLES, ALLOWED_CLUSTERS):
            await self._set_tenant(name, action.after)
        elif (field := policy_of(name)) is not None:
            await self._set_policy(*field, action.after)

    async def _create(self) -> Exists | None:
        """Creates the target; returns the refusal if it already exists."""
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
            elif target.kind == PERMISSION:
                await self._grant()
        except Exists as error:
            # Another client, or our own first attempt, created it: the cached lists are outdated.
            self._view.forget(target)
            return error
        except NotFound:
            above = target.above
            if above is not None:
                self._view.forget(above)
            raise
        self._view.created(target, partitions)
        return None

    async def _grant(self) -> None:
        """Grants the permission. The REST replaces all roles of a subscription at once."""
        target = self._target
        if not target.subscription:
            await self._client.call("POST", target.path, self._desired.fields[ACTIONS])
            return
        async with self._view.exclusive(target):
            granted = await subscription_roles(self._view, target)
            roles = sorted({*granted.get(target.subscription, ()), target.role})
            await self._client.call("POST", target.permissions_path, roles)

    def _namespace_document(self) -> dict[str, Any]:
        bundles = self._desired.at_birth.get("bundles")
        return {} if bundles is None else {"bundles": {"numBundles": bundles}}

    def _start(self) -> dict[str, Any]:
        earliest = self._desired.at_birth.get("initialPosition") == "Earliest"
        at = -1 if earliest else MESSAGE_ID_END
        return {"ledgerId": at, "entryId": at, "partitionIndex": -1}

    async def _tenant_document(self, observed: Mapping[str, Any]) -> dict[str, Any]:
        """A tenant's document with both lists: the REST accepts only the whole document."""
        wanted = self._desired.fields
        clusters = wanted.get(ALLOWED_CLUSTERS) or observed.get(ALLOWED_CLUSTERS)
        if not clusters:
            clusters = sorted(await self._view.clusters() - {GLOBAL_CLUSTER})
        roles = wanted.get(ADMIN_ROLES, observed.get(ADMIN_ROLES) or [])
        return {"adminRoles": roles, "allowedClusters": clusters}

    async def _set_tenant(self, name: str, value: list[str]) -> None:
        observed = dict(self._observed.fields) if self._observed is not None else {}
        document = await self._tenant_document(observed)
        await self._client.call("POST", self._target.path, {**document, name: value})

    async def _set_property(self, key: str, value: str | None) -> None:
        target, path = self._target, f"{self._target.path}/properties"
        if target.kind == SUBSCRIPTION:
            # The REST replaces all properties, so those of others are sent back unchanged.
            stored = dict(await self._client.find(path) or {})
            wanted = {**stored, key: value}
            if value is None:
                del wanted[key]
            await self._client.call("PUT", path, wanted)
        elif value is not None:
            await self._client.call("PUT", path, {key: value})
        elif target.kind == NAMESPACE:
            await self._delete(f"{target.path}/property/{quote(key, safe='')}")
        else:
            await self._delete(path, {"key": key})

    async def _register_schema(self) -> None:
        answer = await self._client.call(
            "POST", f"{schema_path(self._target)}/schema", schema_body(self._desired)
        )
        version = ((answer or {}).get("version") or {}).get("version")
        self._schema_version = version if isinstance(version, int) else None

    async def _set_policy(self, policy: Policy, key: str, value: Any) -> None:
        level = Level.NAMESPACE if self._target.kind == NAMESPACE else Level.TOPIC
        rest, undefined = rest_of(policy, level), policy.undefined_at(level)
        assert rest is not None  # noqa: S101  `desired_of` has checked the level
        base = self._target.path
        query = {rest.keyed_by: key} if rest.keyed_by else {}
        if value is not None:
            await self._client.call(
                rest.set_verb, f"{base}/{rest.set_path or rest.path}", value, query
            )
        elif undefined is not None:
            await self._client.call(
                rest.set_verb, f"{base}/{rest.set_path or rest.path}", undefined
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
            # Pulsar cannot unset a policy that always has a value, so its default is set.
            if error.status != METHOD_NOT_ALLOWED or policy.default is None:
                raise
            await self._client.call(
                rest.set_verb, f"{base}/{rest.set_path or rest.path}", policy.default, query
            )

    async def _delete(self, path: str, query: Mapping[str, str] | None = None) -> None:
        """Deletes what may not exist: 404 is success."""
        try:
            await self._client.call("DELETE", path, query=query)
        except NotFound:
            return
