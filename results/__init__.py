"""Remember and show: records, statistics, best plans, reports."""
