"""Independent references for runs and tests: the same mathematics in plain PyTorch."""
