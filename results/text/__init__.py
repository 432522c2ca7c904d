"""Numbers and breakdowns as plain text."""
