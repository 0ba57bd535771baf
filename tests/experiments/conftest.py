"""What all tests of our studies have: they run as the recipes of papers/ do."""

from tests.papers.conftest import large_disk

__all__ = ["large_disk"]
