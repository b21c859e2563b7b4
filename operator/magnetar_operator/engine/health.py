"""Serves /healthz, /readyz and /metrics of the operator by `magnetar.observe.health`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from magnetar.observe.health import HealthServer, Probes
from magnetar.observe.listen import bind
from magnetar.observe.metrics import family, label_text, single
from magnetar_operator.engine.queue import ReconcileQueue
from magnetar_operator.kube.client import KubeClient


class Health:
    """Serves the probes and metrics of the operator. Call `start`, then `stop`."""

    def __init__(
        self,
        kube: KubeClient,
        queue: ReconcileQueue,
        leading: Callable[[], bool],
        figures: Sequence[Callable[[], Iterable[str]]] = (),
    ) -> None:
        self._figures = figures
        self._kube = kube
        self._queue = queue
        self._leading = leading
        # An operator that waits for the lease counts as ready: it cannot do more.
        probes = Probes(lambda: "", self._status, self._ready)
        self._server = HealthServer(probes, self._families)

    async def start(self, host: str, port: int) -> int:
        """Starts the server and returns its port; raises OSError if the port is in use."""
        return await self._server.start(bind(host, port))

    async def stop(self) -> None:
        """Closes the server and its connections."""
        await self._server.stop()

    def _ready(self) -> str:
        return "leading" if self._leading() else "waits for the lease"

    def _status(self) -> Mapping[str, object]:
        return {"leading": self._leading(), "waiting": self._queue.waiting}

    def _families(self) -> Iterator[str]:
        yield single("magnetar_operator_leading", "", int(self._leading()))
        yield single("magnetar_operator_waiting", "", self._queue.waiting)
        for name, by_kind in (
            ("magnetar_operator_reconciles_total", self._queue.reconciles),
            ("magnetar_operator_failures_total", self._queue.failures),
        ):
            kinds = sorted(by_kind)
            labels = [label_text([("kind", kind)]) for kind in kinds]
            yield family(name, labels, [by_kind[kind] for kind in kinds], "counter")
        requests = sorted(self._kube.requests.items())
        labels = [
            label_text([("verb", verb), ("group", group), ("resource", resource)])
            for (verb, group, resource), _ in requests
        ]
        counts = [count for _, count in requests]
        yield family("magnetar_operator_api_requests_total", labels, counts, "counter")
        for figures in self._figures:
            yield from figures()
