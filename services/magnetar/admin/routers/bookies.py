"""`/admin/v2/magnetar/…`: drains of bookies, and the health of the ledgers.

The operator removes bookies only if these routes allow it. Pulsar has no such routes; its commands
run inside a pod. The broker only writes and reads records: autorecovery does the work, so a drain
continues without this broker.

The first request imports autorecovery; a single broker refuses requests before that.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import bookies_of, service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import described
from magnetar.admin.http.routes import Routes
from magnetar.core.errors import NotFound, PreconditionFailed
from magnetar.ledger.bookies import BookieSet

router = Routes(prefix="/admin/v2/magnetar", tags=("bookies",))

REASON_CHARACTERS_MAX = 200


class DrainRequest(msgspec.Struct, frozen=True):
    """Body of `POST …/drain`: why the bookie is drained."""

    reason: str = ""


@router.get("/ledgers/health", summary="Whether every ledger has all its copies, and why not")
async def health(request: Request) -> Response:
    bookies = _bookies(request)
    from magnetar.autorecovery.audit.health_summary import ledger_health

    return answer(await ledger_health(service_of(request).store, bookies))


@router.get("/bookies/drains", summary="The bookies that are being drained, and the progress")
async def list_drains(request: Request) -> Response:
    _bookies(request)
    from magnetar.autorecovery.drain import drains

    return answer(await drains.read_all(service_of(request).store))


@router.post(
    "/bookies/{bookie:name}/drain",
    summary="Drain a bookie and prove its ledgers' copies elsewhere; continues a running drain",
    openapi_extra=described(body="The reason, for people", example={"reason": "scale-down"}),
)
async def begin(request: Request) -> Response:
    _bookies(request)
    from magnetar.autorecovery.drain import drains

    body = await bodies.parse(request, DrainRequest) or DrainRequest()
    service = service_of(request)
    reason = body.reason[:REASON_CHARACTERS_MAX]
    name, now_ms = _bookie(request), service.clock.now_ms()
    return answer(await drains.request(service.store, name, now_ms, reason), 202)


@router.get("/bookies/{bookie:name}/drain", summary="The progress of a bookie's drain")
async def progress(request: Request) -> Response:
    _bookies(request)
    from magnetar.autorecovery.drain import drains

    drain = await drains.read(service_of(request).store, _bookie(request))
    if drain is None:
        raise NotFound(f"Bookie {_bookie(request)} is not being emptied")
    return answer(drain)


@router.delete(
    "/bookies/{bookie:name}/drain", summary="Cancel a drain: the bookie takes new ledgers again"
)
async def cancel(request: Request) -> Response:
    _bookies(request)
    from magnetar.autorecovery.drain import drains

    if not await drains.cancel(service_of(request).store, _bookie(request)):
        raise NotFound(f"Bookie {_bookie(request)} is not being emptied")
    return done()


def _bookies(request: Request) -> BookieSet:
    bookies = bookies_of(request)
    if bookies is None:
        raise NotFound("There is only this process: its ledgers have one copy")
    return bookies


def _bookie(request: Request) -> str:
    name = text_of(request, "bookie")
    if "/" in name:
        raise PreconditionFailed("A bookie's name has no slash")
    return name
