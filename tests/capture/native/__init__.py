"""Tests of the compiled recorder."""
