"""Process groups: they carry tensors between ranks, traced or paced where required."""
