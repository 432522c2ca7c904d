"""What can go wrong between ranks."""

from __future__ import annotations


class PeerLostError(RuntimeError):
    """Another rank left the collective."""
