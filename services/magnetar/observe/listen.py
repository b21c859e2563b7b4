"""Ports, taken before anything slow is done, so that one in use is told at once."""

import socket


def bind(host: str, port: int) -> socket.socket:
    """The listening socket's socket, bound; raises OSError where the port is not to be had."""
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
