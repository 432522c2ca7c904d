"""Errors of the communication between ranks."""

from __future__ import annotations


class PeerLostError(RuntimeError):
    """Another rank has left a collective, or its process is gone."""
