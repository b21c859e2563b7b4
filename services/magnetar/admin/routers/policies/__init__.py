"""Policies of namespaces and topics over REST: routes generated from the registry, and others."""
