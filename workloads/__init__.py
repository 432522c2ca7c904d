"""Describe: what runs, on what, and how. Plain data; importing it loads neither torch nor MPI."""
