"""The admin REST: Pulsar's paths, fields and texts over the broker's public methods."""
