"""Clusters, tenants, namespaces and topics' names, in the metadata store."""
