"""Gradients summed over ranks: by torch DDP, in buckets, or scheduled."""
