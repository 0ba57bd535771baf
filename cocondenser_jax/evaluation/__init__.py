"""Computes metrics from runs and judgments."""
