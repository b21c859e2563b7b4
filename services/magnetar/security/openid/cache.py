"""The cached keys of one issuer: refreshed while they are in use, and fetched for a new key.

- Keys older than `refresh_after_s` are fetched in the background; the old ones stay in use.
- Keys older than `expire_after_s` are not used: callers wait for the fetch.
- A `kid` that is not cached causes a fetch, at most every `unknown_key_refresh_s`, so tokens with
  random key ids cannot flood the issuer.
- Callers share one fetch at a time, which belongs to the cache: a caller that gives up, or whose
  client disconnects, does not end it, so one client cannot delay the keys of others. After a failed
  fetch the next starts FAILURE_PAUSE_S later; until then, callers that have no keys get
  ProviderUnavailable at once.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from magnetar.core.clock import Clock
from magnetar.core.log import get_logger
from magnetar.core.tasks import TaskSet
from magnetar.security.api import ProviderUnavailable
from magnetar.security.openid.documents import Jwk
from magnetar.security.openid.issuers import IssuerKeys, KeyOrigin

log = get_logger("magnetar.security.openid")

FAILURE_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAges:
    """How old cached keys may become."""

    refresh_after_s: float
    expire_after_s: float
    unknown_key_refresh_s: float


class KeyCache:
    """The keys of one issuer."""

    def __init__(self, origin: KeyOrigin, ages: CacheAges, clock: Clock, tasks: TaskSet) -> None:
        self._origin = origin
        self._ages = ages
        self._clock = clock
        self._tasks = tasks
        self._fetching: asyncio.Task[IssuerKeys | None] | None = None
        self._fetched: IssuerKeys | None = None
        self._fetched_at = 0.0
        self._failed_at = 0.0
        self._failure = ""
        self._refreshing = False

    async def issuer(self) -> str:
        """Returns the issuer's name; raises ProviderUnavailable."""
        return (await self._current()).issuer

    async def key(self, kid: str) -> Jwk | None:
        """Returns the issuer's key of this name, None if it has none; raises ProviderUnavailable.

        None may be out of date by `unknown_key_refresh_s`.
        """
        fetched = await self._current()
        if kid not in fetched.keys and self._age_s() >= self._ages.unknown_key_refresh_s:
            fetched = await self._newer_than(fetched)
        return fetched.keys.get(kid)

    async def close(self) -> None:
        """Closes the origin of the keys; idempotent."""
        await self._origin.close()

    def _age_s(self) -> float:
        return self._clock.monotonic() - self._fetched_at

    async def _current(self) -> IssuerKeys:
        fetched = self._fetched
        if fetched is None or self._age_s() >= self._ages.expire_after_s:
            return await self._newer_than(fetched)
        if self._age_s() >= self._ages.refresh_after_s and not self._refreshing:
            self._refreshing = True
            self._tasks.start(self._refresh(fetched), "refresh")
        return fetched

    async def _refresh(self, old: IssuerKeys) -> None:
        try:
            await self._newer_than(old)
        except ProviderUnavailable as error:
            log.warning("the keys of an issuer were not refreshed", error=str(error))
        finally:
            self._refreshing = False

    async def _newer_than(self, old: IssuerKeys | None) -> IssuerKeys:
        """Returns keys that were fetched after `old`; raises ProviderUnavailable."""
        if self._fetched is not None and self._fetched is not old:
            return self._fetched
        if self._fetching is None:
            if self._failure and self._clock.monotonic() - self._failed_at < FAILURE_PAUSE_S:
                raise ProviderUnavailable(self._failure)
            self._fetching = self._tasks.start(self._fetch(), "fetch")
        fetching = self._fetching
        if fetching is None:
            raise ProviderUnavailable("this process is stopping")
        await asyncio.wait([fetching])
        fetched = None if fetching.cancelled() else fetching.result()
        if fetched is None:
            raise ProviderUnavailable(self._failure or "this process is stopping")
        return fetched

    async def _fetch(self) -> IssuerKeys | None:
        """Fetches the keys, and returns them; None if that failed, for the reason `_failure`."""
        try:
            fetched = await self._origin.fetch()
        except ProviderUnavailable as error:
            self._failure, self._failed_at = str(error), self._clock.monotonic()
            return None
        else:
            self._fetched, self._fetched_at = fetched, self._clock.monotonic()
            self._failure = ""
            return fetched
        finally:
            self._fetching = None
