"""Propose: which plan to measure next."""
