"""Pure builders: from a MagnetarCluster to the Kubernetes objects that make it up.

The same names, labels, ports and environment as the chart has where it makes the pods itself, so
that either can take over from the other.
"""
