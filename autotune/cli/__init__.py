"""Arguments in, one job called."""
