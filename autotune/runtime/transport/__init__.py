"""Process groups: what carries tensors between ranks, measured, traced or paced."""
