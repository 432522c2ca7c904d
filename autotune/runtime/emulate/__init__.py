"""Emulated devices and clusters: paced computation, replayed scenarios."""
