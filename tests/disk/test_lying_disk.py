"""A real bookie on a disk that lies: never a wrong byte, never a receipt that a crash takes back.

The short form: one seed or two of each kind of day, and some planted mistakes, which the rig has to
notice. `make disk ARGS="--seeds 200"` is the long form, `make disk ARGS=--prove` plants all.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disk.acknowledged import Violation
from tests.disk.bugs import BUGS, SEEDS_MAX
from tests.disk.seed import run_seed
from tests.support.etcd import start_etcd

PLANTED = ("receipt before fsync", "names never synced", "failed sync is tried again")
"""Of those in `bugs.py`, the ones that show at once."""


@pytest.fixture(scope="module")
def metadata_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    etcd = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield etcd.url
    etcd.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("days", "seed"),
    [
        ("cut", 1),
        ("cut", 2),
        ("write errors", 1),
        ("write errors", 2),
        ("failed sync", 1),
        ("short writes", 1),
        ("lying reads", 1),
        ("full", 1),
        ("hang", 1),
        ("latent", 1),
        ("latent", 2),
        ("unreadable", 1),
        ("old index", 1),
    ],
)
async def test_a_disk_that_lies_costs_nothing_acknowledged(
    tmp_path: Path, metadata_url: str, days: str, seed: int
) -> None:
    run = await run_seed(seed, tmp_path / days, metadata_url, days=(days,))
    assert run.counts["receipts"], "nothing was acknowledged, so nothing was tried"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_mistake_is_noticed(tmp_path: Path, metadata_url: str, bug: str) -> None:
    """A rig that has found nothing proves nothing."""
    for seed in range(SEEDS_MAX):
        try:
            await run_seed(
                seed, tmp_path / bug, metadata_url, bug=bug, days=BUGS[bug].days, harsh=True
            )
        except Violation:
            return
    pytest.fail(f"{bug}: not noticed in {SEEDS_MAX} seeds")
