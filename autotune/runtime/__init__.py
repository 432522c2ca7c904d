"""Run: the MPI job. Control plane, transports, emulation, trainer, trials."""
