"""Search of placements of groups of ops on sets of devices."""
