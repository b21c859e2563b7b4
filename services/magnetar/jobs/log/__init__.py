"""A topic's log as it is in metadata and on bookies, read without a broker."""
