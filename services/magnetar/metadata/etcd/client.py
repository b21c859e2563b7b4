"""Calls to etcd, with deadlines, fail-over between members, and authentication.

The client retries until the call's deadline, with a jittered back-off: calls that are safe to
repeat, and other calls if etcd surely did not execute them. A write that is not safe to repeat is
sent only on a connection that answers (the client sends a read first on a new one), so that a dead
member makes no write fail. If the answer to such a write is missing, the client raises
MetadataUnavailable at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from google.protobuf.message import Message

from magnetar.core.backoff import backoff_s
from magnetar.core.errors import MetadataError
from magnetar.core.log import get_logger
from magnetar.metadata.etcd._pb import magnetar_etcd_pb2 as pb
from magnetar.metadata.etcd.calls import AUTHENTICATE, RANGE
from magnetar.metadata.etcd.endpoints import HEADERS, Endpoint, Endpoints, Headers, Method
from magnetar.metadata.etcd.errors import (
    MetadataRefused,
    MetadataWentBack,
    Outcome,
    PassingFault,
)
from magnetar.metadata.etcd.settings import EtcdSettings
from magnetar.metadata.store import MetadataUnavailable, StoreClosed

BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0
ATTEMPT_S_MIN: Final = 0.01
TOKEN_REFUSALS_MAX: Final = 1
PROBED_KEY: Final = "/cluster"
"""The key below the root that probes read: every role of a cluster may read it."""
"""After one refusal a call gets a new token; a second refusal is final."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")

log = get_logger("magnetar.metadata.etcd")


def pause_s(failures: int, random: Random) -> float:
    """Returns the pause after this many consecutive failures (1 or more)."""
    return backoff_s(failures, BACKOFF_S_MIN, BACKOFF_S_MAX, random)


class Token:
    """The user's token, requested when first needed and again after a refusal."""

    def __init__(self, username: str, password: str) -> None:
        self._username, self._password = username, password
        self._token = ""
        self._needed = bool(username)
        self._asking = asyncio.Lock()

    async def headers(self, endpoint: Endpoint, timeout_s: float) -> Headers:
        """Returns the headers of a call. Raises the errors of the authentication."""
        if not self._needed:
            return HEADERS
        if not self._token:
            async with self._asking:
                if self._needed and not self._token:
                    await self._ask(endpoint, timeout_s)
        return (*HEADERS, ("token", self._token)) if self._token else HEADERS

    async def _ask(self, endpoint: Endpoint, timeout_s: float) -> None:
        request = pb.AuthenticateRequest(name=self._username, password=self._password)
        try:
            answer = await endpoint.unary(AUTHENTICATE, request, timeout_s, HEADERS)
        except PassingFault as fault:
            # Whatever the outcome, the call that needs the token was not sent.
            raise PassingFault(Outcome.NOT_DONE, fault.text) from None
        except MetadataError as error:
            if "not enabled" not in error.message:
                raise MetadataRefused(f"user {self._username}: {error.message}") from None
            log.info("etcd asks for no authentication", user=self._username)
            self._needed = False
        else:
            self._token = answer.token

    def refused(self, headers: Headers) -> None:
        """Drops the token of a refused call, so that the next call requests a new one."""
        if not self._username:
            raise MetadataRefused("etcd asks for a user: set etcd's username and password")
        self._needed = True
        if ("token", self._token) in headers:
            self._token = ""


class EtcdClient:
    """Calls to one etcd cluster."""

    def __init__(self, settings: EtcdSettings, random: Random) -> None:
        self.settings = settings
        self.random = random
        self.endpoints = Endpoints(settings, random)
        self.token = Token(settings.username, settings.password)
        self.revision = 0
        """The newest revision in any answer."""
        self.closed = False
        self.probe_request = pb.RangeRequest(
            key=f"{settings.root}{PROBED_KEY}".encode(), count_only=True
        )

    def note(self, header: pb.ResponseHeader) -> None:
        """Records the revision of any answer."""
        self.revision = max(self.revision, header.revision)

    def note_read(self, header: pb.ResponseHeader, known: int) -> None:
        """Records the revision of a linearizable read, sent when `known` was the newest revision.

        An etcd that was restored from an older copy assigns the same revisions again, which breaks
        every assumption of this process. Raises MetadataWentBack then: the process must restart.
        """
        if header.revision < known:
            raise MetadataWentBack(
                f"etcd at {self.endpoints} went back from revision {known} to {header.revision}: "
                "was it restored from an older copy? Restart every process that uses it"
            )
        self.note(header)

    def deadline(self) -> float:
        """Returns the deadline of a call that begins now, by the loop's clock."""
        return asyncio.get_running_loop().time() + self.settings.operation_timeout_s

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        repeat: bool,
        deadline: float | None = None,
    ) -> Response:
        """Makes a unary call. `repeat`: it is safe to execute it more than once."""

        async def attempt(endpoint: Endpoint, timeout_s: float, headers: Headers) -> Response:
            return await endpoint.unary(method, request, timeout_s, headers)

        return await self.run(attempt, repeat=repeat, deadline=deadline)

    async def run(
        self,
        attempt: Callable[[Endpoint, float, Headers], Awaitable[T]],
        *,
        repeat: bool,
        deadline: float | None = None,
        attempt_timeout_s: float | None = None,
    ) -> T:
        """Attempts at one member after the other. Raises MetadataUnavailable or a final error."""
        loop = asyncio.get_running_loop()
        end = self.deadline() if deadline is None else deadline
        most_s = self.settings.attempt_timeout_s if attempt_timeout_s is None else attempt_timeout_s
        failures = refusals = 0
        while True:
            if self.closed:
                raise StoreClosed("the metadata store is closed")
            endpoint = self.endpoints.current
            timeout_s = max(min(most_s, end - loop.time()), ATTEMPT_S_MIN)
            outcome, headers = Outcome.NOT_DONE, HEADERS
            try:
                headers = await self.token.headers(endpoint, timeout_s)
                if not repeat and not endpoint.connected:
                    await endpoint.unary(RANGE, self.probe_request, timeout_s, headers)
                outcome = Outcome.UNKNOWN
                return await attempt(endpoint, timeout_s, headers)
            except PassingFault as fault:
                text = fault.text
                if fault.outcome is not Outcome.UNKNOWN:
                    outcome = fault.outcome
            if outcome is Outcome.TOKEN:
                refusals += 1
                self.token.refused(headers)
                if refusals > TOKEN_REFUSALS_MAX:
                    raise MetadataRefused(f"etcd refuses new tokens too: {text}")
                continue
            failures += 1
            self.endpoints.failed(endpoint)
            if outcome is Outcome.UNKNOWN and not repeat:
                raise self.unavailable(text, "The write may or may not have happened.")
            wait_s = 0.0
            if failures % len(self.endpoints) == 0:
                wait_s = pause_s(failures // len(self.endpoints), self.random)
            if loop.time() + wait_s >= end:
                raise self.unavailable(text, "" if repeat else "Nothing was written.")
            await asyncio.sleep(wait_s)

    def unavailable(self, last: str, consequence: str = "") -> MetadataUnavailable:
        """Returns the error for a call whose attempts have failed."""
        return MetadataUnavailable(
            f"etcd does not answer at {self.endpoints} (last: {last}). {consequence}"
            f"{' ' if consequence else ''}Check that etcd runs, has a leader "
            "(etcdctl endpoint status --cluster) and can be reached from here."
        )

    async def close(self) -> None:
        self.closed = True
        await self.endpoints.close()
