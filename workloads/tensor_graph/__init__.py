"""A model as operations on tensors, and the pieces in which sets of ranks run it. Needs torch."""
