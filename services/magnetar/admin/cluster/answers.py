"""Answers of peers: refusals, merges, and the data of all other brokers.

A request to several peers tolerates some statuses, which mean that a peer had nothing to do. Any
other refusal is the answer to the whole request. If all peers refuse, the first refusal is the
answer.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from magnetar.admin.cluster.peers import is_from_peer
from magnetar.admin.cluster.placement import peers_of
from magnetar.admin.cluster.sender import PeerAnswer
from magnetar.admin.http.answers import JSON, answer, done
from magnetar.core.errors import MagnetarError

Merge = Callable[[Sequence[PeerAnswer]], Response]

NOT_FOUND: Final = frozenset({404})
NOT_FOUND_OR_CONFLICT: Final = frozenset({404, 409})


class Refused(MagnetarError):
    """The refusal of a peer, which is passed on to the client."""


class _Reason(msgspec.Struct):
    """A refusal in Pulsar's form."""

    reason: object = None


def refusal_of(answers: Sequence[PeerAnswer], tolerated: Collection[int]) -> Response | None:
    """Returns the refusal that answers the whole request; None if the request succeeded.

    That is the first refusal with a status that is not tolerated, or the first one of all if every
    partition refuses.
    """
    refusals = [answer for answer in answers if not answer.succeeded]
    serious = [answer for answer in refusals if answer.status not in tolerated]
    chosen = serious or (refusals if len(refusals) == len(answers) else [])
    if not chosen:
        return None
    return Response(chosen[0].body, chosen[0].status, media_type=JSON)


def all_succeeded(tolerated: Collection[int] = NOT_FOUND) -> Merge:
    """Returns the merge that answers 204 if a partition succeeded and no other refused."""

    def merge(answers: Sequence[PeerAnswer]) -> Response:
        return refusal_of(answers, tolerated) or done()

    return merge


def merged_lists(answers: Sequence[PeerAnswer]) -> Response:
    """Merges lists of texts into one sorted list without duplicates."""
    if (refusal := refusal_of(answers, NOT_FOUND)) is not None:
        return refusal
    merged: set[str] = set()
    for part in answers:
        if part.succeeded:
            merged.update(msgspec.json.decode(part.body, type=list[str]))
    return answer(sorted(merged))


def merged_objects(answers: Sequence[PeerAnswer]) -> Response:
    """Merges JSON objects into one; later partitions win."""
    if (refusal := refusal_of(answers, NOT_FOUND)) is not None:
        return refusal
    merged: dict[str, object] = {}
    for part in answers:
        if part.succeeded:
            merged |= msgspec.json.decode(part.body, type=dict[str, object])
    return answer(merged)


def raise_refusal(answers: Sequence[PeerAnswer], tolerated: Collection[int]) -> None:
    """Raises the first refusal with a status that is not tolerated."""
    for part in answers:
        if not part.succeeded and part.status not in tolerated:
            raise Refused(reason_of(part), http_status=part.status)


def reason_of(refusal: PeerAnswer) -> str:
    """Returns the reason of a refusal; the body, or else the status, if it has none."""
    try:
        reason = msgspec.json.decode(refusal.body, type=_Reason).reason
    except msgspec.MsgspecError:
        reason = None
    text = refusal.body.decode("utf-8", "replace")
    return str(reason or text or f"status {refusal.status}")


async def answers_of_peers(request: Request, path: str, query: str = "") -> list[PeerAnswer]:
    """Requests a path of all other brokers, for their own data; raises the first refusal.

    Returns nothing on a single broker, and if a peer sent the request: it collects the answers.
    """
    peers = peers_of(request)
    if peers is None or is_from_peer(request):
        return []
    answers = await peers.request_brokers(request, path, query)
    raise_refusal(answers, ())
    return answers
