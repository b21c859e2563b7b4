"""Brokers by load, bookies by disk.

`figures` asks the clusters how far their subscriptions are behind, `metrics` makes values of it,
`api` and `serving` give them to HorizontalPodAutoscalers as external metrics, without a Prometheus.
`hpa` writes the autoscaler's metrics, `bookies` says when disks call for another bookie.
"""
