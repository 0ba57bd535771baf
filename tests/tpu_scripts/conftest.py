"""A cloud for each test."""

from pathlib import Path

import pytest

from tests.tpu_scripts.cloud import Cloud


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(tmp_path)
