"""Fingerprints: 64 bits for the content of a tensor, position by position."""
