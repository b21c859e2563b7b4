"""Parses the plugin and parameters that configure credentials, in the forms of Pulsar's clients.

| plugin | parameters |
|---|---|
| `token`, AuthenticationToken | `token:…`, `file:///…`, a token, `{"token": …}`, `{"file": …}` |
| `basic`, AuthenticationBasic | `{"userId" or "username": …, "password": …}`, `user:password` |
| `tls`, AuthenticationTls | `tlsCertFile:…,tlsKeyFile:…`, the same as JSON, or nothing |
| `oauth2`, AuthenticationOAuth2 | JSON (`oauth2`) |

Pulsar's clients ignore unknown parameters; here they are errors.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from magnetar.core.clock import SystemClock
from magnetar.security.credentials.plugins import (
    BasicCredentials,
    NoCredentials,
    Plugin,
    TlsCredentials,
    TokenCredentials,
)
from magnetar.security.errors import ConfigurationError
from magnetar.security.secret import Secret
from magnetar.security.source import KeySource

_PACKAGE: Final = "org.apache.pulsar.client.impl.auth."
PLUGINS: Final = {
    "token": _PACKAGE + "AuthenticationToken",
    "basic": _PACKAGE + "AuthenticationBasic",
    "tls": _PACKAGE + "AuthenticationTls",
    "oauth2": _PACKAGE + "oauth2.AuthenticationOAuth2",
}
"""The supported plugins and their Java classes."""

DISABLED: Final = ("", "none", _PACKAGE + "AuthenticationDisabled")


class Credentials:
    """The credentials that this process presents to others."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    @classmethod
    def parse(cls, plugin: str, parameters: Secret | str) -> "Credentials":
        """Parses a plugin with its parameters; raises ConfigurationError.

        An empty plugin presents nothing. `parameters` may be a text; then the caller must not show
        it anywhere.
        """
        secret = parameters if isinstance(parameters, Secret) else Secret(parameters)
        try:
            text = secret.reveal_text().strip()
        except UnicodeDecodeError:
            raise ConfigurationError(f"the parameters of {plugin} are not text") from None
        return cls(_plugin(plugin.strip(), text))

    @property
    def uses_certificate(self) -> bool:
        """Whether the credentials are the client certificate of the connection."""
        return isinstance(self._plugin, TlsCredentials)

    @property
    def certificate_files(self) -> tuple[str, str] | None:
        """The files of the client certificate and its key; None if the parameters name none."""
        plugin = self._plugin
        if isinstance(plugin, TlsCredentials) and plugin.certificate_file:
            return plugin.certificate_file, plugin.key_file
        return None

    async def method_and_data(self) -> tuple[str, Secret]:
        """Returns the method and the data of CONNECT and AUTH_RESPONSE.

        Raises CredentialsUnavailable.
        """
        return await self._plugin.method_and_data()

    async def headers(self) -> dict[str, str]:
        """Returns the headers of an HTTP request; raises CredentialsUnavailable."""
        return await self._plugin.headers()

    async def close(self) -> None:
        """Closes connections to an identity provider; idempotent."""
        await self._plugin.close()


def _plugin(name: str, text: str) -> Plugin:
    short = next((key for key, java in PLUGINS.items() if name in (key, java)), name)
    if short in DISABLED:
        return NoCredentials()
    if short == "token":
        return _token(text)
    if short == "basic":
        return _basic(text)
    if short == "tls":
        return _tls(text)
    if short == "oauth2":
        return _oauth2(text)
    supported = ", ".join(f"{key} ({java})" for key, java in PLUGINS.items())
    raise ConfigurationError(f"the plugin {name} is not supported; supported: {supported}")


def _token(text: str) -> Plugin:
    if text.startswith("{"):
        values = _json(text, "token", ("token", "file"))
        if len(values) != 1:
            raise ConfigurationError("the parameters of token should have either token or file")
        if "file" in values:
            return TokenCredentials(KeySource.parse("file", _file_url(values["file"])))
        text = values["token"]
    if text.startswith("file:"):
        return TokenCredentials(KeySource.parse("the token's file", text))
    token = text.removeprefix("token:").strip()
    if not token:
        raise ConfigurationError("the parameters of token have no token")
    return TokenCredentials(Secret(token))


def _file_url(path: str) -> str:
    return path if path.startswith("file:") else f"file://{path}"


def _basic(text: str) -> Plugin:
    if not text.startswith("{"):
        user, colon, password = text.partition(":")
        if not colon:
            raise ConfigurationError("the parameters of basic should be JSON or user:password")
        return _checked_basic(user, password)
    values = _json(text, "basic", ("userId", "username", "password", "method"))
    if values.get("method", "basic") != "basic":
        raise ConfigurationError("the parameters of basic have a method other than basic")
    users = [values[key] for key in ("userId", "username") if key in values]
    if len(users) != 1 or "password" not in values:
        raise ConfigurationError("the parameters of basic need userId (or username) and password")
    return _checked_basic(users[0], values["password"])


def _checked_basic(user: str, password: str) -> Plugin:
    # The receiver splits at the colon, and Pulsar's accepts exactly one.
    if not user or ":" in user or ":" in password:
        raise ConfigurationError("a user name, and a password, cannot have a colon or be empty")
    return BasicCredentials(user, Secret(password))


def _tls(text: str) -> Plugin:
    if not text:
        # The connection has a certificate of other settings.
        return TlsCredentials("", "")
    if text.startswith("{"):
        values = _json(text, "tls", ("tlsCertFile", "tlsKeyFile"))
    else:
        values = _pairs(text)
    if set(values) != {"tlsCertFile", "tlsKeyFile"}:
        raise ConfigurationError("the parameters of tls need tlsCertFile and tlsKeyFile")
    return TlsCredentials(values["tlsCertFile"], values["tlsKeyFile"])


def _oauth2(text: str) -> Plugin:
    # These modules import httpx, which a process without OAuth 2.0 need not load.
    from magnetar.security.credentials.oauth2 import OAuth2Credentials
    from magnetar.security.credentials.oauth2_parameters import JAVA_NAMES, KNOWN, oauth2_config

    values = _json(text, "oauth2", (*KNOWN, *JAVA_NAMES))
    by_java_name = {JAVA_NAMES.get(name, name): value for name, value in values.items()}
    if len(by_java_name) < len(values):
        raise ConfigurationError("the parameters of oauth2 name a parameter in both spellings")
    return OAuth2Credentials(oauth2_config(by_java_name), SystemClock())


def _pairs(text: str) -> dict[str, str]:
    """Parses `key:value,key:value`."""
    values: dict[str, str] = {}
    for part in text.split(","):
        key, colon, value = part.partition(":")
        if not colon:
            raise ConfigurationError("the parameters should be key:value pairs or JSON")
        values[key.strip()] = value.strip()
    return values


def _json(text: str, plugin: str, known: tuple[str, ...]) -> Mapping[str, str]:
    """Decodes a JSON object of texts with known keys; raises ConfigurationError."""
    try:
        values = msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        raise ConfigurationError(
            f"the parameters of {plugin} are not a JSON object of texts"
        ) from None
    if unknown := sorted(set(values) - set(known)):
        raise ConfigurationError(
            f"the parameters of {plugin} have {', '.join(unknown)}; known: {', '.join(known)}"
        )
    return values
