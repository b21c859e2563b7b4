"""The consumer, a file per concern: entries, queue, permits, acks, redelivery, dead letters."""
