"""Runs things again to explain a verdict: how much differs, and what one operator does with its inputs."""
