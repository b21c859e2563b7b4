"""Builds the Kubernetes objects of a MagnetarCluster. Pure: no IO.

Names, labels, ports and environment are the same as in the chart's own pods, so that the operator
can take over from the chart, and the reverse.
"""
