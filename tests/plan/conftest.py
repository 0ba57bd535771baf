"""What tests of plans share with those of training."""

from tests.pretrain.conftest import config, store_folder

__all__ = ["config", "store_folder"]
