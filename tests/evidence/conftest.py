"""One process that has imported torch serves the tests that run programs again."""

from tests.capture.conftest import programs, runner

__all__ = ["programs", "runner"]
