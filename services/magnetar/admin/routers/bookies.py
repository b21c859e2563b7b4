"""`/admin/v2/magnetar/…`: bookies to be emptied, and whether every ledger has its copies.

Not in Pulsar, where both are commands run inside a pod. A broker only notes and reads: the work is
autorecovery's, so it goes on when this broker does not. What an operator gates removals by.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin import bodies
from magnetar.admin.answers import answer, done
from magnetar.admin.context import bookies_of, service_of, text_of
from magnetar.admin.described import described
from magnetar.admin.routes import Routes
from magnetar.autorecovery import drains
from magnetar.autorecovery.health_summary import ledger_health
from magnetar.core.errors import NotFound, PreconditionFailed
from magnetar.ledger.bookies import BookieSet

router = Routes(prefix="/admin/v2/magnetar", tags=("bookies",))

REASON_CHARACTERS_MAX = 200


class DrainRequest(msgspec.Struct, frozen=True):
    """Why a bookie is to be emptied."""

    reason: str = ""


@router.get("/ledgers/health", summary="Whether every ledger has all its copies, and why not")
async def health(request: Request) -> Response:
    return answer(await ledger_health(service_of(request).store, _bookies(request)))


@router.get("/bookies/drains", summary="The bookies that are being emptied, and how far that is")
async def list_drains(request: Request) -> Response:
    _bookies(request)
    return answer(await drains.read_all(service_of(request).store))


@router.post(
    "/bookies/{bookie:name}/drain",
    summary="Empties a bookie and proves its ledgers' copies elsewhere; goes on where it is begun",
    openapi_extra=described(body="Why, for people", example={"reason": "scale-down"}),
)
async def begin(request: Request) -> Response:
    _bookies(request)
    asked = await bodies.parse(request, DrainRequest) or DrainRequest()
    service = service_of(request)
    reason = asked.reason[:REASON_CHARACTERS_MAX]
    name, now_ms = _bookie(request), service.clock.now_ms()
    return answer(await drains.request(service.store, name, now_ms, reason), 202)


@router.get("/bookies/{bookie:name}/drain", summary="How far the emptying of a bookie is")
async def progress(request: Request) -> Response:
    _bookies(request)
    drain = await drains.read(service_of(request).store, _bookie(request))
    if drain is None:
        raise NotFound(f"Bookie {_bookie(request)} is not being emptied")
    return answer(drain)


@router.delete("/bookies/{bookie:name}/drain", summary="Lets the bookie take new ledgers again")
async def cancel(request: Request) -> Response:
    _bookies(request)
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
