"""What is remembered, on disk."""
