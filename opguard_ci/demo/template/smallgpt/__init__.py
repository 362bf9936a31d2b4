"""A small language model and what it takes to train it."""
