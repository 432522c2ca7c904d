"""Devices and clusters that are emulated: computation paced, scenarios replayed."""
