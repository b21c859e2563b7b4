"""A worker process of a broker: it does what would occupy the broker's event loop."""
