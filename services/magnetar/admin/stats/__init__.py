"""Stats documents with Pulsar's field names: pure functions of broker objects."""
