"""The addresses that a broker registers."""

import pytest

from magnetar.broker.ownership.records import Urls
from magnetar.cluster.listeners import advertised
from magnetar.settings.field import SettingsError

TWO = ("internal:pulsar://10.0.0.1:6650", "external:pulsar://a.example:16650")


OWN = Urls("pulsar://h:6650", "http://h:8080")


def test_without_listeners_the_broker_advertises_its_own_address() -> None:
    addresses = advertised((), None, OWN)
    assert addresses.urls == Urls("pulsar://h:6650", "http://h:8080")
    assert addresses.address == ("h", 6650)
    assert not addresses.listeners


def test_the_first_listener_is_internal_unless_another_is_named() -> None:
    addresses = advertised(TWO, None, OWN)
    assert addresses.urls.service_url == "pulsar://10.0.0.1:6650"
    assert addresses.address == ("10.0.0.1", 6650)
    assert list(addresses.listeners) == ["internal", "external"]
    addresses = advertised(TWO, "external", OWN)
    assert addresses.address == ("a.example", 16650)


def test_a_listener_has_an_address_for_each_scheme() -> None:
    more = ("external:pulsar+ssl://a.example:16651", "external:https://a.example:8443")
    external = advertised((*TWO, *more), None, OWN).listeners["external"]
    assert external.service_url_tls == "pulsar+ssl://a.example:16651"
    assert external.http_url_tls == "https://a.example:8443"
    assert external.http_url == "http://h:8080"


@pytest.mark.parametrize(
    ("texts", "internal", "named"),
    [
        (("nothing",), None, "nothing"),
        (("a:pulsar://h",), None, "a:pulsar://h"),
        (("a:pulsar://h:port",), None, "h:port"),
        (("a:kafka://h:1",), None, "kafka"),
        ((":pulsar://h:1",), None, ":pulsar"),
        (("a:pulsar://h:1", "a:pulsar://g:1"), None, "two pulsar"),
        (("a:http://h:1",), None, "no pulsar://"),
        (TWO, "other", "internal, external"),
        ((), "internal", "internal_listener_name"),
    ],
)
def test_an_invalid_listener_is_named(
    texts: tuple[str, ...], internal: str | None, named: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        advertised(texts, internal, OWN)
    assert named in str(raised.value)
