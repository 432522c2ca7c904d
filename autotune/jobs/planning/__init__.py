"""Plans without hardware: what `autotune plan` searches on predictions."""
