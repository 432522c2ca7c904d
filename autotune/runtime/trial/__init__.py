"""Trials: a plan measured on all ranks, with a time limit."""
