"""Stats documents, under Pulsar's field names: pure functions from broker objects to dicts."""
