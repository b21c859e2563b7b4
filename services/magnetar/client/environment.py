"""Options of a client in a URL's query, or in environment variables.

pulsar+ssl://broker:6651?token=file:/run/secrets/token&trust=/etc/ca.pem&listener=internal
"""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from magnetar.client.auth import Authentication, Basic, ClientCertificate, OAuth2, Token
from magnetar.client.errors import InvalidConfiguration
from magnetar.client.network.tls import Tls
from magnetar.client.options import ClientKeywords

_TRUE: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _switch(text: str) -> bool:
    try:
        return _TRUE[text.lower()]
    except KeyError:
        raise ValueError("use true or false") from None


_PLAIN: Final[dict[str, Callable[[str], Any]]] = {
    "listener": str,
    "operation_timeout_s": float,
    "connect_timeout_s": float,
    "keep_alive_s": float,
    "connections_per_broker": int,
    "memory_limit_bytes": int,
    "backoff_max_s": float,
}
"""Options that are fields of `ClientOptions`."""
_OTHERS: Final = (
    "oauth2", "token", "user", "password", "certificate", "key", "trust", "verify_hostname",
    "insecure",
)  # fmt: skip
OPTION_NAMES: Final = (*_PLAIN, *_OTHERS)
PREFIX: Final = "MAGNETAR_"
URL_VARIABLES: Final = ("MAGNETAR_URL", "PULSAR_SERVICE_URL")


def parse_url(url: str) -> tuple[str, ClientKeywords]:
    """Returns the service URL without its query, and the options of the query."""
    service_url, _, query = url.partition("?")
    return service_url.rstrip("/"), options_of(dict(parse_qsl(query, keep_blank_values=True)))


def parse_environment(environment: Mapping[str, str]) -> tuple[str, ClientKeywords]:
    """Returns the service URL and options of MAGNETAR_URL, MAGNETAR_TOKEN and the like."""
    url = next((environment[name] for name in URL_VARIABLES if environment.get(name)), "")
    if not url:
        raise InvalidConfiguration(
            "Set MAGNETAR_URL to the service URL, such as pulsar://HOST:6650"
        )
    service_url, options = parse_url(url)
    named = {
        name: environment[f"{PREFIX}{name.upper()}"]
        for name in OPTION_NAMES
        if environment.get(f"{PREFIX}{name.upper()}")
    }
    return service_url, {**options_of(named), **options}


def options_of(named: Mapping[str, str]) -> ClientKeywords:
    """Returns the client's options for texts by name; raises InvalidConfiguration."""
    options: dict[str, Any] = {}
    for name, text in named.items():
        if name not in OPTION_NAMES:
            raise InvalidConfiguration(
                f"{name} is not an option of a URL; the options are {', '.join(OPTION_NAMES)}"
            )
        if name in _PLAIN:
            try:
                options[name] = _PLAIN[name](text)
            except ValueError as error:
                raise InvalidConfiguration(f"{name}: {error}") from error
    methods: list[Authentication] = []
    if "token" in named:
        methods.append(Token(named["token"]))
    if "oauth2" in named:
        methods.append(OAuth2.from_parameters(named["oauth2"]))
    if "user" in named or "password" in named:
        methods.append(Basic(named.get("user", ""), named.get("password", "")))
    if "certificate" in named or "key" in named:
        if not (named.get("certificate") and named.get("key")):
            raise InvalidConfiguration("certificate and key go together")
        methods.append(ClientCertificate(named["certificate"], named["key"]))
    if len(methods) > 1:
        raise InvalidConfiguration(
            "Give one way to authenticate: token, oauth2, user, or certificate"
        )
    if methods:
        options["auth"] = methods[0]
    if {"trust", "verify_hostname", "insecure"} & named.keys():
        try:
            options["tls"] = Tls(
                trust_certificates_file=named.get("trust", ""),
                verify_hostname=_switch(named.get("verify_hostname", "true")),
                allow_insecure=_switch(named.get("insecure", "false")),
            )
        except ValueError as error:
            raise InvalidConfiguration(f"verify_hostname, insecure: {error}") from error
    return options  # type: ignore[return-value]
