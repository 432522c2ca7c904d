"""Run a plan on all ranks."""
