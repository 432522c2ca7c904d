"""Embedding tables that are divided over server ranks: workers pull the rows of a batch and push their gradients."""
