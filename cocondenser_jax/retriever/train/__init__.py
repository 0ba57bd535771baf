"""Fine-tunes bi-encoders and cross-encoders in PyTorch; never imports JAX."""
