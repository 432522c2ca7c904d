"""Jobs: each command and each training script as a readable list of steps."""
