"""CI and regression tests for the determinism of PyTorch training."""
