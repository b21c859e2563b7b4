"""Measures what waking up, syncing and answering take of any server: the floor of `batching`.

    python -m tests.bench.batching_floor [--rates 90 800] [--seconds 10] [--turns 5]

The server is the smallest program with the steps of a standalone: uvloop reads a frame, a thread
makes it durable with one write, and a wake-up of the loop answers it. It decodes nothing and keeps
nothing. The client sends frames of 1.6 KiB at the rates of entries that `batching` prints for our
client and for Java's. Printed is the CPU of the server process per frame. A frame costs more at a
low rate: the caches are cold, and a CPU that halted must be woken.
"""

import argparse
import asyncio
import contextlib
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Final, cast

import uvloop

HOST: Final = "127.0.0.1"
FRAME_BYTES: Final = 1_640
"""An entry of eleven compressed messages."""
RECEIPT_BYTES: Final = 48
BLOCK_BYTES: Final = 4_096
JOURNAL_BYTES: Final = 64 << 20
WARM_S: Final = 1


class Journal(threading.Thread):
    """Writes a block per frame around the page cache, as durable as the journal of a bookie."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        super().__init__(daemon=True, name="floor-journal")
        self._loop = loop
        self.queue: SimpleQueue[asyncio.Transport] = SimpleQueue()
        plain_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        os.posix_fallocate(plain_fd, 0, JOURNAL_BYTES)
        os.fsync(plain_fd)
        os.close(plain_fd)
        self._fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)

    def run(self) -> None:
        block = mmap.mmap(-1, BLOCK_BYTES)
        at = 0
        receipt = bytes(RECEIPT_BYTES)
        while True:
            transport = self.queue.get()
            os.pwritev(self._fd, [block], at // BLOCK_BYTES * BLOCK_BYTES, os.RWF_DSYNC)
            at = (at + FRAME_BYTES) % JOURNAL_BYTES
            self._loop.call_soon_threadsafe(transport.write, receipt)


class Server(asyncio.Protocol):
    """Passes every frame on."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._transport: asyncio.Transport
        self._received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        while self._received_bytes >= FRAME_BYTES:
            self._received_bytes -= FRAME_BYTES
            self._journal.queue.put(self._transport)


async def serve(path: Path) -> None:
    """Prints the port, and serves until the input ends."""
    loop = asyncio.get_running_loop()
    journal = Journal(loop, path)
    journal.start()
    server = await loop.create_server(lambda: Server(journal), HOST, 0)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


def cpu_ns(pid: int) -> int:
    """CPU that the threads of a process have taken, by the scheduler's own count."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


async def frames(port: int, rate: int, seconds: int) -> None:
    """Sends frames at a fixed rate, and waits for the receipt of the last one."""
    reader, writer = await asyncio.open_connection(HOST, port)
    frame, count = bytes(FRAME_BYTES), rate * seconds
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(count):
        await asyncio.sleep(began + number / rate - loop.time())
        writer.write(frame)
    await reader.readexactly(count * RECEIPT_BYTES)
    writer.close()
    await writer.wait_closed()


def measure(path: Path, rate: int, seconds: int) -> float:
    """Returns the µs of CPU that the server takes per frame."""
    command = [sys.executable, "-m", "tests.bench.batching_floor", "--serve", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            asyncio.run(frames(port, rate, WARM_S))
            before_ns = cpu_ns(process.pid)
            asyncio.run(frames(port, rate, seconds))
            used_ns = cpu_ns(process.pid) - before_ns
        finally:
            process.kill()
    return used_ns / 1000 / (rate * seconds)


def main() -> None:
    """Prints the medians of each rate; the rates take turns."""
    if sys.argv[1:2] == ["--serve"]:
        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(serve(Path(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="*", default=[90, 800])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    found: dict[int, list[float]] = {rate: [] for rate in options.rates}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            for rate in found:
                path = Path(folder) / f"journal-{turn}-{rate}"
                found[rate].append(measure(path, rate, options.seconds))
                path.unlink()
    print(f"{'frames/s':>12}{'CPU us each':>14}")
    for rate, values in found.items():
        print(f"{rate:12}{median(values):14.1f}")


if __name__ == "__main__":
    main()
