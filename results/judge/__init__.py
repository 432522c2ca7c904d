"""What follows from records: comparisons, intervals, reports. Pure."""
