"""How a cluster differs from its file: what-if edits, and scenarios of changes while a job runs."""
