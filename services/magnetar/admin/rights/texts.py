"""The errors for requests that are not permitted, with Pulsar's texts and status codes.

The status depends on the kind of the right, as in Pulsar: operations on topics and tenants answer
401, those on namespaces and policies 403. pulsar-admin treats both alike.
"""

from typing import Final

from magnetar.broker.security.needs import (
    AnyRoleNeed,
    NamespaceNeed,
    Need,
    PolicyNeed,
    PublicNeed,
    SuperUserNeed,
    TenantAdminNeed,
    TenantNeed,
    TenantOperation,
    TopicNeed,
)
from magnetar.broker.security.principal import Principal
from magnetar.core.errors import AuthorizationError
from magnetar.core.names import TopicName

_OF_TENANTS: Final = frozenset(
    {
        TenantOperation.GET_TENANT,
        TenantOperation.UPDATE_TENANT,
        TenantOperation.DELETE_TENANT,
    }
)


def refusal(principal: Principal, need: Need) -> AuthorizationError:
    """Returns the error for a principal without the right."""
    match need:
        case SuperUserNeed(check="") if principal.original is None:
            return AuthorizationError("This operation requires super-user access", http_status=401)
        case SuperUserNeed(check=""):
            return AuthorizationError(
                "Proxy not authorized for super-user operation "
                f"(proxy:{principal.role},original:{principal.original})",
                http_status=401,
            )
        case SuperUserNeed(check=check, operation=operation, subject=subject):
            return AuthorizationError(
                f"Unauthorized to {check} for {_named(principal)} about operation [{operation}] "
                f"{subject}",
                http_status=401,
            )
        case TenantAdminNeed() if principal.original is not None:
            return AuthorizationError(
                "Proxy not authorized to access resource "
                f"(proxy:{principal.role},original:{principal.original})",
                http_status=401,
            )
        case TenantAdminNeed():
            return AuthorizationError(
                "Don't have permission to administrate resources on this tenant", http_status=401
            )
        case TenantNeed(operation=operation) if operation in _OF_TENANTS:
            return AuthorizationError(
                f"Unauthorized to validateBothTenantOperationAndSuperUser for {_named(principal)} "
                f"about operation [{operation.value}] ",
                http_status=401,
            )
        case TenantNeed(tenant=tenant, operation=operation):
            return AuthorizationError(
                f"Unauthorized to validateTenantOperation for {_named(principal)} about operation "
                f"[{operation.value}] on tenant [{tenant}]",
                http_status=401,
            )
        case TopicNeed(topic=topic, operation=operation):
            return AuthorizationError(
                f"Unauthorized to validateTopicOperation for operation [{operation.value}] on "
                f"topic [{topic}]",
                http_status=401,
            )
        case NamespaceNeed(namespace=namespace, operation=operation):
            return AuthorizationError(
                f"Unauthorized to validateNamespaceOperation for operation [{operation.value}] on "
                f"namespace [{namespace}]"
            )
        case PolicyNeed(owner=owner, policy=policy, operation=operation):
            is_topic = isinstance(owner, TopicName)
            method = (
                "validateTopicPolicyOperation" if is_topic else ("validateNamespacePolicyOperation")
            )
            kind = "topic" if is_topic else "namespace"
            return AuthorizationError(
                f"Unauthorized to {method} for operation [{operation.value}] on {kind} [{owner}] "
                f"on policy [{policy.value}]"
            )
        case AnyRoleNeed() | PublicNeed():
            return AuthorizationError("Not authorized")


def _named(principal: Principal) -> str:
    """Returns the roles of a principal as Pulsar's errors name them."""
    original = principal.original or "null"
    return f"originalPrincipal [{original}] and clientAppId [{principal.role}]"
