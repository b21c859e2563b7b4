"""Scales brokers by load, and advises on bookies by disk use.

`figures` reads the backlogs from the clusters, `metrics` computes values from them, and `api` and
`server` serve these to HorizontalPodAutoscalers as external metrics, without a Prometheus. `hpa`
builds the autoscaler's metrics, and `bookies` decides when disk use calls for another bookie.
"""
