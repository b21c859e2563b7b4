"""Which broker serves which topic: the interface that the rest of a broker uses.

`AlwaysOwned` implements it for a broker without a cluster, `ClusterOwnership` for a broker of a
cluster. Ownership is by bundle: a broker owns a bundle while its claim, a record in the metadata
store under the broker's lease, exists. `ServedTopics` is the opposite direction: what the ownership
does to the topics that are open on this broker.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.ownership.bundles import Bundle, RingTopic
from magnetar.broker.ownership.location import Located
from magnetar.broker.ownership.records import BrokerRecord
from magnetar.broker.ownership.split_algorithms import TopicLoad
from magnetar.core.names import TopicName

if TYPE_CHECKING:
    from magnetar.broker.ownership.claims import Claim

Inside = Callable[[RingTopic], bool]
"""Selects open topics, for example those of a bundle."""

Choose = Callable[[Bundle, Sequence[BrokerRecord], Mapping[str, int], str], str | None]
"""(bundle, candidate brokers, number of owned bundles by broker id, own id) → the chosen id."""


INACTIVE_DESTINATION: Final = "Not allowed unload namespace bundle to inactive destination broker"
"""Pulsar's text if the broker that a bundle is to move to does not exist, or takes no bundles."""


class Rules(Protocol):
    """Which brokers may own the bundles of a namespace, as administrators have set it."""

    async def run(self) -> None:
        """Follows the rules until the store is closed."""

    async def ready(self) -> None:
        """Returns once all rules are in force."""

    @property
    def active(self) -> bool:
        """Whether there is any rule."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` after each change."""

    def allowed(self, namespace: str, brokers: Sequence[str]) -> Collection[str]:
        """Returns the ids of the brokers that may own its bundles, of those that live."""

    def misplaced(self, namespace: str, own: str, brokers: Sequence[str]) -> bool:
        """Whether a bundle of the namespace must leave the broker `own` for another one."""

    def preferred(
        self, namespace: str, brokers: Sequence[str], owners: Mapping[str, Collection[str]]
    ) -> Collection[str]:
        """Returns the brokers on which a bundle spreads its namespace's anti-affinity group best.

        `owners` has the namespaces of the group by the brokers of their bundles.
        """

    def policy_name(self, namespace: str) -> str:
        """Returns the name of the namespace's isolation policy, empty if it has none."""

    def take_unloading(self) -> Callable[[str, int], bool]:
        """Returns whether a changed policy unloads (namespace, revision of a claim); forgets it."""


class Ownership(Protocol):
    """Decides which topics this broker serves, and finds the owners of all others."""

    always: bool
    """Whether this broker owns every topic, because there are no other brokers."""

    def owned(self) -> "Mapping[Bundle, Claim]":
        """Returns this broker's claims by bundle; empty if it owns everything without claims."""

    def owns(self, name: TopicName) -> bool:
        """Whether this broker may serve the topic now.

        Never asks the store; false while the lease is in doubt.
        """

    def tenure(self, name: TopicName) -> int | None:
        """Returns a number of the time for which this broker owns the topic; None if it may not
        serve it now.

        If the topic was lost meanwhile, the number is another one: what was read before is stale.
        """

    async def require(self, name: TopicName) -> None:
        """Raises ServiceNotReady unless this broker owns the topic; its client looks it up again.

        Claims nothing. Reads the store once if the bundle may just have been handed over.
        """

    async def doubt(self, name: TopicName) -> None:
        """Checks the topic's claim against the store, after signs of another owner.

        If the claim is gone, this broker abandons the topics of the bundle.
        """

    async def require_owned(self, name: TopicName, *, authoritative: bool = False) -> None:
        """Like `require`, for REST: claims an unowned topic, or raises NotOwned with its owner.

        `authoritative`: a broker redirected the client here, so this one claims the topic itself.
        """

    async def locate(self, name: TopicName, *, authoritative: bool) -> Located:
        """Returns the broker that serves the topic; gets an unowned topic claimed.

        Raises ServiceNotReady if no owner is found in time, TopicNotFound without the namespace.
        `authoritative` as in `require_owned`.
        """

    async def unload(self, bundle: Bundle | str, destination: str | None = None) -> str | None:
        """Closes the bundle's topics here and hands it over; returns the new owner's id.

        Without `destination`, the best other broker gets the bundle. None: no broker owns it, and
        the next look-up assigns it. Raises NotFound if the bundle is not this broker's, Conflict
        during another unload or split, and PreconditionFailed for an unsuitable destination.
        """

    async def split(
        self,
        bundle: Bundle | str,
        algorithm: str = "range_equally_divide",
        positions: Sequence[int] = (),
    ) -> list[Bundle]:
        """Splits a bundle of this broker and returns the parts; its topics stay open.

        Raises NotFound and Conflict as `unload` does, and PreconditionFailed if the algorithm is
        unknown or finds no position.
        """


class ServedTopics(Protocol):
    """The topics that are open on this broker, as the ownership controls them."""

    def suspend(self) -> None:
        """Pauses all topics: they accept and send nothing. Clients get no notice."""

    def resume(self) -> None:
        """Resumes all paused topics."""

    def abandon(self, inside: Inside) -> None:
        """Closes topics at once without another write; their clients look them up again."""

    async def drain(self, bundle: Bundle) -> None:
        """Closes the bundle's topics with everything durable, but does not notify clients yet."""

    def dismiss(self, inside: Inside, destination: BrokerRecord | None) -> None:
        """Notifies the clients of drained topics, with the new owner if it is known."""

    def loads(self, inside: Inside) -> list[TopicLoad]:
        """Returns the selected topics with their traffic."""
