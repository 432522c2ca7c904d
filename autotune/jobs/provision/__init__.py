"""The job of `autotune provision`."""
