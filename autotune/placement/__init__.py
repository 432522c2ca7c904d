"""Placement: which ops run on which ranks, as stages of a pipeline."""
