"""Decide and run: search for the fastest way to train on the devices you have, and train that way."""
