"""Calls to etcd: with deadlines, another member where one fails, and a token where one is needed.

What may be tried again is tried again, with a jittered back-off, until the call's deadline: all
that is safe to repeat, and of the rest what surely was not executed. A write that is not safe to
repeat goes out only on a connection that answers (a read is sent ahead on a new one), so that a
member that is down costs no write. Where the answer to such a write is missing, MetadataUnavailable
says so at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from google.protobuf.message import Message

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
BACKOFF_DOUBLINGS_MAX: Final = 10
ATTEMPT_S_MIN: Final = 0.01
TOKEN_REFUSALS_MAX: Final = 1
"""A call whose token was refused is tried with a new one; a second refusal is final."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")

log = get_logger("magnetar.metadata.etcd")


def backoff_s(failures: int, random: Random) -> float:
    """How long to wait after so many failures in a row (1 or more)."""
    doublings = min(failures - 1, BACKOFF_DOUBLINGS_MAX)
    return min(BACKOFF_S_MIN * (1 << doublings), BACKOFF_S_MAX) * (0.5 + random.random() / 2)


class Token:
    """The user's token, asked for when first needed and again when it is refused."""

    def __init__(self, username: str, password: str) -> None:
        self._username, self._password = username, password
        self._token = ""
        self._needed = bool(username)
        self._asking = asyncio.Lock()

    async def headers(self, endpoint: Endpoint, timeout_s: float) -> Headers:
        """What a call carries. Raises what authenticating raises."""
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
            # Whatever became of it: what the token is for was not sent.
            raise PassingFault(Outcome.NOT_DONE, fault.text) from None
        except MetadataError as error:
            if "not enabled" not in error.message:
                raise MetadataRefused(f"user {self._username}: {error.message}") from None
            log.info("etcd asks for no authentication", user=self._username)
            self._needed = False
        else:
            self._token = answer.token

    def refused(self, headers: Headers) -> None:
        """A call with these headers was refused: the next one gets another token."""
        if not self._username:
            raise MetadataRefused("etcd asks for a user: set etcd's username and password")
        self._needed = True
        if ("token", self._token) in headers:
            self._token = ""


class EtcdClient:
    """See the module's text."""

    def __init__(self, settings: EtcdSettings, random: Random) -> None:
        self.settings = settings
        self.random = random
        self.endpoints = Endpoints(settings, random)
        self.token = Token(settings.username, settings.password)
        self.revision = 0
        """The newest revision of the store that any answer named."""
        self.closed = False
        self.probe_request = pb.RangeRequest(
            key=f"{settings.root}/".encode(), count_only=True, limit=1
        )

    def note(self, header: pb.ResponseHeader) -> None:
        """Of any answer."""
        self.revision = max(self.revision, header.revision)

    def note_read(self, header: pb.ResponseHeader, known: int) -> None:
        """Of a linearizable read that was sent when `known` was the newest revision.

        etcd that was restored from an older copy counts revisions again that were given out
        before. Nothing that rests on them holds then: the process must begin anew.
        """
        if header.revision < known:
            raise MetadataWentBack(
                f"etcd at {self.endpoints} went back from revision {known} to {header.revision}: "
                "was it restored from an older copy? Restart every process that uses it"
            )
        self.note(header)

    def deadline(self) -> float:
        """For a call that begins now, by the loop's clock."""
        return asyncio.get_running_loop().time() + self.settings.operation_timeout_s

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        repeat: bool,
        deadline: float | None = None,
    ) -> Response:
        """One unary call. `repeat`: whether it is safe to execute it more than once."""

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
        """Attempts at one member after the other. Raises MetadataUnavailable, or what is final."""
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
                wait_s = backoff_s(failures // len(self.endpoints), self.random)
            if loop.time() + wait_s >= end:
                raise self.unavailable(text, "" if repeat else "Nothing was written.")
            await asyncio.sleep(wait_s)

    def unavailable(self, last: str, consequence: str = "") -> MetadataUnavailable:
        """What to raise when the tries are used up."""
        return MetadataUnavailable(
            f"etcd does not answer at {self.endpoints} (last: {last}). {consequence}"
            f"{' ' if consequence else ''}Look whether etcd runs, has a leader "
            "(etcdctl endpoint status --cluster) and can be reached from here."
        )

    async def close(self) -> None:
        self.closed = True
        await self.endpoints.close()
