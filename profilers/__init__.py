"""Observe: turn a run into numbers."""
