"""Retuning while training. Pure computation: the caller passes the statistics of steps and applies the decisions."""
