"""Which scenario a seed stands for: a theme, and choices drawn from the seed.

All random choices are made here, before anything runs. Themes only combine steps whose outcome
does not depend on time on a correct server: a step that changes something in the background is
followed by one that waits for its effect.
"""

from random import Random

from . import administration, consuming, publishing, transactional
from .steps import Scenario
from .walk import walk

# The theme of a seed is that of its place in the round. Chunked messages are large: few of them.
ROUND = (
    *(walk, walk, walk, walk, walk),
    *(consuming.takeover, consuming.keys, consuming.letters, consuming.partial_acks),
    *(consuming.readers, consuming.readers, consuming.delayed, consuming.unpersisted),
    *(publishing.access, publishing.deduplicated, publishing.schemas, publishing.schemas),
    *(publishing.ended, publishing.compacted, publishing.sized),
    *(administration.topics, administration.topics, administration.partitioned),
    *(administration.subscriptions, administration.policies, administration.policies),
    *(administration.limits, administration.backpressure),
)
RARE = {27: consuming.chunked, 83: consuming.chunked, 139: consuming.chunked}
# The seeds behind those of the first themes, which stay what they are.
TRANSACTIONAL = 12 * len(ROUND)
LATER_ROUND = (
    *(transactional.transacted, transactional.retried),
    *(transactional.transacted, transactional.retried, transactional.aborted),
)
COUNT = TRANSACTIONAL + 8 * len(LATER_ROUND)


def scenario(seed: int) -> Scenario:
    """Returns the scenario of a seed, always the same."""
    if seed >= TRANSACTIONAL:
        theme = LATER_ROUND[(seed - TRANSACTIONAL) % len(LATER_ROUND)]
    else:
        theme = RARE.get(seed) or ROUND[seed % len(ROUND)]
    return Scenario(seed, theme.__name__, tuple(theme(Random(f"{theme.__name__} {seed}"))))
