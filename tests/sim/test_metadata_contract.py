"""The contract of every metadata store, held to by the simulation's own, on its own loop.

What the simulation puts in the place of etcd must be a metadata store, or it would find bugs that
are not there and miss those that are.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.contract.metadata import (
    test_leases_contract,
    test_records_contract,
    test_watches_contract,
)
from tests.contract.metadata.conftest import Form
from tests.sim.clocks import SimClock
from tests.sim.loop import Process, SimLoop, run
from tests.sim.metadata import MetadataClient, MetadataServer
from tests.sim.network import Network

TTL_S = 5.0

EXCEPT = {
    # A watch of the simulation polls: it holds nothing that could be read after `close`.
    "test_close_ends_watches_after_what_they_hold",
}

Test = Callable[..., Coroutine[Any, Any, None]]


def contract() -> list[Test]:
    """Every test of the contract that asks for nothing but a store."""
    return [
        test
        for module in (test_leases_contract, test_records_contract, test_watches_contract)
        for name, test in vars(module).items()
        if name.startswith("test_")
        and name not in EXCEPT
        and inspect.iscoroutinefunction(test)
        and set(inspect.signature(test).parameters) <= {"form", "store"}
    ]


def test_the_contract_is_found() -> None:
    assert len(contract()) > 30


@pytest.mark.parametrize("test", contract(), ids=lambda test: test.__name__)
def test_contract(test: Test) -> None:
    loop = SimLoop(1)
    server = MetadataServer(loop, Network(loop))
    process = Process(loop, "client", "client")

    async def work() -> None:
        client = MetadataClient(server, SimClock(loop))

        async def advance(seconds: float) -> None:
            await asyncio.sleep(seconds)
            await client.revision()

        async def forget() -> None:
            server.compact()

        form = Form(client, advance, forget, TTL_S, keeps_past=False)
        given: dict[str, object] = {"form": form, "store": client}
        await test(**{name: given[name] for name in inspect.signature(test).parameters})
        await client.close()

    async def main() -> None:
        await process.start(work(), "work")

    run(loop, main())
