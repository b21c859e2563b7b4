"""A real bookie on a disk that lies."""
