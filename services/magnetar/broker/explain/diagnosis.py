"""What a broker has for diagnosis: recent refusals, explanations, and the watch for stalls."""

from magnetar.broker.explain.explainer import Explainer
from magnetar.broker.explain.gather.parts import Parts
from magnetar.broker.explain.refusals import RecentRefusals
from magnetar.broker.explain.stall import StallWatch


class Diagnosis:
    """The parts that a broker's sessions, rounds and REST use."""

    def __init__(self, parts: Parts, broker_id: str) -> None:
        self.refusals: RecentRefusals = parts.refusals
        self.explainer = Explainer(parts, broker_id)
        self.stalls = StallWatch(parts)
