"""Training steps, of a workload and of a script."""
