"""Codecs: how the gradients of a fusion buffer are encoded on the wire."""
