"""The rig of `killed_rig` itself, over a Kubernetes API in memory."""

from tests.operator.killed_rig import Log, MortalKube, Process
from tests.operator.memory_kube import MemoryKube
from tests.support.stepped_loop import FakeClock

from magnetar_operator.engine.context import Context
from magnetar_operator.kube.kinds import CLUSTER, Kind, Object
from magnetar_operator.settings import Settings


class HealingWorld:
    """A `killed_rig.World` whose ledgers heal after a reconcile has observed them.

    `heals` finds them healthy: they healed by themselves in the real time since that reconcile.
    """

    namespace = "ns"
    kinds: tuple[Kind, ...] = (CLUSTER,)
    settings = Settings(namespaces=("ns",))

    def __init__(self) -> None:
        self.healthy = False
        self.observed: list[bool] = []

    def register(self, context: Context) -> None:
        context.queue.register(CLUSTER.kind, self._reconcile)

    async def _reconcile(self, _: Object) -> float | None:
        self.observed.append(self.healthy)
        return None

    def objects(self, kind: Kind) -> list[Object]:
        metadata = {"name": "c", "namespace": "ns", "uid": "u"}
        return [{"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}]

    def settle(self) -> bool:
        return False

    def heals(self) -> bool:
        self.healthy = True
        return False


class MemoryProcess(Process):
    """A `killed_rig.Process` whose Kubernetes API is in memory."""

    api = MemoryKube()

    def _kube(self) -> MortalKube:
        kube = self.api.connect(MortalKube)
        kube.loop, kube.log = self.loop, self._log
        return kube


def test_the_last_reconcile_observes_healed_ledgers() -> None:
    """Else the disruption budget of bookies would stay at 0, as of the reconcile before."""
    world = HealingWorld()
    process = MemoryProcess(world, FakeClock(), Log())
    assert not process.run()
    assert world.observed[0] is False
    assert world.observed[-1] is True
