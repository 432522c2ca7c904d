"""Pre-training of the shipped meta-network on simulated jobs: `python -m autotune.online.pretrain`."""
