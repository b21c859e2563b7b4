"""Opening a data directory: whose it is, who has it, and what is refused."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from magnetar.bookie import identity
from magnetar.bookie import journal_codec_v1 as codec
from magnetar.bookie.api import ID_END, NoSuchLedger
from magnetar.bookie.identity import DataDirError, Identity
from magnetar.bookie.local import LocalBookie

from .conftest import Opener, add, read_all


async def test_a_second_opener_is_told_who_has_it(open_bookie: Opener, tmp_path: Path) -> None:
    await open_bookie()
    with pytest.raises(DataDirError, match=rf"{tmp_path}.*in use by process {os.getpid()}"):
        await open_bookie()


async def test_it_can_be_opened_again_after_close(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    before = bookie.identity
    await bookie.close()
    bookie = await open_bookie()
    assert bookie.identity == before
    assert await read_all(bookie, 1) == [0, 1, 2]


async def test_a_failed_open_leaves_nothing_locked(open_bookie: Opener) -> None:
    await (await open_bookie()).close()
    with pytest.raises(DataDirError, match="bookie 'b1', not of 'b2'"):
        await open_bookie(bookie_id="b2")
    await open_bookie()


async def test_an_empty_disk_is_another_incarnation(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    before = bookie.identity
    await bookie.close()
    shutil.rmtree(tmp_path / "data")
    bookie = await open_bookie()
    assert bookie.identity.bookie_id == before.bookie_id
    assert bookie.identity.incarnation != before.incarnation


async def test_a_newer_format_is_refused(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    public = bookie.identity
    await bookie.close()
    newer = Identity(public.bookie_id, public.incarnation, 2)
    (tmp_path / "data" / "identity").write_bytes(identity.encode(newer))
    with pytest.raises(DataDirError, match="format version 2"):
        await open_bookie()


async def test_data_without_an_identity_is_not_formatted(
    open_bookie: Opener, tmp_path: Path
) -> None:
    await (await open_bookie()).close()
    (tmp_path / "data" / "identity").unlink()
    with pytest.raises(DataDirError, match="no identity file"):
        await open_bookie()


async def test_a_lost_index_is_not_taken_for_a_new_one(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    await bookie.close()
    shutil.rmtree(tmp_path / "data" / "index")
    with pytest.raises(DataDirError, match="index is empty although entries were stored"):
        await open_bookie()


async def test_an_index_of_another_bookie_is_refused(open_bookie: Opener, tmp_path: Path) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    await bookie.close()
    other = await LocalBookie.open(tmp_path / "other", "b1")
    await add(other, 1, range(3))
    await other.close()
    shutil.rmtree(tmp_path / "data" / "index")
    shutil.copytree(tmp_path / "other" / "index", tmp_path / "data" / "index")
    with pytest.raises(DataDirError, match="belongs to another bookie"):
        await open_bookie()


@pytest.mark.parametrize("content", [b"", b"garbage", None])
async def test_without_its_checkpoint_the_whole_journal_is_replayed(
    open_bookie: Opener, tmp_path: Path, content: bytes | None
) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(5))
    await bookie.flush()
    await add(bookie, 1, range(5, 8))
    await bookie.ledger_end(1, fence=True)
    await bookie.abort()
    path = tmp_path / "data" / "checkpoint"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    bookie = await open_bookie()
    assert await read_all(bookie, 1) == list(range(8))
    assert (await bookie.ledger_end(1)).fenced
    assert bookie.stats().damaged_ranges == 0
    assert bookie.stats().ledgers_in_limbo_through == -1


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "a/b"])
async def test_a_bookie_id_is_checked(open_bookie: Opener, name: str) -> None:
    with pytest.raises(DataDirError, match="invalid bookie id"):
        await open_bookie(bookie_id=name)


async def test_a_fence_is_kept_though_its_caller_has_gone(open_bookie: Opener) -> None:
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    await bookie.flush()
    asking = asyncio.create_task(bookie.ledger_end(1, fence=True))
    await asyncio.sleep(0)  # its record is queued
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert asking.cancelled()
    # Durable after the fence, so that the checkpoint of the flush is beyond both.
    await add(bookie, 2, range(1))
    await bookie.flush()
    await bookie.abort()
    bookie = await open_bookie()
    assert (await bookie.ledger_end(1)).fenced


@pytest.mark.parametrize("first", [ID_END - 1, ID_END])
async def test_a_record_of_entries_that_cannot_be_is_skipped(
    first: int, open_bookie: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older release journalled and acknowledged such a group."""
    bookie = await open_bookie()
    await add(bookie, 1, range(3))
    done = asyncio.Event()
    bookie._journal.append(
        codec.KIND_ADD,
        5,
        lambda _: done.set(),
        entry_ids=range(first, first + 2),
        lengths=codec.pack_lengths([b"a", b"b"]),
        body=(b"ab",),
        body_bytes=2,
        body_crc=codec.entries_crc([b"ab"]),
    )
    await asyncio.wait_for(done.wait(), 20)
    await add(bookie, 1, range(3, 6))
    await bookie.abort()
    bookie = await open_bookie()
    assert "journal record skipped" in caplog.text
    assert await read_all(bookie, 1) == list(range(6))
    await bookie.flush()
    with pytest.raises(NoSuchLedger):
        await bookie.ledger_end(5)
    assert await add(bookie, 5, range(3)) is None
