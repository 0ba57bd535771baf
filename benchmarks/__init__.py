"""One program for each measurement, described in README.md."""
