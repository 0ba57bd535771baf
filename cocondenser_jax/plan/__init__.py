"""Machines that are not there: what a training step needs on them, by their compilers."""
