"""Parts of a model on sets of ranks: pipelines, executed."""
