"""The standalone server: broker, bookie and metadata in one process, and its data directory."""
