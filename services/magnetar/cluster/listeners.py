"""The addresses that a broker advertises: a single one, or one per listener.

`advertised_listeners` is Pulsar's setting (PIP-61): `name:pulsar://host:port`, separated by commas;
a name may be repeated with `pulsar+ssl`, `http` and `https`. Other brokers, and clients that name
no listener, use the listener of `internal_listener_name`, or else the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from magnetar.broker.ownership.records import Urls
from magnetar.settings.field import SettingsError

_FIELDS: Final = {
    "pulsar": "service_url",
    "pulsar+ssl": "service_url_tls",
    "http": "http_url",
    "https": "http_url_tls",
}


@dataclass(frozen=True, slots=True)
class Advertised:
    """The advertised addresses of a broker. Other brokers reach its binary port at `address`."""

    urls: Urls
    address: tuple[str, int]
    listeners: Mapping[str, Urls]

    @property
    def broker_id(self) -> str:
        """Host and port of the HTTP address, the plain one if there are both, as in Pulsar."""
        return (self.urls.http_url or self.urls.http_url_tls).partition("://")[2]


def advertised(texts: Sequence[str], internal: str | None, own: Urls) -> Advertised:
    """Returns the addresses that a broker registers; raises SettingsError.

    `own` are the addresses of its ports.
    """
    listeners = parsed(texts, own)
    if not listeners:
        if internal is not None:
            raise SettingsError("internal_listener_name is set, and advertised_listeners is not")
        return Advertised(own, _reached(own), {})
    name = internal if internal is not None else next(iter(listeners))
    if name not in listeners:
        names = ", ".join(listeners)
        raise SettingsError(f"internal_listener_name is {name}; advertised_listeners has {names}")
    urls = listeners[name]
    return Advertised(urls, _reached(urls), listeners)


def _reached(urls: Urls) -> tuple[str, int]:
    parts = urlsplit(urls.service_url or urls.service_url_tls)
    return parts.hostname or "", parts.port or 0


def parsed(texts: Sequence[str], own: Urls) -> dict[str, Urls]:
    """Returns the listeners by name, in order; one without an HTTP address gets those of `own`."""
    listeners: dict[str, Urls] = {}
    for text in texts:
        name, colon, url = text.partition(":")
        parts = urlsplit(url)
        try:
            complete = bool(colon and name and parts.hostname and parts.port)
        except ValueError:
            complete = False
        if not complete or parts.scheme not in _FIELDS:
            raise SettingsError(
                f"advertised_listeners: {text!r} is not name:SCHEME://host:port with one of "
                f"{', '.join(_FIELDS)}"
            )
        field = _FIELDS[parts.scheme]
        urls = listeners.get(name, Urls("", ""))
        if getattr(urls, field):
            raise SettingsError(f"advertised_listeners: {name} has two {parts.scheme} addresses")
        listeners[name] = msgspec.structs.replace(urls, **{field: url})
    for name, urls in listeners.items():
        if not urls.service_url and not urls.service_url_tls:
            raise SettingsError(
                f"advertised_listeners: {name} has no pulsar:// or pulsar+ssl:// address"
            )
        if not urls.http_url:
            listeners[name] = msgspec.structs.replace(
                urls, http_url=own.http_url, http_url_tls=urls.http_url_tls or own.http_url_tls
            )
    return listeners
