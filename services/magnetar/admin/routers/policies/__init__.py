"""Policies of namespaces and topics over REST: a walk over the registry, and what it cannot say."""
