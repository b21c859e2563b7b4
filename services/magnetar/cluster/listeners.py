"""The addresses that a broker is known by: one, or one for each listener that clients name.

`advertised_listeners` is Pulsar's (PIP-61): `name:pulsar://host:port`, several with commas; the
same name may come again with `pulsar+ssl`, `http` and `https`. Brokers among themselves, and
clients that name no listener, use the one that `internal_listener_name` names, or the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgspec

from magnetar.broker.ownership.records import Urls
from magnetar.broker.setting import SettingsError

_FIELDS: Final = {
    "pulsar": "service_url",
    "pulsar+ssl": "service_url_tls",
    "http": "http_url",
    "https": "http_url_tls",
}


@dataclass(frozen=True, slots=True)
class Advertised:
    """See the module's text. `address` is where brokers reach this one's binary port."""

    urls: Urls
    address: tuple[str, int]
    listeners: Mapping[str, Urls]


def advertised(
    texts: Sequence[str], internal: str | None, host: str, port: int, http_port: int
) -> Advertised:
    """What a broker registers; raises SettingsError naming what is wrong."""
    own = Urls(f"pulsar://{host}:{port}", f"http://{host}:{http_port}")
    listeners = parsed(texts, own.http_url)
    if not listeners:
        if internal is not None:
            raise SettingsError("internal_listener_name is set, and advertised_listeners is not")
        return Advertised(own, (host, port), {})
    name = internal if internal is not None else next(iter(listeners))
    if name not in listeners:
        known = ", ".join(listeners)
        raise SettingsError(f"internal_listener_name is {name}; advertised_listeners has {known}")
    urls = listeners[name]
    reached = urlsplit(urls.service_url)
    return Advertised(urls, (reached.hostname or host, reached.port or port), listeners)


def parsed(texts: Sequence[str], http_url: str) -> dict[str, Urls]:
    """The listeners by name, in their order; one without an HTTP address has `http_url`."""
    found: dict[str, Urls] = {}
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
        urls = found.get(name, Urls("", ""))
        if getattr(urls, field):
            raise SettingsError(f"advertised_listeners: {name} has two {parts.scheme} addresses")
        found[name] = msgspec.structs.replace(urls, **{field: url})
    for name, urls in found.items():
        if not urls.service_url:
            raise SettingsError(f"advertised_listeners: {name} has no pulsar:// address")
        if not urls.http_url:
            found[name] = msgspec.structs.replace(urls, http_url=http_url)
    return found
