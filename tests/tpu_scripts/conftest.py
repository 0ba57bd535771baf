"""A cloud for each test."""

import pytest

from tests.tpu_scripts.cloud import Cloud


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)
