"""Whatever a file holds, it is read or refused with one clear line; and nothing in it is run."""

import ast
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cocondenser_jax
from cocondenser_jax.cli import main
from cocondenser_jax.files.metrics import forget_steps_after
from cocondenser_jax.files.whole import read_json
from cocondenser_jax.settings import load_config
from tests.mutations import assert_read_or_refused, fuzz, fuzz_content, jsonl

_JSON = json.dumps(
    [{"question": "who", "positive_ctxs": [{"passage_id": "1", "title": "T"}], "negative_ctxs": []}]
).encode()
READERS = {
    "steps.jsonl": (
        jsonl({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2}),
        lambda path: forget_steps_after(path, 1),
    ),
    "some.json": (_JSON, read_json),
    "some.json.gz": (gzip.compress(_JSON), read_json),
    "experiment.py": (
        b"from cocondenser_jax.configs import default\n\n\n"
        b"def get_config():\n    return default.get_config()\n",
        lambda path: load_config(str(path), ["--config.data.store=x"]),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_broken_file_is_read_or_refused(name, tmp_path):
    fuzz_content(tmp_path / name, *READERS[name])


@fuzz()
@given(
    st.sampled_from(["seed", "train", "train.steps", "data.store", "optimizer.learning_rate", "x"]),
    st.sampled_from(["1", "1e999", "9" * 400, "{[]: 1}", "(" * 5000, "'a", "\udcff", "\0", "[1]"])
    | st.text(max_size=5),
)
def test_a_broken_override_is_applied_or_refused(key, value):
    def load():
        overrides = ["--config.data.store=x", f"--config.{key}={value}"]
        json.dumps(load_config("configs/default.py", overrides).to_dict())

    assert_read_or_refused(load)


def test_the_package_unpickles_and_evaluates_nothing():
    forbidden = {"pickle", "marshal", "shelve", "dill", "joblib", "eval", "exec"}
    for path in Path(cocondenser_jax.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not forbidden & {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in forbidden, path
            elif isinstance(node, ast.Call):
                options = {k.arg: ast.unparse(k.value) for k in node.keywords}
                name = ast.unparse(node.func)
                assert name not in forbidden, path
                assert not name.startswith("yaml.") or name == "yaml.safe_load", path
                assert name != "torch.load" or options["weights_only"] == "True", path
                assert name != "np.load" or options["allow_pickle"] == "False", path
                assert options.get("trust_remote_code", "False") == "False", path


@pytest.mark.parametrize(
    "content", [b"\xff", b"\xef\xbb\xbf", b"x", b"q1 Q0 d1 1 nan t\n", b"", b"q\0 Q0\n"]
)
def test_the_command_line_answers_with_one_line(content, tmp_path, capsys):
    for name in ("run", "qrels"):
        (tmp_path / name).write_bytes(content)
    flags = [f"--run={tmp_path / 'run'}", f"--qrels={tmp_path / 'qrels'}"]
    assert main(["evaluate", *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1
