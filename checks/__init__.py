"""What a run, or a test, is compared with: the same mathematics in plain PyTorch."""
