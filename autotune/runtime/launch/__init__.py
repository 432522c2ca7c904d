"""What has started a rank, and what it takes: cores, threads, a device. Plain facts, without torch and MPI."""
