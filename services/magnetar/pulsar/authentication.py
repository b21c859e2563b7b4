"""Credentials, as the official client has them."""

import json
from collections.abc import Callable
from typing import Any, Final

from magnetar.client import errors
from magnetar.client.auth import Authentication as OwnAuthentication
from magnetar.client.auth import Basic, ClientCertificate, OAuth2, Token, TokenSupplier
from magnetar.pulsar.checks import check_type
from magnetar.pulsar.exceptions import OperationNotSupported

_PREFIX: Final = "org.apache.pulsar.client.impl.auth.Authentication"


class Authentication:
    """Base of the ways to authenticate; itself, one of them by its name in Pulsar's tools."""

    auth: OwnAuthentication

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:
        """`tls`, `token`, `basic` or `oauth2`, or the name of its class in Java.

        Shared libraries are refused. `authParamsString` is JSON, or `name:value,name:value`.
        """
        check_type(str, dynamicLibPath, "dynamicLibPath")
        check_type(str, authParamsString, "authParamsString")
        name = dynamicLibPath.removeprefix(_PREFIX).lower().removeprefix("oauth2.authentication")
        if name == "tls":
            named = _parameters(authParamsString)
            self.auth = AuthenticationTLS(named["tlsCertFile"], named["tlsKeyFile"]).auth
        elif name == "token":
            self.auth = Token(authParamsString)
        elif name == "basic":
            self.auth = AuthenticationBasic(auth_params_string=authParamsString).auth
        elif name == "oauth2":
            self.auth = AuthenticationOauth2(authParamsString).auth
        else:
            raise OperationNotSupported(
                f"magnetar.pulsar does not load the plugin {dynamicLibPath}: use tls, token, basic "
                "or oauth2"
            )


def _parameters(text: str) -> dict[str, str]:
    """Returns the parameters in a text; raises ValueError without those of TLS."""
    named: dict[str, str]
    if text.lstrip().startswith("{"):
        named = json.loads(text)
    else:
        named = dict(pair.partition(":")[::2] for pair in text.split(","))
    for name in ("tlsCertFile", "tlsKeyFile"):
        if not named.get(name):
            raise ValueError(f"authParamsString needs {name}")
    return named


class AuthenticationTLS(Authentication):
    """Authenticates with a client certificate."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        check_type(str, certificate_path, "certificate_path")
        check_type(str, private_key_path, "private_key_path")
        self.auth = ClientCertificate(certificate_path, private_key_path)


class AuthenticationToken(Authentication):
    """Authenticates with a token, or with what a function returns."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not (isinstance(token, str) or callable(token)):
            raise ValueError("Argument token must be of type str, or a function that returns one")
        self.auth = TokenSupplier(_supplier(token))


def _supplier(token: str | Callable[[], str]) -> Callable[[], str]:
    def supply() -> str:
        if isinstance(token, str):
            return token
        try:
            return token()
        except Exception as error:
            raise ValueError(str(error) or repr(error)) from error  # an error of authentication

    return supply


class AuthenticationOauth2(Authentication):
    """Authenticates with tokens of OAuth 2.0 client credentials."""

    def __init__(self, auth_params_string: str) -> None:
        """JSON with `issuer_url`, `private_key`, `audience` and `scope`."""
        check_type(str, auth_params_string, "auth_params_string")
        try:
            self.auth = OAuth2.from_parameters(auth_params_string)
        except errors.InvalidConfiguration as error:
            raise ValueError(str(error)) from error


class AuthenticationBasic(Authentication):
    """Authenticates with a user name and a password."""

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        """`auth_params_string` is JSON of the other parameters, and replaces them."""
        if auth_params_string is not None:
            check_type(str, auth_params_string, "auth_params_string")
            named: dict[str, Any] = json.loads(auth_params_string)
            if not {"username", "password"} <= named.keys():
                raise RuntimeError("auth_params_string needs username and password")
            username, password = named["username"], named["password"]
            method = named.get("method", "basic")
        if not (isinstance(username, str) and isinstance(password, str)):
            raise ValueError("Arguments username and password must be of type str")
        check_type(str, method, "method")
        self.auth = _NamedBasic(username, password, method)


class _NamedBasic(Basic):
    """A user name and a password under another name of the method."""

    def __init__(self, user: str, password: str, method: str) -> None:
        super().__init__(user, password)
        self._method = method

    @property
    def method(self) -> str:
        return self._method


class AuthenticationAthenz(Authentication):
    """Not supported: raises OperationNotSupported."""

    def __init__(self, auth_params_string: str) -> None:
        raise OperationNotSupported(
            "magnetar.pulsar has no Athenz: use AuthenticationToken with a function that gets the "
            "role token, or AuthenticationOauth2"
        )
