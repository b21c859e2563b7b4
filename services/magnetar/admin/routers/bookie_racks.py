"""`/admin/v2/bookies/racks-info`: the racks and groups of bookies.

What is set here precedes the racks that bookies register with (`--rack`). Placement of new ledgers
and copies follows at once; ledgers that exist stay where they are.
"""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.context import bookies_of, service_of, text_of
from magnetar.admin.http import bodies
from magnetar.admin.http.answers import answer, done
from magnetar.admin.http.descriptions import described, query
from magnetar.admin.http.routes import Routes
from magnetar.bookie.racks import (
    GROUP_DEFAULT,
    Groups,
    Placed,
    change_racks,
    found,
    read_racks,
    with_bookie,
    without_bookie,
)
from magnetar.bookie.registration import RACK_DEFAULT
from magnetar.core.errors import NotFound, PreconditionFailed

router = Routes(prefix="/admin/v2/bookies", tags=("bookies",))

BOOKIES_MAX: Final = 2_000
"""Bookies with a rack that is set here: all are in one record."""
TEXT_CHARACTERS_MAX: Final = 256

_PATH: Final = "/racks-info/{bookie:name}"
_NOT_FOUND: Final = "Bookie rack placement configuration not found: {}"


class RackBody(msgspec.Struct, frozen=True):
    """The body of `POST …/racks-info/{bookie}`."""

    rack: str = ""
    hostname: str = ""


@router.get("/racks-info", summary="Racks and groups: those that are set, and those of the bookies")
async def racks(request: Request) -> Response:
    groups = {
        group: dict(members)
        for group, members in (await read_racks(service_of(request).store)).items()
    }
    cluster = bookies_of(request)
    for info in () if cluster is None else cluster.living():
        if info.rack != RACK_DEFAULT and found(groups, info.identity.bookie_id) is None:
            groups.setdefault(GROUP_DEFAULT, {})[info.identity.bookie_id] = Placed(info.rack)
    return answer(groups)


@router.get(_PATH, summary="The rack that is set for a bookie")
async def get_rack(request: Request) -> Response:
    bookie = text_of(request, "bookie")
    placed = found(await read_racks(service_of(request).store), bookie)
    if placed is None:
        raise NotFound(_NOT_FOUND.format(bookie))
    return answer(placed[1])


@router.post(
    _PATH,
    summary="Set the rack and the group of a bookie",
    openapi_extra=described(
        query("group", "string", "The group; `default` is that of all other bookies"),
        body="BookieInfo",
        example={"rack": "/region/rack", "hostname": "host"},
    ),
)
async def set_rack(request: Request) -> Response:
    bookie, group = text_of(request, "bookie"), request.query_params.get("group", "")
    if bookies_of(request) is None:
        raise PreconditionFailed("There is only this process: its ledgers have no racks to choose")
    if not group:
        raise PreconditionFailed("Bookie 'group' parameters is missing")
    body = await bodies.parse(request, RackBody) or RackBody()
    if body.rack.strip() in ("", "/"):
        raise PreconditionFailed(
            "rack name is invalid, it should not be null, empty or '/'", http_status=400
        )
    for field, text in (("group", group), ("rack", body.rack), ("hostname", body.hostname)):
        if len(text) > TEXT_CHARACTERS_MAX or (field == "group" and "," in text):
            raise PreconditionFailed(
                f"{field} must have at most {TEXT_CHARACTERS_MAX} characters, a group no comma"
            )

    def change(groups: Groups) -> Groups:
        changed = with_bookie(groups, group, bookie, Placed(body.rack, body.hostname))
        if sum(map(len, changed.values())) > BOOKIES_MAX:
            raise PreconditionFailed(f"At most {BOOKIES_MAX} bookies can have a rack")
        return changed

    await change_racks(service_of(request).store, change)
    return done()


@router.delete(_PATH, summary="Return a bookie to the rack that it registers with")
async def delete_rack(request: Request) -> Response:
    bookie = text_of(request, "bookie")

    def change(groups: Groups) -> Groups:
        if found(groups, bookie) is None:
            raise NotFound(_NOT_FOUND.format(bookie))
        return without_bookie(groups, bookie)

    await change_racks(service_of(request).store, change)
    return done()
