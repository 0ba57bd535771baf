"""What all tests of recipes have."""

from collections.abc import Iterator

import pytest

from papers import estimates


@pytest.fixture(scope="session", autouse=True)
def large_disk() -> Iterator[None]:
    """Recipes run on tiny data, but ask for the space that the real data need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimates, "free_bytes", lambda folder: 1e15)
        yield
