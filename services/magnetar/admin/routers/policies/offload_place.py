"""Lets only super users choose the place of offloaded ledgers, if authorization is on.

Brokers and jobs write there as themselves, with the cluster's credentials: to a folder of their
machines, to any bucket that the credentials open, to any address. An admin of a tenant may use the
places that the brokers' settings or a super user chose, and set all else of the offload policies.
In Pulsar, a tenant's admin may name any place.
"""

from starlette.requests import Request

from magnetar.admin.rights.caller import CALLER, audited_action
from magnetar.broker.security.authorizer import Authorizer
from magnetar.broker.security.needs import SuperUserNeed
from magnetar.core.errors import AuthorizationError
from magnetar.offload.stores import StoreSpec


def check_place(request: Request, place: StoreSpec | None, *known: StoreSpec | None) -> None:
    """Raises AuthorizationError if the place is none of the `known` and no super user names it."""
    authorizer: Authorizer | None = request.app.state.authorizer
    if authorizer is None or place is None or place in known:
        return
    principal = CALLER.get()
    if principal is not None and authorizer.is_super_user(principal):
        return
    error = AuthorizationError(
        f"Only super users choose where ledgers are offloaded to, and {place} is not the place of "
        "the broker's settings or of policies that are set: leave out the driver, the bucket, the "
        "region and the address, or name those in force"
    )
    if principal is not None:
        address = request.client.host if request.client else ""
        authorizer.denials.record(
            principal, SuperUserNeed(), address, audited_action(request.scope), error.http_status
        )
    raise error
