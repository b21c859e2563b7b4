"""How the OpenID Connect provider accepts the service accounts of Kubernetes."""

from typing import Literal

DiscoveryMode = Literal[
    "DISABLED",
    "KUBERNETES_DISCOVER_TRUSTED_ISSUER",
    "KUBERNETES_DISCOVER_PUBLIC_KEYS",
]
"""Pulsar's values of `openIDFallbackDiscoveryMode`."""
