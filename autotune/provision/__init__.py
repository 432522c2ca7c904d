"""Provisioning: which layers run on which type of resource, and how many units of each to rent."""
