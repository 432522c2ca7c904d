"""Random training loops: each is trained by one process and by several ranks, and both must end with the same numbers."""
