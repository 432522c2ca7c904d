"""The samples that each rank reads, and their order."""
