"""Which samples each rank reads, and in which order."""
