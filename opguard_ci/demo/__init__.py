"""The demo: a small training project and the changes that are planted in it."""
