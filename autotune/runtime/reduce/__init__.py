"""Sums gradients over ranks: by torch DDP, in buckets, or in scheduled fusion buffers."""
