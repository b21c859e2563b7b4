"""An HTTP forwarder between `pulsar-admin` and a server, which keeps the statuses.

The tool does not print them.

One request at a time per connection; bodies are read whole, since those of an admin API are small.
"""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REQUEST_TIMEOUT_S = 60.0
# The connection's own headers are not those of the next one; the length is computed anew.
HOP_HEADERS = frozenset(
    {"host", "connection", "transfer-encoding", "content-length", "date", "server"}
)


class Forwarder:
    """Where the tool connects, and the statuses since `take`."""

    def __init__(self, url: str, target: str) -> None:
        self.url = url
        self.target = target
        self._changed = threading.Condition()
        self._statuses: list[int] = []

    def note(self, status: int) -> None:
        with self._changed:
            self._statuses.append(status)
            self._changed.notify_all()

    def take(self, *, awaited: bool = False) -> list[int]:
        """Returns the statuses since the last call; `awaited`: there is at least one to come."""
        with self._changed:
            if awaited:
                self._changed.wait_for(lambda: self._statuses, REQUEST_TIMEOUT_S)
            taken, self._statuses = self._statuses, []
        return taken


@contextmanager
def forwarding(target: str) -> Iterator[Forwarder]:
    """Forwards from a free port to the server at this URL until the end of the block."""
    parts = urlsplit(target)
    host, port = str(parts.hostname), int(str(parts.port))
    forwarder = Forwarder("", target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}
            connection = http.client.HTTPConnection(host, port, timeout=REQUEST_TIMEOUT_S)
            try:
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            forwarder.note(answer.status)
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_HEADERS:
                    self.send_header(name, value)
            if answer.status != http.HTTPStatus.NO_CONTENT:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = forward

        def log_message(self, *arguments: object) -> None:
            """The runner records what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    forwarder.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, name="admin-forwarder", daemon=True)
    thread.start()
    try:
        yield forwarder
    finally:
        server.shutdown()
        thread.join(REQUEST_TIMEOUT_S)
        server.server_close()
