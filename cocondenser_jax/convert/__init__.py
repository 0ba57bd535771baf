"""The bridge between Flax and PyTorch parameters."""
