"""The `/metrics` page: Pulsar's names and labels, so that its dashboards work unchanged."""
