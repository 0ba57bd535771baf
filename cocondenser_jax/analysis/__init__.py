"""Arrays in, plots and reports out."""
