"""Authentication by the name of a plugin and a text of parameters, as Pulsar configures it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from magnetar.client.auth.api import Authentication, NoAuthentication
from magnetar.client.auth.basic import Basic
from magnetar.client.auth.certificate import ClientCertificate
from magnetar.client.auth.oauth2 import OAuth2
from magnetar.client.auth.token import Token
from magnetar.client.errors import InvalidConfiguration

_PREFIX: Final = "org.apache.pulsar.client.impl.auth."
_CLASSES: Final = {
    "AuthenticationToken": "token",
    "AuthenticationBasic": "basic",
    "AuthenticationTls": "tls",
    "AuthenticationDisabled": "none",
    "oauth2.AuthenticationOAuth2": "oauth2",
}
"""Classes of Java's client, without their package, and the short names of its other clients."""


def authentication_of(plugin: str, parameters: str) -> Authentication:
    """Returns the authentication of a plugin; raises InvalidConfiguration for an unknown one."""
    name = plugin.removeprefix(_PREFIX)
    kind = _CLASSES.get(name, name.lower())
    if kind == "token":
        return Token(parameters)
    if kind == "basic":
        named = _json(parameters)
        user = named.get("userId", named.get("username"))
        return Basic(*(_text(plugin, value) for value in (user, named.get("password"))))
    if kind == "tls":
        is_json = parameters.lstrip().startswith("{")
        pairs: Mapping[str, Any] = _json(parameters) if is_json else _pairs(parameters)
        files = (pairs.get("tlsCertFile"), pairs.get("tlsKeyFile"))
        return ClientCertificate(*(_text(plugin, value) for value in files))
    if kind == "oauth2":
        return OAuth2.from_parameters(parameters)
    if kind == "none":
        return NoAuthentication()
    raise InvalidConfiguration(
        f"The authentication plugin {plugin} is not supported: use token, basic, tls or oauth2, or "
        "the name of its class in Java's client"
    )


def _json(parameters: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(parameters, type=dict[str, Any])
    except msgspec.MsgspecError:
        # Not the text of the error, which may have a part of a secret.
        raise InvalidConfiguration(
            "The parameters of the authentication plugin are not a JSON object"
        ) from None


def _pairs(parameters: str) -> Mapping[str, str]:
    return dict(pair.partition(":")[::2] for pair in parameters.split(","))


def _text(plugin: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidConfiguration(f"The parameters of the plugin {plugin} are incomplete")
    return value
