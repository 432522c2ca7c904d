"""Measurements of a run: timelines, breakdowns, counters, fits."""
