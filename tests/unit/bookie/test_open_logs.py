"""The cache of open entry logs: used by the flush, the collector and the threads of reads."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.bookie.test_collector import LOGS, Rig

from magnetar.bookie.entry_log.logs import EntryLogs, file_name
from magnetar.disk.files import File

COUNT = 4


class Guarded(OrderedDict[int, File]):
    """Open files by log, of which every use needs the lock."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__()
        self.lock = lock
        self.uses = 0

    def _check(self) -> None:
        self.uses += 1
        assert self.lock.locked(), "used without the lock"

    def get(self, *arguments: Any) -> Any:
        self._check()
        return super().get(*arguments)

    def pop(self, *arguments: Any) -> Any:
        self._check()
        return super().pop(*arguments)

    def popitem(self, last: bool = True) -> tuple[int, File]:
        self._check()
        return super().popitem(last)

    def move_to_end(self, key: int, last: bool = True) -> None:
        self._check()
        super().move_to_end(key, last)

    def clear(self) -> None:
        self._check()
        super().clear()

    def __setitem__(self, key: int, file: File) -> None:
        self._check()
        super().__setitem__(key, file)

    def __iter__(self) -> Iterator[int]:
        self._check()
        return super().__iter__()


@pytest.fixture
def rig() -> Rig:
    """A bookie's logs of different sizes, none of which is open."""
    rig = Rig()
    for number in range(1, COUNT + 1):
        log_id, file = rig.logs.create()
        file.write([bytes(number)], file.size())
        rig.logs.seal(log_id)
    return rig


def size(rig: Rig, log_id: int) -> int:
    return len(rig.disk.inodes[LOGS / file_name(log_id)].data)


@pytest.mark.parametrize("opened", [True, False])
def test_a_log_that_is_removed_is_gone_and_its_size_is_what_it_freed(
    rig: Rig, opened: bool
) -> None:
    expected = [size(rig, log_id) for log_id in range(1, COUNT + 1)]
    if opened:
        for log_id in range(1, COUNT + 1):
            rig.logs.file(log_id)
    assert [rig.logs.remove(log_id) for log_id in range(1, COUNT + 1)] == expected
    assert len(set(expected)) == COUNT
    assert rig.logs.ids() == []
    with pytest.raises(FileNotFoundError):
        rig.logs.file(1)


def test_a_reader_of_a_log_that_is_removed_meanwhile_can_finish(rig: Rig) -> None:
    file = rig.logs.file(2)
    rig.logs.remove(2)
    assert file.read(file.size() - 2, 2) == bytes(2)


def test_open_logs_are_used_under_the_lock_only(rig: Rig) -> None:
    """An unlocked read may meet an eviction by another thread, and reopen or keep a dead log."""
    logs: EntryLogs = rig.logs
    logs.settings = replace(logs.settings, entry_logs_open_max=2)
    guarded = logs._open = Guarded(logs._lock)
    for log_id in (1, 2, 1, 3, 4):
        assert logs.file(log_id).path == LOGS / file_name(log_id)
    assert len(guarded) == 2
    logs.remove(4)
    logs.remove(1)
    logs.close()
    assert guarded.uses > 8
    assert not guarded
