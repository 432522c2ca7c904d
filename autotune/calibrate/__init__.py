"""Costs fitted to measured steps instead of measured one by one."""
