"""The admin REST: Pulsar's paths, fields and texts, on top of the broker's public methods."""
