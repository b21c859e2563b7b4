"""Mutated HTTP requests: of every route, with credentials of all kinds, broken in many ways.

A request starts from a route of the table, with a path, a query, headers and a body that a tool
could send. Some of it is then exchanged: names by encoded slashes, dots, NUL and other tenants';
methods; credentials; lengths; bytes. Everything follows from the seed.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from tests.security.rest import BROKER, SUPER, SUPER_PROXY, WRONG, expired, token

from magnetar.admin.app import DESCRIPTIONS
from magnetar.admin.rights.caller import ORIGINAL_HEADER, ROLE_HEADER
from magnetar.policies.policy import Level
from magnetar.policies.registry import at

MUTATED_SHARE: Final = 0.25
"""Of requests whose bytes are changed after they were built."""
PUBLIC: Final = frozenset({"/healthz", "/readyz", "/status.html", "/metrics"})
METHODS: Final = ("GET", "GET", "GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE")
KEEP_METHOD: Final = 0.7
LONG: Final = 9_000

_ROUTES: Final = tuple((route.method, route.path) for route in DESCRIPTIONS)
_POLICIES: Final = tuple(
    policy.name for level in (Level.NAMESPACE, Level.TOPIC) for policy in at(level)
)
_NAMES: Final = {
    "tenant": ("t1", "t2", "none", "..", "."),
    "namespace": ("n1", "none", "n2", ".."),
    "topic": ("a", "p", "p-partition-0", "p-partition-01", "none", "x/y", "..", "__change_events"),
    "domain": ("persistent", "non-persistent"),
    "subscription": ("s", "other", "a/b"),
    "bundle": ("0x00000000_0xffffffff", "0x00000000_0x40000000", "0xffffffff_0x00000000"),
    "cluster": ("standalone", "global", "far"),
    "role": ("ta", "prod", "*", "r"),
    "policy": _POLICIES,
}
_ODD: Final = (
    "%2e%2e", "%2F", "a%00b", "%ff%fe", "%c3%bc", "%E2%80%AE", "a%0d%0aX:1", "*", "%", "%zz", "-1",
    "0", "1", "99999999999999999999", "x" * 300, "", "+", "%2B", ";a=b", "a:b", "'\"<>",
)  # fmt: skip
_QUERIES: Final = (
    "", "", "authoritative=true", "applied=true", "isGlobal=true", "force=true", "mode=ALL",
    "destination=x", "limit=99999999999999999999", "a=%00", "authoritative=%ff", "&&==&", "a" * 400,
)  # fmt: skip
_BODIES: Final = (
    b"", b"{}", b"[]", b"null", b"0", b"-1", b"1", b'"a"', b"true", b'["produce","consume"]',
    b'{"adminRoles":["ta"],"allowedClusters":["standalone"]}', b'{"numBundles":4}',
    b'{"retentionTimeInMinutes":1,"retentionSizeInMB":1}', b'{"ledgerId":1,"entryId":0}',
    b'{"type":"JSON","schema":"{}","properties":{}}', b"99999999999999999999999", b"1e999",
    b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 2_000, b"\xff\xfe", b'{"ledgerId":"x"}', b"\x00",
    b'{"managedLedgerOffloadDriver":"filesystem","fileSystemURI":"/nowhere"}',
    b'[{"topic":"persistent://t1/n1/a","role":"r","actions":["produce"]}]',
)  # fmt: skip
_TYPES: Final = (
    "application/json",
    "text/plain",
    "application/x-www-form-urlencoded",
    "",
    "a" * 99,
)


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes of one request, and what its answer may be."""

    data: bytes
    proven: bool
    """Whether it presents valid credentials, or may: its bytes were changed."""
    path: str


class Requests:
    """Makes requests; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        roles = ("ta", "tb", "prod", "cons", "nobody", SUPER, BROKER, SUPER_PROXY)
        self._valid = [f"Bearer {token(role)}" for role in roles]
        self._invalid = [
            f"Bearer {WRONG}", f"Bearer {expired(SUPER)}", "Basic YTpi", "Bearer ", "Bearer",
            f"Bearer {token(SUPER, key=b'f' * 32)}", "x" * 200, f"Bearer {'a' * 5_000}",
            f"Bearer {token(SUPER)[:-4]}AAAA", "Negotiate abc",
        ]  # fmt: skip

    def make(self, count: int) -> Iterator[Request]:
        """Yields so many requests."""
        for _ in range(count):
            yield self._one()

    def _one(self) -> Request:
        rng = self._random
        method, template = rng.choice(_ROUTES)
        if rng.random() > KEEP_METHOD:
            method = rng.choice(METHODS)
        path = self._path(template)
        body = rng.choice(_BODIES) if method in ("PUT", "POST", "DELETE", "PATCH") else b""
        headers, proven = self._headers(body)
        query = rng.choice(_QUERIES)
        target = f"{path}?{query}" if query else path
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{line}\r\n" for line in headers)
        data = head.encode("latin-1", "replace") + b"\r\n" + self._framed(headers, body)
        if rng.random() < MUTATED_SHARE:
            return Request(self._mutated(data), True, path)
        return Request(data, proven, path)

    def _path(self, template: str) -> str:
        rng = self._random
        parts = []
        for part in template.split("/"):
            if not part.startswith("{"):
                parts.append(part if rng.random() < 0.98 else rng.choice(_ODD))
                continue
            name, _, kind = part.strip("{}").partition(":")
            if rng.random() < 0.1:
                parts.append(rng.choice(_ODD))
            elif kind == "number":
                parts.append(str(rng.choice((0, 1, -1, 5, 2**40, 10**18))))
            else:
                parts.append(quote(rng.choice(_NAMES.get(name, ("k", "v", "b1"))), safe=""))
        path = "/".join(parts)
        tricks = ("", "", "", "", "", "/", "//", "/..", "/.", "/../../tenants", "%2F")
        return path + rng.choice(tricks)

    def _headers(self, body: bytes) -> tuple[list[str], bool]:
        rng = self._random
        headers = ["Host: b"]
        proven = rng.random() < 0.7
        if proven:
            headers.append(f"Authorization: {rng.choice(self._valid)}")
        elif rng.random() < 0.7:
            headers.append(f"Authorization: {rng.choice(self._invalid)}")
        if rng.random() < 0.1:
            headers.append(f"X-Original-Principal: {rng.choice(('ta', 'admin', 'proxy', ''))}")
        if rng.random() < 0.1:
            headers.append(f"{ROLE_HEADER}: {rng.choice(('ta', 'admin', 'nobody', '%ff'))}")
        if rng.random() < 0.05:
            headers.append(f"{ORIGINAL_HEADER}: {rng.choice(('ta', 'admin', '%00'))}")
        if rng.random() < 0.05:
            headers.append(f"X-Magnetar-Under: {rng.choice(('7 /tenants/t2', 'x', '-1 '))}")
        if rng.random() < 0.05:
            headers.append("X-Magnetar-Local: 1")
        if rng.random() < 0.05:
            headers.append(
                f"X-Pulsar-Auth-Method-Name: {rng.choice(('token', 'none', 'tls', 'x'))}"
            )
        if rng.random() < 0.02:
            headers.append(f"X-Long: {'y' * rng.choice((100, LONG, 20_000))}")
        if body:
            headers.append(f"Content-Type: {rng.choice(_TYPES)}")
            framing = rng.choice(("length", "length", "length", "chunked", "both"))
            if framing != "chunked":
                headers.append(f"Content-Length: {len(body)}")
            if framing != "length":
                headers.append("Transfer-Encoding: chunked")
        return headers, proven

    def _framed(self, headers: list[str], body: bytes) -> bytes:
        if "Transfer-Encoding: chunked" not in headers or not body:
            return body
        at = self._random.randrange(len(body))
        pieces = [piece for piece in (body[:at], body[at:]) if piece]
        return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

    def _mutated(self, data: bytes) -> bytes:
        rng = self._random
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(changed))
            match rng.randrange(5):
                case 0:
                    changed[at] ^= 1 << rng.randrange(8)
                case 1:
                    changed[at] = rng.choice((0, 9, 10, 13, 32, 58, 127, 255))
                case 2:
                    del changed[at : at + rng.randint(1, 8)]
                case 3:
                    changed[at:at] = rng.choice((b"\r\n", b"\r\n\r\n", b" ", rng.randbytes(4)))
                case _:
                    changed[at:at] = changed[at : at + rng.randint(1, 30)]
            if not changed:
                return b"\r\n"
        return bytes(changed)


def shown(request: Request) -> str:
    """Returns the request for a failure's text."""
    return json.dumps(request.data.decode("latin-1"))
