"""Where a bundle that nobody owns goes: the better of two brokers drawn at random, by their loads.

Of all brokers the same one would be the best for everybody who asks at the same moment, and after a
broker's death thousands of bundles are asked for at once: two choices spread them, nearly as evenly
as the best of all, without anybody knowing of anybody (Mitzenmacher, "The Power of Two Choices").
What this broker itself has placed since a broker's last report counts on top of the report.

Loads that are less than LOAD_STEP apart are alike; then the number of bundles decides, and where
that is equal, chance.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from magnetar.broker.balance.model import LoadReport
from magnetar.core.clock import Clock

LOAD_STEP: Final = 0.1
OVERLOADED: Final = 0.85
RECENT_S: Final = 10.0
"""For so long a placement is not in its broker's report yet."""
RECENT_MAX: Final = 65_536


class Placement:
    """Chooses; `reports` gives the newest report of each broker that has one."""

    def __init__(
        self,
        reports: Callable[[str], LoadReport | None],
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        self._reports = reports
        self._clock = clock
        self._rng = rng or random.Random()
        self._recent: deque[tuple[float, str]] = deque(maxlen=RECENT_MAX)
        self._counts: dict[str, int] = {}

    def choose(self, candidates: Iterable[str], owned: Mapping[str, int] | None = None) -> str:
        """One of the brokers, which are living and not draining; raises ValueError for none.

        `owned` says how many bundles each has, where that is known better than by the reports.
        """
        able = sorted(candidates)
        if not able:
            raise ValueError("there is no broker to choose")
        if calm := [name for name in able if not self._overloaded(name)]:
            able = calm
        two = self._rng.sample(able, min(2, len(able)))
        chosen = self._better(two, owned or {})
        self._placed(chosen)
        return chosen

    def _overloaded(self, name: str) -> bool:
        report = self._reports(name)
        if report is None:
            return False
        return report.draining or report.cpu >= OVERLOADED or report.memory >= OVERLOADED

    def _better(self, two: Sequence[str], owned: Mapping[str, int]) -> str:
        """`two` come in random order, so that equal ones are equally often chosen."""
        self._forget()
        if len(two) == 1:
            return two[0]
        first, second = two
        load_first, count_first = self._state(first, owned)
        load_second, count_second = self._state(second, owned)
        if abs(load_first - load_second) >= LOAD_STEP:
            return first if load_first < load_second else second
        return first if count_first <= count_second else second

    def _state(self, name: str, owned: Mapping[str, int]) -> tuple[float, int]:
        """(load, bundles), with what was placed there since these were told."""
        report = self._reports(name)
        recent = self._counts.get(name, 0)
        if report is None:
            return 0.0, owned.get(name, 0) + recent
        each = report.cpu / report.bundle_count if report.bundle_count else 0.0
        return report.cpu + recent * each, owned.get(name, report.bundle_count) + recent

    def _placed(self, name: str) -> None:
        if len(self._recent) == RECENT_MAX:
            self._drop()
        self._recent.append((self._clock.monotonic(), name))
        self._counts[name] = self._counts.get(name, 0) + 1

    def _forget(self) -> None:
        now_s = self._clock.monotonic()
        while self._recent and now_s - self._recent[0][0] > RECENT_S:
            self._drop()

    def _drop(self) -> None:
        _, name = self._recent.popleft()
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
