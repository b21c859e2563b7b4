"""Chooses the broker for an unowned bundle: the better one of two random brokers, by load.

If all brokers chose the least loaded one, they would all choose the same at the same moment, and
after a broker's death thousands of bundles are assigned at once. Two random choices spread the
bundles almost as evenly as the best choice, without coordination (Mitzenmacher, "The Power of Two
Choices"). What this broker has placed since another's last report is added to that report.

Loads less than LOAD_STEP apart count as equal. Then the number of bundles decides, and if that is
equal, too, chance.
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
"""How long a placement may be missing in its broker's report."""
RECENT_MAX: Final = 65_536


class Placement:
    """Chooses brokers; `reports` returns a broker's newest report, if there is one."""

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
        """Chooses among brokers that live and do not drain; raises ValueError if there are none.

        `owned` has the number of bundles by broker, if it is more recent than the reports.
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
        """Returns the less loaded of two brokers; their order is random, so ties are fair."""
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
        """Returns (load, bundles), with what this broker has placed there since the report."""
        report = self._reports(name)
        recent = self._counts.get(name, 0)
        if report is None:
            return 0.0, owned.get(name, 0) + recent
        bundle_load = report.cpu / report.bundle_count if report.bundle_count else 0.0
        return report.cpu + recent * bundle_load, owned.get(name, report.bundle_count) + recent

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
