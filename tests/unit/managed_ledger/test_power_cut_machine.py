"""The cursor's state machine over a bookie whose disk loses unsynced data."""

import random
from pathlib import Path

from hypothesis import settings
from tests.support.sim_disk import SimDisk, SimIndexStore
from tests.unit.ledger.stage import StageOn
from tests.unit.managed_ledger.test_cursor_machine import CursorMachine

from magnetar.bookie.local import LocalBookie
from magnetar.bookie.settings import BookieSettings

DATA = Path("/data")
SETTINGS = BookieSettings(
    journal_file_bytes=12 << 10,
    journal_preallocate_bytes=4 << 10,
    journal_reserve_bytes=512,
    write_cache_bytes=6 << 10,
    block_bytes=700,
    block_bytes_max=1400,
    entry_log_bytes=8 << 10,
    disk_free_bytes_min=0,
)


class PowerCutMachine(CursorMachine):
    """A crash is a power cut, after which another bookie finds what the disk kept."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.index = SimIndexStore(self.disk, DATA / "index")
        self.stage = StageOn(self.run(self.open_bookie()))

    async def open_bookie(self) -> LocalBookie:
        return await LocalBookie.open(
            DATA,
            "b",
            settings=SETTINGS,
            files=self.disk,
            open_index=lambda _: self.index,
            threads=False,
        )

    async def cut_power(self, seed: int) -> None:
        self.disk.dead = True
        await self.stage.bookie.abort()
        self.disk = self.disk.after_cut(random.Random(seed))
        self.index = SimIndexStore(self.disk, DATA / "index", self.index.synced)
        self.stage.bookie = await self.open_bookie()


class TestCursorOverPowerCuts(PowerCutMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
