"""One program for each measurement: see README.md beside this file."""
