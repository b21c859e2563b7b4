"""Connections to the other brokers of the cluster, over the binary protocol."""
