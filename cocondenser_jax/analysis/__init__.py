"""Draws arrays as plots and pages."""
