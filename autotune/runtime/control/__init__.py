"""The control plane: MPI, the launcher, control channels between ranks, step directives."""
