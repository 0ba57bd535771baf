"""What a training step needs on machines that you do not have, according to their compilers."""
