"""What a newcomer adds: one module each, and nothing else is changed."""
