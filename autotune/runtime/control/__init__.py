"""The control plane: MPI, the launcher, the network for control messages between ranks, step directives."""
