"""Machines that you do not have: what a training step needs on them, by their compilers."""
