"""Predict: what a plan costs on a device mix, without running it."""
