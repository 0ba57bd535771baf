"""The training step and its loop."""
