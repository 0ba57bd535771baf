"""Arrays in, plots and pages out."""
