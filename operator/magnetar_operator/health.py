"""/healthz, /readyz and /metrics of the operator's process.

A plain asyncio server: one GET for each connection, answered at once. Bounds: REQUEST_BYTES_MAX of
a request's head, REQUEST_TIMEOUT_S for it to come.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from magnetar_operator.kube import KubeClient
from magnetar_operator.work import Work

REQUEST_BYTES_MAX: Final = 8 << 10
REQUEST_TIMEOUT_S: Final = 5.0


class Health:
    """`start`, then `stop`."""

    def __init__(
        self,
        kube: KubeClient,
        work: Work,
        leading: Callable[[], bool],
        figures: Sequence[Callable[[], Iterable[str]]] = (),
    ) -> None:
        self._figures = figures
        self._kube = kube
        self._work = work
        self._leading = leading
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Returns the port; raises OSError where it is in use."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, body = self._answer(head.split(b" ", 2)[1].decode("latin-1"))
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return
        except IndexError:
            return
        finally:
            writer.close()

    def _answer(self, path: str) -> tuple[str, bytes]:
        match path.partition("?")[0]:
            case "/healthz":
                return "200 OK", b"ok\n"
            case "/readyz":
                # One that waits for the lease is as ready as it can be.
                return "200 OK", b"leading\n" if self._leading() else b"waits for the lease\n"
            case "/metrics":
                return "200 OK", "".join(self._lines()).encode()
        return "404 Not Found", b"only /healthz, /readyz and /metrics are here\n"

    def _lines(self) -> Iterator[str]:
        yield "# TYPE magnetar_operator_leading gauge\n"
        yield f"magnetar_operator_leading {int(self._leading())}\n"
        yield "# TYPE magnetar_operator_waiting gauge\n"
        yield f"magnetar_operator_waiting {self._work.waiting}\n"
        yield "# TYPE magnetar_operator_reconciles_total counter\n"
        for kind, count in sorted(self._work.looks.items()):
            yield f'magnetar_operator_reconciles_total{{kind="{kind}"}} {count}\n'
        yield "# TYPE magnetar_operator_failures_total counter\n"
        for kind, count in sorted(self._work.failures.items()):
            yield f'magnetar_operator_failures_total{{kind="{kind}"}} {count}\n'
        yield "# TYPE magnetar_operator_api_requests_total counter\n"
        for (verb, group, resource), count in sorted(self._kube.requests.items()):
            labels = f'verb="{verb}",group="{group}",resource="{resource}"'
            yield f"magnetar_operator_api_requests_total{{{labels}}} {count}\n"
        for further in self._figures:
            yield from further()
