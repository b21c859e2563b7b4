"""What `/metrics` shows: Pulsar's names and labels, so that dashboards that know them go on."""
