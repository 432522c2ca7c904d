"""Profiles and graphs that other tools have measured, read into ours."""
