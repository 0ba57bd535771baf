"""The papers' tables, recipes for their figures, and the program that runs them."""
