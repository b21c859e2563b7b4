"""The ownership of a broker without a cluster: it owns every topic, always.

Nothing is claimed, looked up in metadata, or guarded. A bundle can still be unloaded (its topics
are closed, and open again at the next request) and split.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.catalog.resources import Document, Resources
from magnetar.broker.ownership.api import INACTIVE_DESTINATION, ServedTopics
from magnetar.broker.ownership.bundles import Bundle, Ring, parts_of, with_split
from magnetar.broker.ownership.location import HERE, Located
from magnetar.broker.ownership.split_algorithms import split_positions
from magnetar.core.errors import Conflict, NotFound, PreconditionFailed
from magnetar.core.names import TopicName

if TYPE_CHECKING:
    from magnetar.broker.ownership.claims import Claim

_NO_CLAIMS: Final["Mapping[Bundle, Claim]"] = {}


class AlwaysOwned:
    """The `Ownership` of a broker without a cluster."""

    always: bool = True

    def __init__(self, resources: Resources, topics: ServedTopics) -> None:
        self._resources = resources
        self._topics = topics

    def owned(self) -> "Mapping[Bundle, Claim]":
        """Returns no claims: none are needed."""
        return _NO_CLAIMS

    def owns(self, name: TopicName) -> bool:  # noqa: ARG002 - every topic is owned
        """True for every topic."""
        return True

    def tenure(self, name: TopicName) -> int | None:  # noqa: ARG002 - every topic is owned
        """Returns the same number for every topic: none is ever lost."""
        return 0

    async def require(self, name: TopicName) -> None:
        """Returns: this broker owns every topic."""

    async def doubt(self, name: TopicName) -> None:
        """Does nothing: there can be no other owner."""

    async def require_owned(self, name: TopicName, *, authoritative: bool = False) -> None:
        """Returns: this broker owns every topic."""

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:  # noqa: ARG002
        """Returns HERE for every topic."""
        return HERE

    async def unload(self, bundle: Bundle | str, destination: str | None = None) -> str | None:
        """Closes the bundle's topics; no other broker can take them over."""
        bundle = await self._existing(bundle)
        if destination is not None:
            raise Conflict(INACTIVE_DESTINATION)
        try:
            await self._topics.drain(bundle)
        finally:
            self._topics.dismiss(bundle.holds, None)
        return None

    async def split(
        self,
        bundle: Bundle | str,
        algorithm: str = "range_equally_divide",
        positions: Sequence[int] = (),
    ) -> list[Bundle]:
        """Splits the bundle in the namespace's policies; its topics stay open."""
        bundle = await self._existing(bundle)
        loads = self._topics.loads(bundle.holds)
        cuts = split_positions(bundle, algorithm, loads, positions)
        if not cuts:
            raise PreconditionFailed(f"{bundle} cannot be split by {algorithm}")

        def cut(policies: Document) -> Document:
            return with_split(policies, bundle, cuts)

        await self._resources.update_policies(bundle.namespace, cut)
        return parts_of(bundle, cuts)

    async def _existing(self, bundle: Bundle | str) -> Bundle:
        bundle = Bundle.parse(bundle) if isinstance(bundle, str) else bundle
        policies = await self._resources.policies(bundle.namespace)
        if bundle not in Ring.of(bundle.namespace, policies):
            raise NotFound(f"{bundle} is not a bundle of its namespace")
        return bundle
