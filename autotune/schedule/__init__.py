"""Pipeline schedules: which block of which micro-batch each device runs when, for any graph of placed blocks."""
