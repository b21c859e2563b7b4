"""Official clients on a cluster of real processes that are killed, paused and cut off at random."""
