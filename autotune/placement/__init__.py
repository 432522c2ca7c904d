"""Which ops run on which ranks: stages of a pipeline, cut to suit the devices."""
