"""What happens to the demo's server and consumers, and when: drawn from a seed, so it replays.

Time is progress, from 0 (nothing done) to 1 (all receipted and all seen), so that the same things
happen at the same messages on a slow machine as on a fast one, as near as two processes allow.
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
    """What a step does."""

    KILL_SERVER = "kill the server"
    JOIN = "a consumer joins"
    LEAVE = "a consumer leaves"
    KILL_CONSUMER = "kill a consumer"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens once progress has come to `at`; `pick` chooses whom it happens to."""

    at: float
    action: Action
    pick: float


def make_plan(seed: int, *, server_kills: int, consumer_changes: int) -> list[Step]:
    """The steps in order. There is always a consumer, and never more than CONSUMERS_MAX."""
    draw = random.Random(seed)
    consumers = CONSUMERS_AT_START
    steps: list[Step] = []
    for at in _spread(draw, consumer_changes):
        # The fewer there are, the likelier it is that one joins.
        actions = [Action.JOIN] * (CONSUMERS_MAX - consumers)
        actions += [Action.LEAVE, Action.KILL_CONSUMER] * (consumers - CONSUMERS_MIN)
        action = draw.choice(actions)
        consumers += 1 if action is Action.JOIN else -1
        steps.append(Step(at, action, draw.random()))
    steps += [Step(at, Action.KILL_SERVER, 0.0) for at in _spread(draw, server_kills)]
    return sorted(steps, key=lambda step: step.at)


def _spread(draw: random.Random, count: int) -> list[float]:
    """`count` moments, one at random in each of as many equal stretches."""
    width = (LAST_STEP - FIRST_STEP) / max(count, 1)
    return [FIRST_STEP + width * (index + draw.random()) for index in range(count)]
