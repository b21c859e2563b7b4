"""Answers about where a topic is served, and the errors that say: not here."""

from dataclasses import dataclass

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.names import TopicName


@dataclass(frozen=True, slots=True)
class Located:
    """Where a topic is served: here, where `broker` is None.

    With `redirect` nobody serves it yet: that broker is to be asked again, and will take it.
    """

    broker: BrokerRecord | None = None
    redirect: bool = False


HERE = Located()


def not_served(name: TopicName, broker_id: str) -> ServiceNotReady:
    """What a client hears that came to the wrong broker; the text is Pulsar's."""
    return ServiceNotReady(
        f"Namespace bundle for topic ({name}) not served by this instance:{broker_id}. "
        f"Please redo the lookup. Request is denied: namespace={name.namespace}"
    )


class NotOwned(MagnetarError):
    """Another broker serves the topic: REST redirects there.

    `authoritative` goes into the redirect: that broker takes the topic, and asks nobody else.
    """

    http_status = 307

    def __init__(self, name: TopicName, broker: BrokerRecord, *, authoritative: bool) -> None:
        super().__init__(f"{name} is served by {broker.broker_id}")
        self.broker = broker
        self.authoritative = authoritative

    @property
    def http_url(self) -> str:
        """Where the REST side of its owner is."""
        return self.broker.urls.http_url
