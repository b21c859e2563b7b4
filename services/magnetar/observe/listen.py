"""Binds ports before slow start-up work, so that a port in use is reported at once."""

import socket


def bind(host: str, port: int) -> socket.socket:
    """Returns a bound, non-blocking socket. Raises OSError if the port is not available."""
    # As bytes: a text is encoded by the `idna` codec, whose modules take 0.3 MiB.
    name = host.encode() if host.isascii() else host
    family, kind, proto, _, address = socket.getaddrinfo(
        name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
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
