"""Scripts that draw the papers' figures, called by recipes or by users."""
