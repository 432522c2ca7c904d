"""Execution of placed models: parts of a model on sets of ranks, as pipelines."""
