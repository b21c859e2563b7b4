"""idle_connections URL COUNT: connects so often, prints how long that took, and waits for a line.

Raw connections: TCP, TLS for `pulsar+ssl://`, CONNECT with the token if there is one, CONNECTED.
`pulsar.Client` would pool them. Pings are answered while the others connect.
"""

import json
import os
import resource
import select
import socket
import ssl
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from magnetar.wire._pb import PulsarApi_pb2 as pb
from magnetar.wire.commands import CommandType
from magnetar.wire.encoder import PONG_FRAME, encode_command

SPARE_FILES = 100
FRAME_HEADER_BYTES = 8
ANSWER_EVERY = 100
TIMEOUT_S = 60.0


def answer_pings(readable: select.poll, connections: dict[int, socket.socket]) -> None:
    """Answers each connection that has been sent something, which can only be a PING."""
    for descriptor, _ in readable.poll(0):
        connections[descriptor].recv(4_096)
        connections[descriptor].sendall(PONG_FRAME)


def main(url: str, count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + SPARE_FILES,) * 2)
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    context = None
    if address.scheme == "pulsar+ssl":
        context = ssl.create_default_context(cafile=os.environ["BENCH_CA_FILE"])
    command = pb.CommandConnect(client_version="bench", protocol_version=21)
    if (token_file := os.environ.get("BENCH_TOKEN_FILE")) is not None:
        command.auth_method_name = "token"
        command.auth_data = Path(token_file).read_bytes()
    connect = encode_command(CommandType.CONNECT, command)
    kept: dict[int, socket.socket] = {}
    readable = select.poll()
    started = time.perf_counter()
    for _ in range(count):
        connection = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        # As clients do; else the kernel holds CONNECT back until the server acknowledges Finished.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=address.hostname)
        connection.sendall(connect)
        answer = pb.BaseCommand.FromString(connection.recv(4_096)[FRAME_HEADER_BYTES:])
        if answer.type != CommandType.CONNECTED:
            raise SystemExit(f"the server refused a connection: {answer}")
        kept[connection.fileno()] = connection
        readable.register(connection, select.POLLIN)
        if len(kept) % ANSWER_EVERY == 0:
            answer_pings(readable, kept)
    print(json.dumps({"seconds": round(time.perf_counter() - started, 2)}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
