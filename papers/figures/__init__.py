"""Scripts that draw the figures of the papers; recipes call them, and so can you."""
