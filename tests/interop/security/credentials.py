"""Keys, certificates, users and tokens of the scenarios, and the settings of a server for them.

The settings are Pulsar's; both servers get the same.
"""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.support.certificates import Authority, Files
from tests.support.issuer import METADATA, TOKEN, Issuer, issuer

from .table import Scenario

ADMIN: Final = "admin"
GUEST: Final = "guest"
"""A role without grants."""
ROLES: Final = {"token": "user", "basic": "shop", "tls": "certified", "oauth2": "service"}
"""The role with grants, by method."""
PASSWORD: Final = "the password of a test"  # noqa: S105
LEAVER: Final = "leaver"
"""A user that exists at first only."""
HOST: Final = "localhost"
OTHER_HOST: Final = "elsewhere"
TOKEN_LIFE_S: Final = 3_600
_CLASSES: Final = "org.apache.pulsar.client.impl.auth."
_PROVIDERS: Final = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
# By `openssl passwd -apr1`: both servers read this format.
_HASH: Final = "$apr1$magnetar$04MO2IVC3Cznp1v3OCSs7/"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client presents."""

    plugin: str
    """Pulsar's class of the client, empty for none."""
    parameters: dict[str, str]
    """With the spellings of all clients."""


class Realm:
    """Everything that proves an identity, in files under `root`."""

    def __init__(self, root: Path, web: Issuer) -> None:
        self.root = root
        self.web = web
        self.ca, self._other_ca = Authority(root), Authority(root, "other")
        self._server = self.ca.issue("server", (HOST,))
        self._clients_ca = root / "clients-ca.pem"
        self._users, self._public = root / ".htpasswd", root / "public.key"
        role, other = ROLES["tls"], self._other_ca
        self._certificates: dict[str, Files] = {
            "right": self.ca.issue(role),
            "revoked": self.ca.issue(role),
            "ungranted": self.ca.issue(GUEST),
            "expired": self.ca.issue(role, days=-1),
            "wrong-authority": other.issue(role),
            "renewed": other.issue(role),
        }
        self._forger = rsa.generate_private_key(65_537, 2_048)
        self._accept(self.ca, (ROLES["basic"], GUEST, LEAVER))
        self._tokens = {method: self._made(ROLES[method]) for method in ("token", "oauth2")}
        self._publish()

    def settings(self) -> dict[str, str]:
        """Returns the settings of a server, with Pulsar's names."""
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticationProviders": ",".join(
                _PROVIDERS + name for name in ("Token", "Basic", "Tls")
            ),
            "superUserRoles": ADMIN,
            "tokenPublicKey": f"file://{self._public}",
            "basicAuthConf": f"file://{self._users}",
            "tlsCertificateFilePath": str(self._server.cert),
            "tlsKeyFilePath": str(self._server.key),
            "tlsTrustCertsFilePath": str(self._clients_ca),
            "tlsCertRefreshCheckDurationSec": "1",
        }

    def name_server(self, host: str) -> None:
        """Replaces the server's certificate by one that names this host."""
        self._server.replace_by(self.ca.issue("server", (host,)))

    def revoke(self) -> None:
        """Replaces the key of tokens and the CA of clients, and deletes the user LEAVER.

        Tokens of the case `renewed` are signed with the new key.
        """
        self._accept(self._other_ca, (ROLES["basic"], GUEST))
        for method, tokens in self._tokens.items():
            tokens["renewed"] = self.token(ROLES[method])
        self._publish()

    def token(self, role: str, *, lives_s: float = TOKEN_LIFE_S) -> str:
        """Returns a token that the server accepts now."""
        return _signed(self._key, role, lives_s)

    def credentials(self, scenario: Scenario) -> Credentials:
        """Returns what the client of a scenario presents."""
        method, case = scenario.method, scenario.case
        if case == "absent":
            return Credentials("", {})
        if method == "token":
            return Credentials(
                _CLASSES + "AuthenticationToken", {"token": self._tokens["token"][case]}
            )
        if method == "basic":
            return Credentials(_CLASSES + "AuthenticationBasic", _user_and_password(case))
        if method == "tls":
            files = self._certificates[case]
            names = {"tlsCertFile": str(files.cert), "tlsKeyFile": str(files.key)}
            return Credentials(_CLASSES + "AuthenticationTls", names)
        return Credentials(
            _CLASSES + "oauth2.AuthenticationOAuth2",
            {
                "type": "client_credentials",
                "issuerUrl": f"{self.web.url}/{case}",
                "issuer_url": f"{self.web.url}/{case}",
                "privateKey": f"file://{self._key_file(case)}",
                "private_key": f"file://{self._key_file(case)}",
                "audience": "pulsar",
            },
        )

    def trusted_by(self, scenario: Scenario) -> Path | str:
        """Returns the CA that the client of a scenario trusts, empty for none."""
        if scenario.connection == "plain":
            return ""
        return (self._other_ca if scenario.connection == "wrong-ca" else self.ca).file

    def _accept(self, clients: Authority, users: tuple[str, ...]) -> None:
        """Makes the server accept a new key of tokens, these users and these certificates."""
        self._key = rsa.generate_private_key(65_537, 2_048)
        public = self._key.public_key()
        self._public.write_bytes(
            public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        )
        self._users.write_text("".join(f"{user}:{_HASH}\n" for user in users))
        self._clients_ca.write_bytes(clients.file.read_bytes())

    def _made(self, role: str) -> dict[str, str]:
        """Returns a role's tokens by case."""
        return {
            "right": self.token(role),
            "revoked": self.token(role),
            "expired": self.token(role, lives_s=-60),
            "ungranted": self.token(GUEST),
            "forged": _signed(self._forger, role, TOKEN_LIFE_S),
        }

    def _publish(self) -> None:
        """Makes the OAuth 2.0 server issue its tokens, each by an issuer of its own."""
        answers: dict[str, tuple[int, object]] = {
            case: (200, {"access_token": token, "token_type": "Bearer", "expires_in": TOKEN_LIFE_S})
            for case, token in self._tokens["oauth2"].items()
        }
        refusal = {"error": "invalid_client", "error_description": "the secret is wrong"}
        for case, answer in (answers | {"wrong-secret": (401, refusal)}).items():
            self.web.answers[f"/{case}{TOKEN}"] = answer
            self.web.answers[f"/{case}{METADATA}"] = (
                200,
                {"issuer": f"{{issuer}}/{case}", "token_endpoint": f"{{issuer}}/{case}{TOKEN}"},
            )

    def _key_file(self, case: str) -> Path:
        path = self.root / f"oauth2-{case}.json"
        document = {
            "type": "client_credentials",
            "client_id": "shop",
            "client_secret": "of a test",
            "issuer_url": f"{self.web.url}/{case}",
        }
        path.write_text(json.dumps(document))
        return path


@contextmanager
def realm(root: Path) -> Iterator[Realm]:
    """Makes the credentials, with a running OAuth 2.0 server that issues some of them."""
    with issuer() as web:
        yield Realm(root, web)


def _signed(key: rsa.RSAPrivateKey, role: str, lives_s: float) -> str:
    return jwt.encode({"sub": role, "exp": int(time.time() + lives_s)}, key, "RS256")


def _user_and_password(case: str) -> dict[str, str]:
    users = {"unknown-user": "nobody", "ungranted": GUEST, "revoked": LEAVER}
    user = users.get(case, ROLES["basic"])
    password = "wrong" if case == "wrong-password" else PASSWORD
    return {"userId": user, "username": user, "password": password}


def basic_header(user: str) -> dict[str, str]:
    """Returns the HTTP header of a user with the right password."""
    raw = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    return {"Authorization": f"Basic {raw}"}
