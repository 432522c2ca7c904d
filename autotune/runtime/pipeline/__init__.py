"""Runs pipeline schedules: any graph of blocks by an executor of our own, chains also by torch.distributed.pipelining."""
