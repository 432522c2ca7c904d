"""Retuning while training. Data in, data out: no clock, no network; who calls says what was seen and carries out what is proposed."""
