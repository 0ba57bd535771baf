"""Whatever run.json holds, it is read or refused with one clear line."""

from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.pretrain.checkpoint import load_run
from tests.mutations import fuzz_record


def test_a_broken_run_folder_loads_or_is_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    run = {"config": {}, "model": ModelConfig().to_dict(), "data": {"sha256": ""}}
    fuzz_record(tmp_path / "run.json", run, lambda path: load_run(path.parent))
