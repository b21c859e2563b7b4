"""The admin REST of one cluster: deadlines, bounded retries, redirects, typed refusals.

What may be asked again (GET, PUT, POST, DELETE of ours all end in the same state the second time)
is, ATTEMPTS_MAX times, with back-off and jitter, where the cluster could not be reached or said
5xx. Pulsar's redirects (307) to the broker that owns a topic are followed, with method and body.
AT_ONCE_MAX requests are under way to a cluster at a time.

A request that was begun is ended, also where its caller is broken off: its connection stays whole.
`close` waits for those, CLOSE_S_MAX.

A cluster that could not be reached is not asked again for DOWN_S: a thousand resources must not
each wait for its deadline. Requests are counted, by method and by what answered.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import msgspec

AT_ONCE_MAX: Final = 16
CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 30.0
REQUEST_S_MAX: Final = 60.0
"""Of one request with all its attempts."""
ATTEMPTS_MAX: Final = 3
BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 2.0
REDIRECTS_MAX: Final = 5
DOWN_S: Final = 5.0
CLOSE_S_MAX: Final = 5.0
REASON_CHARACTERS_MAX: Final = 1_000

_REDIRECT: Final = 307
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_SERVER_ERROR: Final = 500


class AdminError(Exception):
    """The admin REST did not do what was asked."""


class Unreachable(AdminError):
    """No answer, or only that it cannot now: nothing is known. Ask again later."""


class Refused(AdminError):
    """The cluster says no, and why."""

    def __init__(self, status: int, reason: str, what: str) -> None:
        super().__init__(f"{reason} ({status}, {what})")
        self.status = status
        self.reason = reason
        self.what = what


class NotFound(Refused):
    """It is not there, or what it would be in is not."""


class Exists(Refused):
    """It is there already, or something stands in the way (409)."""


class AdminClient:
    """See the module's text. `close` it."""

    def __init__(self, url: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.url = url.rstrip("/")
        self.requests: Counter[str] = Counter()
        """By method, redirects followed and repeated attempts included."""
        self._monotonic = monotonic
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=AT_ONCE_MAX, keepalive_expiry=30.0),
            trust_env=False,
        )
        self._under_way: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)
        self._down_until = float("-inf")
        self._down_why = ""

    async def close(self) -> None:
        """Ends its connections."""
        if self._under_way:
            _, left = await asyncio.wait(self._under_way, timeout=CLOSE_S_MAX)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self._http.aclose()

    async def get(self, path: str, **query: str) -> Any:
        """Parsed; None where there is no body. Raises NotFound."""
        return await self.call("GET", path, query=query)

    async def find(self, path: str, **query: str) -> Any:
        """As `get`; None where it is not there."""
        try:
            return await self.get(path, **query)
        except NotFound:
            return None

    async def call(
        self, method: str, path: str, body: object = ..., query: Mapping[str, str] | None = None
    ) -> Any:
        """One request to its end; raises Unreachable or Refused."""
        if self._monotonic() < self._down_until:
            raise Unreachable(self._down_why)
        content = b"" if body is ... else msgspec.json.encode(body)
        whole = self._whole(method, path, content, query or {})
        task = asyncio.get_running_loop().create_task(whole, name=f"{method} {self.url}{path}")
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be there no longer

    async def _whole(self, method: str, path: str, content: bytes, query: Mapping[str, str]) -> Any:
        what = f"{method} {path}"
        try:
            async with asyncio.timeout(REQUEST_S_MAX), self._slots:
                answer = await self._again(method, path, content, query)
        except TimeoutError as error:
            raise self._down(f"{self.url} did not answer {what} in time") from error
        return _read(answer, what)

    async def _again(
        self, method: str, path: str, content: bytes, query: Mapping[str, str]
    ) -> httpx.Response:
        pause_s = BACKOFF_FIRST_S
        for attempt in range(1, ATTEMPTS_MAX + 1):
            last = attempt == ATTEMPTS_MAX
            try:
                answer = await self._once(method, path, content, query)
            except httpx.HTTPError as error:
                if last:
                    told = str(error) or type(error).__name__
                    raise self._down(f"{self.url} cannot be reached: {told}") from error
            else:
                if answer.status_code < _SERVER_ERROR:
                    return answer
                if last:
                    text = _reason(answer)
                    raise Unreachable(
                        f"{self.url} failed with {answer.status_code} at {method} {path}: {text}"
                    )
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(BACKOFF_MAX_S, pause_s * 3)
        raise AssertionError("unreachable")

    async def _once(
        self, method: str, path: str, content: bytes, query: Mapping[str, str]
    ) -> httpx.Response:
        headers = {"content-type": "application/json"} if content else {}
        url, parameters = httpx.URL(f"{self.url}{path}"), dict(query) or None
        for _ in range(REDIRECTS_MAX):
            self.requests[method] += 1
            answer = await self._http.request(
                method, url, content=content, headers=headers, params=parameters
            )
            if answer.status_code != _REDIRECT:
                return answer
            # The address has the query already.
            url, parameters = url.join(answer.headers["location"]), None
        raise httpx.TooManyRedirects(f"more than {REDIRECTS_MAX} redirects", request=answer.request)

    def _down(self, why: str) -> Unreachable:
        self._down_until, self._down_why = self._monotonic() + DOWN_S, why
        return Unreachable(why)


def _read(answer: httpx.Response, what: str) -> Any:
    status = answer.status_code
    if status < 300:
        if not answer.content:
            return None
        try:
            return msgspec.json.decode(answer.content)
        except msgspec.DecodeError as error:
            raise Refused(status, f"the answer is no JSON: {error}", what) from error
    reason = _reason(answer)
    if status == _NOT_FOUND:
        raise NotFound(status, reason, what)
    if status == _CONFLICT:
        raise Exists(status, reason, what)
    raise Refused(status, reason, what)


def _reason(answer: httpx.Response) -> str:
    """Pulsar's form is `{"reason": …}`."""
    try:
        content = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        content = None
    found = content.get("reason") if isinstance(content, dict) else None
    text = str(found or answer.text or answer.reason_phrase)
    return text[:REASON_CHARACTERS_MAX]
