"""The answer to a look-up, and the errors of a broker that does not serve the topic."""

from dataclasses import dataclass

from magnetar.broker.ownership.records import BrokerRecord
from magnetar.core.errors import MagnetarError, ServiceNotReady
from magnetar.core.names import TopicName


@dataclass(frozen=True, slots=True)
class Located:
    """The broker that serves a topic; this broker if `broker` is None.

    With `redirect`, no broker serves it yet: `broker` claims it when the client asks there.
    """

    broker: BrokerRecord | None = None
    redirect: bool = False


HERE = Located()
"""This broker serves the topic."""


def not_served(name: TopicName, broker_id: str) -> ServiceNotReady:
    """Returns the error for a client that came to the wrong broker; the text is Pulsar's."""
    return ServiceNotReady(
        f"Namespace bundle for topic ({name}) not served by this instance:{broker_id}. "
        f"Please redo the lookup. Request is denied: namespace={name.namespace}"
    )


class NotOwned(MagnetarError):
    """Another broker serves the topic: REST redirects there.

    `authoritative` is passed on in the redirect: that broker claims the topic itself.
    """

    http_status = 307

    def __init__(self, name: TopicName, broker: BrokerRecord, *, authoritative: bool) -> None:
        super().__init__(f"{name} is served by {broker.broker_id}")
        self.broker = broker
        self.authoritative = authoritative

    @property
    def http_url(self) -> str:
        """The owner's URL for the REST API."""
        return self.broker.urls.http_url
