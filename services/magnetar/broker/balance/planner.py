"""Plans what to do about the brokers' loads: a function of reports, time and former moves. Pure.

A broker starts to shed load if, in each of `rounds` rounds in a row, its load was above the mean of
all brokers by `high` points, or it was overloaded. It sheds until its own mean over as many rounds
is within `low` points. Between the two thresholds, nothing starts and nothing stops. After a move,
both brokers are observed for as many new rounds before they are judged again, so no move is decided
on a load from before the last one.

The bundle to move is the busiest one whose move leaves the target less busy than the source by at
least `low` points: a move never creates the next hot spot, nor swaps one for another. The target is
the least busy broker that is not overloaded, draining or new, and is less busy by at least `high`
points, so that errors of measurement move nothing. A broker accepts at most TARGET_MOVES_MAX
bundles or TARGET_LOAD_MAX in a round. A bundle that moved, for any reason, rests for the grace
time, and does not return to its former broker for the return time. All moves together are bounded
per round and per hour.

A bundle's share of its broker's load is its share of the messages and bytes; a fixed resource quota
(`quotas`) replaces those of the bundle. Times are milliseconds; a time in the future (a clock was
set back) counts as now.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.balance.model import BundleLoad, Decision, LoadReport, Move, Nothing, Split
from magnetar.broker.balance.quotas import FixedLoad
from magnetar.broker.balance.split_decision import SplitPlanner, SplitSettings

TARGET_MOVES_MAX: Final = 2
TARGET_LOAD_MAX: Final = 0.05
"""A broker accepts this many bundles, or this much of a core, in a round: a new broker fills up
gradually, and small bundles move together."""
BUNDLE_LOAD_MIN: Final = 0.001
"""Share of a core. Moving a smaller load is not worth the reconnects of its clients."""
ROUNDING: Final = 1e-9
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """The planner's parameters; see `magnetar.settings.balance`. Loads are fractions of a core."""

    shedding: bool = True
    rounds: int = 5
    high: float = 0.15
    low: float = 0.05
    overloaded: float = 0.85
    grace_ms: int = 30 * 60_000
    return_ms: int = 120 * 60_000
    moves_per_round_max: int = 10
    moves_per_hour_max: int = 120
    split: SplitSettings = field(default_factory=SplitSettings)


@dataclass(frozen=True, slots=True)
class PastMove:
    """A former change of owner. Only `planned` ones count against the hourly budget."""

    at_ms: int
    bundle: str
    source: str
    target: str
    planned: bool = True


@dataclass(slots=True)
class _Watched:
    """The recent rounds of a broker."""

    loads: deque[float]
    excesses: deque[float]
    relieving: bool = False

    @property
    def load(self) -> float:
        """The mean over the observed rounds."""
        return sum(self.loads) / len(self.loads)

    @property
    def full(self) -> bool:
        """Whether enough rounds were observed for a judgment."""
        return len(self.loads) == self.loads.maxlen

    def restart(self) -> None:
        """Forgets the rounds, after a move."""
        self.loads.clear()
        self.excesses.clear()


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What administrators have set about bundles and brokers."""

    fixed: FixedLoad = lambda _bundle: None
    """The load that a fixed resource quota assigns to a bundle."""
    allowed: Callable[[str, Sequence[str]], Collection[str]] = lambda _bundle, brokers: brokers
    """The brokers that may own a bundle, of those that live."""

    def costs(self, bundles: Iterable[BundleLoad]) -> dict[str, float]:
        """Returns the cost of each bundle: by its fixed quota, else as measured."""
        return {load.bundle: (self.fixed(load.bundle) or load).cost for load in bundles}


NO_RULES: Final = PlanRules()


class Planner:
    """Decides moves and splits. One per leadership: a new leader observes some rounds first."""

    def __init__(self, settings: PlannerSettings, history: Iterable[PastMove] = ()) -> None:
        self._settings = settings
        self._moves = list(history)
        self._brokers: dict[str, _Watched] = {}
        self._owners: dict[str, str] = {}
        self._split_planner = SplitPlanner(settings.split)
        self._rules = NO_RULES

    @property
    def loads(self) -> dict[str, float]:
        """The loads that decisions use: each broker's mean over its observed rounds."""
        return {
            name: round(watched.load, 4) for name, watched in self._brokers.items() if watched.loads
        }

    def plan(
        self,
        reports: Iterable[LoadReport],
        living: Collection[str],
        now_ms: int,
        bundle_counts: Mapping[str, int] | None = None,
        busy: Collection[str] = (),
        rules: PlanRules = NO_RULES,
    ) -> list[Decision]:
        """Returns the decisions of one round. Draining brokers are absent or report it.

        `bundle_counts`: the number of bundles of the namespaces with hot bundles. `busy`: the
        bundles with a pending order. `rules`: what administrators have set.
        """
        self._rules = rules
        able = {r.broker_id: r for r in reports if r.broker_id in living and not r.draining}
        self._watch(able, now_ms)
        decisions: list[Decision] = list(
            self._split_planner.plan(able.values(), bundle_counts or {}, busy)
        )
        untouched = set(busy) | {split.bundle for split in decisions if isinstance(split, Split)}
        if not self._settings.shedding:
            decisions.append(Nothing("Moving bundles is switched off"))
        else:
            decisions += self._shed(able, now_ms, untouched)
        return decisions

    def hot_namespaces(self, reports: Iterable[LoadReport]) -> set[str]:
        """Returns the namespaces whose bundle counts `plan` needs."""
        return self._split_planner.hot_namespaces(reports)

    def _watch(self, able: Mapping[str, LoadReport], now_ms: int) -> None:
        settings = self._settings
        keep_ms = max(settings.grace_ms, settings.return_ms, HOUR_MS)
        self._moves = [move for move in self._moves if now_ms - move.at_ms < keep_ms]
        for name in [name for name in self._brokers if name not in able]:
            del self._brokers[name]
        mean = sum(report.cpu for report in able.values()) / len(able) if able else 0.0
        for name, report in able.items():
            watched = self._brokers.get(name)
            if watched is None:
                rounds = settings.rounds
                watched = _Watched(deque(maxlen=rounds), deque(maxlen=rounds))
                self._brokers[name] = watched
            watched.loads.append(report.cpu)
            watched.excesses.append(report.cpu - mean)
        self._note_outside_moves(able, now_ms)

    def _note_outside_moves(self, able: Mapping[str, LoadReport], now_ms: int) -> None:
        """Makes a bundle that was moved by other means rest like a planned move."""
        latest = sorted(able.values(), key=lambda report: report.updated_ms)
        owners = {load.bundle: report.broker_id for report in latest for load in report.bundles}
        for bundle, owner in owners.items():
            before = self._owners.get(bundle, owner)
            if before != owner and not self._moved_to(bundle, owner):
                self._moves.append(PastMove(now_ms, bundle, before, owner, planned=False))
        self._owners |= owners
        if len(self._owners) > 2 * len(owners) + 1_000:
            self._owners = owners

    def _moved_to(self, bundle: str, owner: str) -> bool:
        last = next((move for move in reversed(self._moves) if move.bundle == bundle), None)
        return last is not None and last.target == owner

    def _shed(
        self, able: Mapping[str, LoadReport], now_ms: int, untouched: set[str]
    ) -> list[Decision]:
        settings = self._settings
        if len(able) < 2:
            return [Nothing("There is no other broker to move bundles to")]
        loads = {name: watched.load for name, watched in self._brokers.items() if watched.full}
        sources = sorted(
            (name for name in loads if self._is_too_busy(name)), key=lambda name: -loads[name]
        )
        if not sources:
            spread: dict[str, float] = {"brokers": len(able), "watched": len(loads)}
            if loads:
                spread |= {"load_max": max(loads.values()), "load_min": min(loads.values())}
            return [Nothing("No broker is too busy for long enough", _rounded(spread))]
        hour = sum(move.planned and now_ms - move.at_ms < HOUR_MS for move in self._moves)
        budget = min(settings.moves_per_round_max, settings.moves_per_hour_max - hour)
        if budget <= 0:
            most = settings.moves_per_hour_max
            return [Nothing(f"The hour's budget of {most} moves is spent", {"moves": hour})]
        moves: list[Decision] = []
        taken: dict[str, list[float]] = {}
        for source in sources:
            moves += self._relieve(
                able, source, loads, taken, untouched, budget - len(moves), now_ms
            )
        if not moves:
            numbers = {name: loads[name] for name in sources}
            return [Nothing("No bundle of the busy brokers fits anywhere else", _rounded(numbers))]
        for move in moves:
            assert isinstance(move, Move)  # noqa: S101 - `_relieve` returns only moves
            self._moves.append(PastMove(now_ms, move.bundle, move.source, move.target))
            self._brokers[move.source].restart()
            self._brokers[move.target].restart()
        return moves

    def _is_too_busy(self, name: str) -> bool:
        settings, watched = self._settings, self._brokers[name]
        if min(watched.excesses) >= settings.high or min(watched.loads) >= settings.overloaded:
            watched.relieving = True
        elif sum(watched.excesses) / len(watched.excesses) < settings.low:
            watched.relieving = False
        return watched.relieving

    def _relieve(
        self,
        able: Mapping[str, LoadReport],
        source: str,
        loads: dict[str, float],
        taken: dict[str, list[float]],
        untouched: set[str],
        budget: int,
        now_ms: int,
    ) -> list[Decision]:
        """Plans moves away from a broker; updates `loads` and `taken`."""
        report, moves = able[source], list[Decision]()
        mean = sum(loads.values()) / len(loads)
        load = loads[source]
        costs = self._rules.costs(report.bundles)
        whole = max(0.0, report.cost - sum(b.cost for b in report.bundles)) + sum(costs.values())
        bundles = [
            (bundle, load * costs[bundle.bundle] / whole)
            for bundle in report.bundles
            if whole and bundle.bundle not in untouched and not self._rests(bundle.bundle, now_ms)
        ]
        bundles.sort(key=lambda bundle_load: -bundle_load[1])
        for bundle, part in bundles:
            if len(moves) >= budget or loads[source] - mean < self._settings.low:
                break
            if part < BUNDLE_LOAD_MIN:
                break
            target = self._target(able, bundle, part, source, loads, taken, now_ms)
            if target is None:
                continue
            numbers = {
                "source_load": loads[source],
                "target_load": loads[target],
                "bundle_load": part,
                "mean_load": mean,
            }
            why = (
                f"{source} had {loads[source]:.0%} of a core to do, {target} {loads[target]:.0%}, "
                f"the mean was {mean:.0%}; the bundle takes {part:.0%}"
            )
            moves.append(Move(bundle.bundle, source, target, why, _rounded(numbers)))
            loads[source] -= part
            loads[target] += part
            taken.setdefault(target, []).append(part)
            untouched.add(bundle.bundle)
        return moves

    def _target(
        self,
        able: Mapping[str, LoadReport],
        bundle: BundleLoad,
        part: float,
        source: str,
        loads: Mapping[str, float],
        taken: Mapping[str, list[float]],
        now_ms: int,
    ) -> str | None:
        """Returns the least busy broker that may take the bundle and benefits the balance."""
        overloaded = self._settings.overloaded
        allowed = self._rules.allowed(bundle.bundle, sorted(able))
        fit = [
            name
            for name, load in loads.items()
            if name != source
            and name in allowed
            and _has_room(taken.get(name, ()), part)
            and loads[source] - load >= self._settings.high - ROUNDING
            and load + part < overloaded
            and load + part + self._settings.low < loads[source] - part
            and able[name].memory < overloaded
            and not self._came_from(bundle.bundle, name, now_ms)
        ]
        return min(fit, key=lambda name: (loads[name], name), default=None)

    def _rests(self, bundle: str, now_ms: int) -> bool:
        """Whether the bundle moved within the grace time."""
        grace_ms = self._settings.grace_ms
        return any(move.bundle == bundle and now_ms - move.at_ms < grace_ms for move in self._moves)

    def _came_from(self, bundle: str, broker: str, now_ms: int) -> bool:
        """Whether the bundle left this broker within the return time."""
        return_ms = self._settings.return_ms
        return any(
            move.bundle == bundle and move.source == broker and now_ms - move.at_ms < return_ms
            for move in self._moves
        )


def _has_room(taken: Sequence[float], part: float) -> bool:
    """Whether a broker that accepted these loads in this round accepts another."""
    return len(taken) < TARGET_MOVES_MAX or sum(taken) + part <= TARGET_LOAD_MAX


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in numbers.items()}
