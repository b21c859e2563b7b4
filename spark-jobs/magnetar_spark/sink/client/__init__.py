"""A small client of brokers for the sink: look-ups, producers, readers, transactions."""
