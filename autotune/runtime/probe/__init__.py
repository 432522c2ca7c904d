"""Measure this rank's device, its codecs and its links."""
