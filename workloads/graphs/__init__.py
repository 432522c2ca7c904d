"""Models as files: op graphs without the model."""
