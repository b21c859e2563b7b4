"""The planner over simulated clusters: it converges within its budget, and moves nothing back."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.balance.model import BundleLoad, Decision, LoadReport, Move, Nothing
from magnetar.broker.balance.planner import HOUR_MS, PastMove, Planner, PlannerSettings

MINUTE_MS = 60_000
SETTINGS = PlannerSettings()


@dataclass
class Cluster:
    """Bundles with loads on brokers; what the planner says happens at once."""

    bundles: dict[str, float]
    owners: dict[str, str]
    brokers: list[str]
    noise: float = 0.0
    rng: random.Random = field(default_factory=random.Random)
    now_ms: int = 1_800_000_000_000
    moves: list[PastMove] = field(default_factory=list)

    def reports(self) -> list[LoadReport]:
        found = []
        for broker in self.brokers:
            loads = [
                BundleLoad(name, topics=1, msg_rate_in=load * 50_000 * self._noisy())
                for name, load in self.bundles.items()
                if self.owners[name] == broker
            ]
            loads.sort(key=lambda load: -load.cost)
            true = sum(self.bundles[load.bundle] for load in loads)
            found.append(
                LoadReport(
                    broker_id=broker,
                    started_ms=0,
                    updated_ms=self.now_ms,
                    cpu=0.02 + true * self._noisy(),
                    bundle_count=len(loads),
                    msg_rate_in=sum(load.msg_rate_in for load in loads),
                    bundles=tuple(loads),
                )
            )
        return found

    def _noisy(self) -> float:
        return 1.0 + self.rng.uniform(-self.noise, self.noise)

    def run(self, planner: Planner, rounds: int) -> list[list[Decision]]:
        lines = []
        for _ in range(rounds):
            decisions = planner.plan(self.reports(), self.brokers, self.now_ms)
            for each in decisions:
                if isinstance(each, Move):
                    assert self.owners[each.bundle] == each.source
                    assert each.target in self.brokers
                    self.owners[each.bundle] = each.target
                    self.moves.append(PastMove(self.now_ms, each.bundle, each.source, each.target))
            lines.append(decisions)
            self.now_ms += MINUTE_MS
        return lines

    def load_of(self, broker: str) -> float:
        return sum(load for name, load in self.bundles.items() if self.owners[name] == broker)

    def spread(self) -> float:
        loads = [self.load_of(broker) for broker in self.brokers]
        return max(loads) - min(loads)


def cluster(
    loads: Sequence[float],
    owners: Sequence[int],
    brokers: int,
    *,
    noise: float = 0.0,
    seed: int = 1,
) -> Cluster:
    names = [f"t/n/{number:04d}" for number in range(len(loads))]
    return Cluster(
        dict(zip(names, loads, strict=True)),
        {name: f"b{owner % brokers}" for name, owner in zip(names, owners, strict=True)},
        [f"b{number}" for number in range(brokers)],
        noise,
        random.Random(seed),
    )


def check_bounds(made: Cluster, planner_settings: PlannerSettings = SETTINGS) -> None:
    """Asserts, for any loads, that no bundle moves back or too soon, and that budgets hold."""
    for number, move in enumerate(made.moves):
        for later in made.moves[number + 1 :]:
            if later.bundle == move.bundle:
                assert later.at_ms - move.at_ms >= planner_settings.grace_ms
                if later.target == move.source:
                    assert later.at_ms - move.at_ms >= planner_settings.return_ms
        within_hour = [each for each in made.moves if 0 <= each.at_ms - move.at_ms < HOUR_MS]
        assert len(within_hour) <= planner_settings.moves_per_hour_max
        at_once = [each for each in made.moves if each.at_ms == move.at_ms]
        assert len(at_once) <= planner_settings.moves_per_round_max


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.floats(0.0, 0.05), st.integers(0, 5)), min_size=1, max_size=60),
    st.integers(0, 1 << 16),
)
def test_random_loads_converge_and_nothing_goes_back(
    brokers: int, bundles: list[tuple[float, int]], seed: int
) -> None:
    made = cluster([b[0] for b in bundles], [b[1] for b in bundles], brokers, seed=seed)
    before = made.spread()
    planner = Planner(SETTINGS)
    made.run(planner, 240)
    check_bounds(made)
    assert made.spread() <= before + 1e-9
    mean = sum(made.bundles.values()) / brokers
    # Nobody stays above the mean by more than the upper threshold and one bundle.
    assert max(map(made.load_of, made.brokers)) <= mean + SETTINGS.high + 0.05
    settled = len(made.moves)
    made.run(planner, 120)
    assert len(made.moves) == settled, "what has converged stays"


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 5), st.integers(8, 40), st.floats(0.2, 0.8), st.integers(0, 1 << 16))
def test_noise_of_a_fifth_makes_nothing_swing(
    brokers: int, count: int, level: float, seed: int
) -> None:
    """Balanced brokers keep their bundles if the measured loads are wrong by up to 20 %."""
    rng = random.Random(seed)
    each = level * brokers / count
    loads = [each * rng.uniform(0.8, 1.2) for _ in range(count)]
    made = cluster(loads, range(count), brokers, noise=0.2, seed=seed)
    made.run(Planner(SETTINGS), 12 * 60)
    check_bounds(made)
    by_bundle: dict[str, int] = {}
    for move in made.moves:
        by_bundle[move.bundle] = by_bundle.get(move.bundle, 0) + 1
    # Half a day: hardly a move, where a shedder without memory makes hundreds.
    assert len(made.moves) <= 12, "one an hour, at the worst"
    assert max(by_bundle.values(), default=0) <= 3


def test_a_lopsided_cluster_under_noise_is_put_right_and_then_left_alone() -> None:
    made = cluster([0.04] * 40, [0] * 40, 2, noise=0.2, seed=7)
    planner = Planner(SETTINGS)
    made.run(planner, 180)
    assert made.spread() <= 2 * SETTINGS.high
    settled = len(made.moves)
    assert 10 <= settled <= 22
    made.run(planner, 12 * 60)
    assert len(made.moves) - settled <= 2
    check_bounds(made)


def test_a_new_broker_is_filled_gently() -> None:
    made = cluster([0.02] * 60, list(range(60)), 2)
    planner = Planner(SETTINGS)
    made.run(planner, 10)
    assert not made.moves
    made.brokers.append("b2")
    made.run(planner, SETTINGS.rounds)
    into_new = [move for move in made.moves if move.target == "b2"]
    assert len(into_new) <= 2, "at most two at once"
    made.run(planner, 120)
    assert made.load_of("b2") >= 0.25
    assert max(map(made.load_of, made.brokers)) - made.load_of("b2") <= 0.25
    check_bounds(made)


def test_an_overloaded_broker_is_relieved_even_where_the_mean_is_high() -> None:
    made = cluster([0.05] * 31, [0] * 18 + [1] * 13, 2)
    assert made.load_of("b0") == pytest.approx(0.9)
    made.run(Planner(SETTINGS), 10)
    assert made.moves, "0.90 against 0.65: within the threshold, but overloaded"
    assert made.load_of("b0") < 0.9


def test_many_small_bundles_move_together() -> None:
    made = cluster([0.004] * 200, [0] * 200, 2)
    made.run(Planner(SETTINGS), 60)
    assert len(made.moves) > 40, "not two at a time"
    made.run(Planner(SETTINGS), 120)
    assert made.spread() <= 2 * SETTINGS.high
    check_bounds(made)


def test_nothing_moves_before_it_lasted() -> None:
    made = cluster([0.1] * 8, [0] * 8, 2)
    lines = made.run(Planner(SETTINGS), SETTINGS.rounds - 1)
    assert not made.moves
    assert all(isinstance(each, Nothing) for line in lines for each in line)
    made.run(Planner(SETTINGS), SETTINGS.rounds)
    assert made.moves


def test_dead_and_draining_brokers_are_no_targets() -> None:
    made = cluster([0.1] * 8, [0] * 8, 4)
    planner = Planner(SETTINGS)
    for _ in range(10):
        reports = made.reports()
        draining = [
            LoadReport(broker_id="b2", started_ms=0, updated_ms=0, draining=True)
            if report.broker_id == "b2"
            else report
            for report in reports
        ]
        for each in planner.plan(draining, ["b0", "b1", "b2"], made.now_ms):
            if isinstance(each, Move):
                assert each.target == "b1", "b2 drains, b3 is dead"
                made.owners[each.bundle] = each.target
                made.moves.append(PastMove(made.now_ms, each.bundle, each.source, each.target))
        made.now_ms += MINUTE_MS
    assert made.moves


def test_a_bundle_too_big_to_help_stays() -> None:
    made = cluster([0.6], [0], 2)
    lines = made.run(Planner(SETTINGS), 10)
    assert not made.moves
    last = lines[-1][-1]
    assert isinstance(last, Nothing)
    assert "fits" in last.why


def test_a_bundle_that_a_person_moved_rests_and_does_not_go_back() -> None:
    made = cluster([0.02] * 20, [number % 2 for number in range(20)], 2)
    planner = Planner(SETTINGS)
    made.run(planner, 5)
    for name in list(made.owners)[:12]:
        made.owners[name] = "b1"
    moved = {name for name, owner in made.owners.items() if owner == "b1"}
    made.bundles = dict.fromkeys(made.bundles, 0.04)
    lines = made.run(planner, 30)
    for move in made.moves:
        assert move.bundle in moved
        assert int(move.bundle[-4:]) % 2 == 1, "those that a person had just moved rest"
    assert lines


def test_a_new_leader_remembers_from_the_log() -> None:
    made = cluster([0.1] * 4, [0] * 4, 2)
    history = [PastMove(made.now_ms - MINUTE_MS, name, "b1", "b0") for name in made.bundles]
    made.run(Planner(SETTINGS, history), 25)
    assert not made.moves, "they rest"
    made.run(Planner(SETTINGS, history), 60)
    assert not made.moves, "and they came from the only other broker"
    made.run(Planner(SETTINGS, history), 60)
    assert made.moves


def test_a_clock_set_back_frees_nothing() -> None:
    made = cluster([0.1] * 4, [0] * 4, 2)
    history = [PastMove(made.now_ms + HOUR_MS, name, "b1", "b0") for name in made.bundles]
    made.run(Planner(SETTINGS, history), 30)
    assert not made.moves


def test_the_hours_budget_is_kept_and_said() -> None:
    tight = PlannerSettings(moves_per_hour_max=3)
    made = cluster([0.02] * 60, [0] * 60, 2)
    lines = made.run(Planner(tight), 60)
    assert len(made.moves) == 3
    check_bounds(made, tight)
    last = lines[-1][-1]
    assert isinstance(last, Nothing)
    assert "budget" in last.why


def test_switched_off_it_moves_nothing() -> None:
    made = cluster([0.1] * 8, [0] * 8, 2)
    made.run(Planner(PlannerSettings(shedding=False)), 10)
    assert not made.moves
