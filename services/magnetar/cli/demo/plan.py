"""The plan of kills and consumer changes in the demo, drawn from a seed so that it can be repeated.

A step is due at a progress from 0 (nothing done) to 1 (all messages receipted and seen), not at a
time. Steps therefore happen at nearly the same messages on slow and on fast machines.
"""

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

CONSUMERS_AT_START: Final = 3
CONSUMERS_MIN: Final = 1
CONSUMERS_MAX: Final = 6
FIRST_STEP: Final = 0.03
LAST_STEP: Final = 0.92


class Action(Enum):
    """The kinds of steps."""

    KILL_SERVER = "kill the server"
    JOIN = "a consumer joins"
    LEAVE = "a consumer leaves"
    KILL_CONSUMER = "kill a consumer"


@dataclass(frozen=True, slots=True)
class Step:
    """An action that is due at progress `at`; `pick`, from 0 to 1, selects the consumer."""

    at: float
    action: Action
    pick: float


def make_plan(seed: int, *, server_kills: int, consumer_changes: int) -> list[Step]:
    """Returns the steps in order; they keep CONSUMERS_MIN to CONSUMERS_MAX consumers running."""
    draw = random.Random(seed)
    consumers = CONSUMERS_AT_START
    steps: list[Step] = []
    for at in _spread(draw, consumer_changes):
        # With fewer consumers, a join becomes more likely.
        actions = [Action.JOIN] * (CONSUMERS_MAX - consumers)
        actions += [Action.LEAVE, Action.KILL_CONSUMER] * (consumers - CONSUMERS_MIN)
        action = draw.choice(actions)
        consumers += 1 if action is Action.JOIN else -1
        steps.append(Step(at, action, draw.random()))
    steps += [Step(at, Action.KILL_SERVER, 0.0) for at in _spread(draw, server_kills)]
    return sorted(steps, key=lambda step: step.at)


def _spread(draw: random.Random, count: int) -> list[float]:
    """Draws one progress at random in each of `count` equal intervals."""
    width = (LAST_STEP - FIRST_STEP) / max(count, 1)
    return [FIRST_STEP + width * (index + draw.random()) for index in range(count)]
