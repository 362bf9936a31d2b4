"""Goldens: manifests and the events they name, kept in the repository."""
