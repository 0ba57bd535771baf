"""Models compared on one's own queries: tables, tests, what changed, reports."""
