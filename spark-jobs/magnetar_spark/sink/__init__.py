"""The sink of the data source `pulsar`: rows to messages, and micro-batches to transactions."""
