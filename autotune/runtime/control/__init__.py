"""The control plane: MPI, the launcher, small messages between ranks."""
