"""Public Grafana dashboards for Pulsar, evaluated on Magnetar's metrics by a real Prometheus."""
