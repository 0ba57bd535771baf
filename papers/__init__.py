"""Tables of the papers, the recipes that make their figures, and the program that runs them."""
