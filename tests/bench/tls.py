"""Measures the cost of TLS in a server's event loop, by variant.

    python -m tests.bench.tls [--runs 3] [--variants ours uvloop …]

Variants: `plain`; `ours` (`magnetar.security.tls` on uvloop), `ours-unpaced` (the same, with all
handshakes in one turn of the loop), `uvloop` (its own TLS), `asyncio` (the standard library's loop
and TLS), `ours-asyncio`. A server of each variant runs in a process of its own, with a protocol
that receives into a large buffer as the broker's does. Clients are blocking sockets of this
process. CPU is the server's own, so a busy machine changes it little.

- `in`: MiB received per CPU second, written by the client in pieces of 64 KiB;
- `out`: MiB sent per CPU second, in lists of parts of 1 KiB, as messages are dispatched;
- `echo`: CPU µs per request of 1 KiB with an answer of 40 bytes, one at a time;
- `handshakes`: 1,000 ClientHellos at once; CPU ms per handshake, and the wait of
  a connected client that sends a request every 2 ms meanwhile, p50, p99 and maximum, in ms;
- `idle`: KiB of memory per idle connection.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

from tests.support.certificates import Authority, Files

HOST: Final = "127.0.0.1"
PIECE: Final = b"x" * (64 << 10)
IN_MIB: Final = 512
OUT_MIB: Final = 256
ECHOES: Final = 10_000
HANDSHAKES: Final = 1_000
WITNESS_EVERY_S: Final = 0.002
RECEIPT: Final = b"r" * 40
ASK_OUT: Final = b"O" * 16
VARIANTS: Final = ("plain", "ours", "ours-unpaced", "uvloop", "asyncio", "ours-asyncio")
TIMEOUT_S: Final = 120.0


class Load(asyncio.BufferedProtocol):
    """Counts bulk data, answers each KiB of a request, and sends a stream when asked for it."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._bulk = False
        self._left = 0
        self._writable = True
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self._transport is not None
        if nbytes == len(ASK_OUT) and bytes(self._buffer[:nbytes]) == ASK_OUT:
            self._left = OUT_MIB << 20
            self._send()
        elif nbytes <= 1_024 and not self._bulk:
            self._transport.write(RECEIPT)
        else:
            self._bulk = True

    def _send(self) -> None:
        parts = [PIECE[:1_024]] * 64
        assert self._transport is not None
        while self._left > 0 and self._writable:
            self._left -= 64 << 10
            self._transport.writelines(parts)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._send()


async def serve(variant: str, cert: Path, key: Path) -> None:
    """Prints the port; then, for each line on the standard input, the current CPU and memory."""
    from magnetar.security.tls import pacer
    from magnetar.security.tls.reload import open_server_tls
    from magnetar.security.tls.settings import ServerTlsConfig
    from magnetar.security.tls.transport import server_factory

    loop = asyncio.get_running_loop()
    tls = open_server_tls(ServerTlsConfig(cert_file=cert, key_file=key))
    buffer = memoryview(bytearray(512 << 10))
    listener = socket.create_server((HOST, 0), backlog=4_096)
    factory: Callable[[], asyncio.BaseProtocol] = lambda: Load(buffer)  # noqa: E731
    context = None
    if variant.startswith("ours"):
        factory = server_factory(tls, factory)
    elif variant != "plain":
        context = tls.context
    if variant == "ours-unpaced":
        pacer.SLICE_S = 1e9  # type: ignore[misc]
    await loop.create_server(factory, sock=listener, ssl=context, backlog=4_096)
    print(listener.getsockname()[1], flush=True)
    ended = loop.create_future()

    def report() -> None:
        if not sys.stdin.readline():
            loop.remove_reader(sys.stdin.fileno())
            ended.set_result(None)
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        cpu_s = usage.ru_utime + usage.ru_stime
        print(json.dumps({"cpu_s": cpu_s, "rss": pages * resource.getpagesize()}), flush=True)

    loop.add_reader(sys.stdin.fileno(), report)
    await ended


class Server:
    """The process of one variant."""

    def __init__(self, variant: str, ca: Authority, files: Files) -> None:
        command = [sys.executable, "-m", "tests.bench.tls", "--serve", variant]
        self._process = subprocess.Popen(
            [*command, "--cert", str(files.cert), "--key", str(files.key)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.context = None if variant == "plain" else ca.client_context()

    def usage(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    @contextlib.contextmanager
    def cpu(self) -> Iterator[list[float]]:
        """Appends the CPU seconds that the server used in the block."""
        used: list[float] = []
        before = self.usage()["cpu_s"]
        yield used
        used.append(self.usage()["cpu_s"] - before)

    def connect(self) -> socket.socket:
        plain = socket.create_connection((HOST, self.port), TIMEOUT_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.context is None:
            return plain
        return self.context.wrap_socket(plain, server_hostname=HOST)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT_S)


def inbound(server: Server) -> dict[str, float]:
    """MiB per CPU second that the server receives."""
    with server.connect() as client, server.cpu() as used:
        for _ in range(IN_MIB << 4):
            client.sendall(PIECE)
        # The last bytes have arrived when the server's CPU time stays the same.
        last = -1.0
        while (now := server.usage()["cpu_s"]) - last > 0.002:
            last = now
            time.sleep(0.2)
    return {"in_mib_per_cpu_s": IN_MIB / used[0]}


def outbound(server: Server) -> dict[str, float]:
    """MiB per CPU second that the server sends."""
    buffer = bytearray(256 << 10)
    with server.connect() as client, server.cpu() as used:
        client.sendall(ASK_OUT)
        left = OUT_MIB << 20
        while left > 0:
            left -= client.recv_into(buffer)
    return {"out_mib_per_cpu_s": OUT_MIB / used[0]}


def echo(server: Server) -> dict[str, float]:
    """CPU µs of the server per request and answer."""
    request = b"q" * 1_000
    with server.connect() as client, server.cpu() as used:
        for _ in range(ECHOES):
            client.sendall(request)
            left = len(RECEIPT)
            while left:
                left -= len(client.recv(left))
    return {"echo_cpu_us": used[0] / ECHOES * 1e6}


class Witness(threading.Thread):
    """A connected client that records how long each of its requests takes."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.delays_s: list[float] = []
        self.ended = threading.Event()
        self._client = server.connect()

    def run(self) -> None:
        with self._client:
            while not self.ended.is_set():
                began = time.perf_counter()
                self._client.sendall(b"q" * 1_000)
                left = len(RECEIPT)
                while left:
                    left -= len(self._client.recv(left))
                self.delays_s.append(time.perf_counter() - began)
                time.sleep(WITNESS_EVERY_S)


def handshakes(server: Server) -> dict[str, float]:
    """Connects a thousand clients at once, beside a client that is already connected."""
    if server.context is None:
        return {}
    clients = []
    for _ in range(HANDSHAKES):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = server.context.wrap_bio(incoming, outgoing, server_hostname=HOST)
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        clients.append((tls, incoming, outgoing, outgoing.read()))
    witness = Witness(server)
    before = server.usage()["rss"]  # asyncio and uvloop create the state of TLS on accept
    sockets = [socket.create_connection((HOST, server.port), TIMEOUT_S) for _ in clients]
    time.sleep(0.5)
    began = time.perf_counter()
    with server.cpu() as used:
        witness.start()
        for plain, (_, _, _, hello) in zip(sockets, clients, strict=True):
            plain.sendall(hello)
        # The client's own half of the work waits until the server has answered all, so that both
        # do not compete for the processor while the witness measures.
        for plain in sockets:
            plain.recv(1, socket.MSG_PEEK)
        answered_s = time.perf_counter() - began
        witness.ended.set()
        witness.join(TIMEOUT_S)
        for plain, (tls, incoming, outgoing, _) in zip(sockets, clients, strict=True):
            _finish(plain, tls, incoming, outgoing)
    kept = server.usage()["rss"]
    for plain in sockets:
        plain.close()
    delays = sorted(witness.delays_s)
    return {
        "handshake_cpu_ms": used[0] / HANDSHAKES * 1e3,
        "handshakes_answered_s": answered_s,
        "witness_p50_ms": statistics.median(delays) * 1e3,
        "witness_p99_ms": delays[int(len(delays) * 0.99)] * 1e3,
        "witness_max_ms": delays[-1] * 1e3,
        "kib_per_idle": (kept - before) / HANDSHAKES / 1_024,
    }


def _finish(
    plain: socket.socket, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> None:
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            incoming.write(plain.recv(65_536))
            continue
        break
    plain.sendall(outgoing.read())


def measure(variants: list[str], runs: int) -> dict[str, dict[str, float]]:
    """Returns the medians of all variants, whose runs alternate."""
    rows: dict[str, dict[str, list[float]]] = {variant: {} for variant in variants}
    with tempfile.TemporaryDirectory() as directory:
        ca = Authority(Path(directory))
        files = ca.issue("server")
        for _ in range(runs):
            for variant in variants:
                server = Server(variant, ca, files)
                try:
                    for load in (echo, inbound, outbound, handshakes):
                        for name, value in load(server).items():
                            rows[variant].setdefault(name, []).append(value)
                finally:
                    server.close()
    return {
        variant: {name: round(statistics.median(values), 2) for name, values in found.items()}
        for variant, found in rows.items()
    }


def main() -> None:
    """Serves, or measures and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--serve", choices=VARIANTS)
    parser.add_argument("--cert", type=Path)
    parser.add_argument("--key", type=Path)
    args = parser.parse_args()
    if args.serve:
        run: Any = asyncio.run
        if "asyncio" not in args.serve:
            import uvloop

            run = uvloop.run
        run(serve(args.serve, args.cert, args.key))
        return
    rows = measure(args.variants, args.runs)
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    print("| | " + " | ".join(rows) + " |")
    print("|---" * (len(rows) + 1) + "|")
    for name in names:
        print(
            f"| {name} | " + " | ".join(str(found.get(name, "")) for found in rows.values()) + " |"
        )


if __name__ == "__main__":
    main()
