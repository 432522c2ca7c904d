"""Descriptions of workloads, clusters and plans. Plain data; importing it loads neither torch nor MPI."""
