"""Measures what OpenSSL itself takes of a TLS connection: the floor of `idle connections`.

    python -m tests.bench.tls_floor [--count 2000]

Server and client are `ssl.SSLObject`s in one process, with the contexts of a server of ours: no
socket, no loop, no session. Prints the CPU µs of the server's half of a handshake, fastest and
median, with and without the root of the server's certificate among the CAs that OpenSSL builds its
chain from; and the bytes that a connected server side holds, by malloc's own count.

`PYTHONMALLOC=malloc` makes that count include Python's objects.
"""

import argparse
import contextlib
import ctypes
import gc
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.certificates import Authority

from magnetar.security.tls.contexts import presenting_context, server_context
from magnetar.security.tls.settings import ServerTlsConfig

HOST = "127.0.0.1"
CONNECT_BYTES = 300
CONNECTED_BYTES = 60


class Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_bytes() -> int:
    """Bytes that are allocated now."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


class Pair:
    """A server side and its client, until both are connected and each has sent a message."""

    def __init__(
        self,
        begin: ssl.SSLContext,
        verifying: ssl.SSLContext | None,
        client_context: ssl.SSLContext,
    ) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        to_client, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context.wrap_bio(to_client, from_client, server_hostname=HOST)
        _step(client.do_handshake)
        self.incoming.write(from_client.read())
        self.server = begin.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.cpu_s = _step(self.server.do_handshake)
        if verifying is not None:
            self.server.context = verifying
        to_client.write(self.outgoing.read())
        client.do_handshake()
        self.incoming.write(from_client.read())
        self.cpu_s += _step(self.server.do_handshake)
        client.write(bytes(CONNECT_BYTES))
        self.incoming.write(from_client.read())
        self.server.read(CONNECT_BYTES)
        self.server.write(bytes(CONNECTED_BYTES))
        self.outgoing.read()


def _step(work: Callable[[], object]) -> float:
    """Returns the CPU seconds of a step that may have to wait for the peer."""
    began = time.thread_time()
    with contextlib.suppress(ssl.SSLWantReadError):
        work()
    return time.thread_time() - began


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as directory:
        ca = Authority(Path(directory))
        files = ca.issue("server")
        config = ServerTlsConfig(cert_file=files.cert, key_file=files.key, trust_file=ca.file)
        verifying, presenting = server_context(config), presenting_context(config)
        client = ca.client_context()
    if presenting is None:
        sys.exit("the certificate's issuer is not a root of the trust file")
    for name, begin, then in (
        ("chain built in each handshake", verifying, None),
        ("certificate only", presenting, verifying),
    ):
        times_us = [Pair(begin, then, client).cpu_s * 1e6 for _ in range(count)]
        print(f"{name}: fastest {min(times_us):.0f} µs, median {statistics.median(times_us):.0f}")
    before = allocated_bytes()
    pairs = [Pair(presenting, verifying, client) for _ in range(count)]
    after = allocated_bytes()
    print(f"one connected server side: {(after - before) / count:,.0f} bytes with its BIOs")
    bios = [(pair.incoming, pair.outgoing) for pair in pairs]
    del pairs
    print(f"without its BIOs: {(after - allocated_bytes()) / len(bios):,.0f} bytes")


if __name__ == "__main__":
    main()
