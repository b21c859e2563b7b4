"""Ownership as the rest of a broker sees it, and its form for a broker that is alone.

Alone, everything is owned, always: nothing is claimed, looked up in metadata, or guarded. A bundle
can still be unloaded (its topics are closed, and open again at the next request) and split.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from magnetar.broker.ownership.bundles import Bundle, Ring, with_split
from magnetar.broker.ownership.bundles import parts_of as parts
from magnetar.broker.ownership.claims import Claim
from magnetar.broker.ownership.located import HERE, Located
from magnetar.broker.ownership.ownership import ServedTopics
from magnetar.broker.ownership.splitting import split_positions
from magnetar.broker.resources import Document, Resources
from magnetar.core.errors import NotFound, PreconditionFailed
from magnetar.core.names import TopicName


class Ownership(Protocol):
    """See the module's text; the methods are described at `ClusterOwnership`."""

    always: bool
    """Whether there are no other brokers."""

    def owned(self) -> Mapping[Bundle, Claim]: ...

    def owns(self, name: TopicName) -> bool: ...

    async def require(self, name: TopicName) -> None: ...

    async def doubt(self, name: TopicName) -> None: ...

    async def require_owned(self, name: TopicName, *, authoritative: bool = False) -> None: ...

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located: ...

    async def unload(self, bundle: Bundle | str, destination: str | None = None) -> str | None: ...

    async def split(
        self,
        bundle: Bundle | str,
        algorithm: str = "range_equally_divide",
        positions: Sequence[int] = (),
    ) -> list[Bundle]: ...


class AlwaysOwned:
    """See the module's text."""

    always: bool = True

    def __init__(self, resources: Resources, topics: ServedTopics) -> None:
        self._resources = resources
        self._topics = topics

    def owned(self) -> Mapping[Bundle, Claim]:
        """Nothing is claimed."""
        return _NOTHING

    def owns(self, name: TopicName) -> bool:  # noqa: ARG002 - whichever it is
        return True

    async def require(self, name: TopicName) -> None:
        """Every topic is served here."""

    async def doubt(self, name: TopicName) -> None:
        """Nobody else can have it."""

    async def require_owned(self, name: TopicName, *, authoritative: bool = False) -> None:
        """Every topic is served here."""

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:  # noqa: ARG002
        return HERE

    async def unload(self, bundle: Bundle | str, destination: str | None = None) -> str | None:
        """Closes the topics; there is nobody else to give them to."""
        bundle = await self._known(bundle)
        if destination is not None:
            raise PreconditionFailed(f"{destination} is no other broker that takes bundles")
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
        """Changes the policies; no topic notices."""
        bundle = await self._known(bundle)
        loads = self._topics.loads(bundle.holds)
        cuts = split_positions(bundle, algorithm, loads, positions)
        if not cuts:
            raise PreconditionFailed(f"{bundle} cannot be split by {algorithm}")

        def cut(policies: Document) -> Document:
            return with_split(policies, bundle, cuts)

        await self._resources.update_policies(bundle.namespace, cut)
        return parts(bundle, cuts)

    async def _known(self, bundle: Bundle | str) -> Bundle:
        bundle = Bundle.parse(bundle) if isinstance(bundle, str) else bundle
        policies = await self._resources.policies(bundle.namespace)
        if bundle not in Ring.of(bundle.namespace, policies):
            raise NotFound(f"{bundle} is not a bundle of its namespace")
        return bundle


_NOTHING: Final[Mapping[Bundle, Claim]] = {}
