"""Folders that the libraries would load as something else, or refuse in many lines."""

import json
import shutil
import threading

import pytest
import safetensors.torch
import torch
import transformers

from cocondenser_jax.errors import UserError
from cocondenser_jax.model_folder.library import (
    loading,
    read_modules,
    require_lengths,
    require_loadable,
)
from cocondenser_jax.model_folder.model import open_network
from cocondenser_jax.retriever.search.cross_encoders import load_cross_encoder
from cocondenser_jax.retriever.search.models import load_retriever


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refusal(call, *arguments):
    """Returns the whole message with which a call is refused."""
    with pytest.raises(UserError) as refused:
        call(*arguments)
    return str(refused.value)


def open_cross_encoder(folder):
    return load_cross_encoder(open_network(folder))


def open_with_new_head(folder):
    return load_cross_encoder(open_network(folder), head_seed=1)


@pytest.fixture(params=[load_retriever, open_cross_encoder, open_with_new_head])
def of_kind(request, model_folder, cross_encoder_folder, tmp_path):
    """A copy of a folder, and what loads it."""
    source = cross_encoder_folder if request.param is open_cross_encoder else model_folder
    return shutil.copytree(source, tmp_path / "model"), request.param


def test_remote_code_is_named_before_anything_is_loaded(of_kind):
    folder, load = of_kind
    code = {"AutoModel": "modeling.New"}
    change(folder / "config.json", auto_map=code)
    load(folder)  # by the class of transformers
    said = f"{folder} needs code of its own (auto_map in its config.json), which is never run"
    for model_type in ("new", None):
        change(folder / "config.json", model_type=model_type)
        assert refusal(load, folder) == said
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    assert refusal(load, folder) == said


def test_a_network_without_a_tokenizer_is_refused(of_kind):
    folder, load = of_kind
    (folder / "tokenizer.json").unlink()
    said = f"{folder} has no tokenizer: expected tokenizer.json, vocab.txt or the like"
    assert refusal(load, folder) == said
    (folder / "spiece.model").touch()
    require_loadable(open_network(folder))


def test_an_adapter_without_its_network_is_named(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "adapter_config.json").write_text("{}")
    require_loadable(open_network(folder))  # the libraries add it to the network
    (folder / "config.json").unlink()
    said = "holds an adapter alone: merge it with its model (PEFT's merge_and_unload)"
    assert refusal(load_retriever, folder) == f"{folder} {said}"
    (folder / "adapter_config.json").unlink()
    said = "has no config.json: expected the folder of a model"
    assert refusal(load_retriever, folder) == f"{folder} {said}"


def test_relative_positions_of_older_releases_are_refused(of_kind):
    folder, load = of_kind
    change(folder / "config.json", position_embedding_type="absolute")
    load(folder)
    change(folder / "config.json", position_embedding_type="relative_key")
    said = "position_embedding_type is 'relative_key'; only 'absolute' is supported"
    assert refusal(load, folder) == f"{folder}/config.json: {said}"
    change(folder / "config.json", model_type="esm")  # whose positions transformers does read
    require_loadable(open_network(folder))


def test_more_layers_than_any_network_has_are_refused_before_they_are_made(of_kind):
    folder, load = of_kind
    change(folder / "config.json", num_hidden_layers=1 << 31)
    said = "num_hidden_layers is 2,147,483,648; expected at most 1,000"
    assert refusal(load, folder) == f"{folder}/config.json: {said}"


def test_layers_are_counted_by_the_name_of_the_family(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    change(folder / "config.json", model_type="distilbert", n_layers=1_000)
    require_loadable(open_network(folder))
    change(folder / "config.json", n_layers=1_001)
    said = f"{folder}/config.json: n_layers is 1,001; expected at most 1,000"
    assert refusal(require_loadable, open_network(folder)) == said


def test_more_tokens_than_rows_are_refused(of_kind):
    folder, load = of_kind
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["qqqq"])
    tokenizer.save_pretrained(str(folder))
    n = len(tokenizer) - 1
    assert refusal(load, folder) == (
        f"{folder} has a tokenizer with token ids up to {n}, but {n} word embeddings: its tokenizer"
        " is another model's"
    )


def test_weights_of_another_shape_are_named(of_kind):
    folder, load = of_kind
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("layer.1.output.dense.bias"))
    weights[name] = torch.zeros(3)
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = refusal(load, folder)
    head = f"the weights of {folder} have another shape than its config.json implies: "
    assert said.removeprefix(head).partition(name)[2] == " is (3,), expected (32,)"
    assert said.startswith(head)


def test_weights_that_are_missing_are_counted_and_named(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    lost = sorted(name for name in weights if "layer.1.attention" in name)
    kept = {name: value for name, value in weights.items() if name not in lost}
    safetensors.torch.save_file(kept, folder / "model.safetensors", {"format": "pt"})
    said = f"lack {len(lost)} parameters that its config.json implies"
    first = ", ".join([*lost[:3], "..."])
    assert refusal(load_retriever, folder) == f"the weights of {folder} {said}: {first}"


def test_a_length_fits_up_to_the_positions_of_the_network(model_folder, make_model):
    require_lengths([open_network(model_folder)], {"--max_length": 64, "--other": None})
    roberta = make_model("Roberta")  # its positions start behind that of padding
    require_lengths([open_network(roberta)], {"--max_length": 63})
    for length, least in ((64, 3), (2, 3), (7, 8)):
        said = f"--max_length={length}: expected {least} to 63 tokens for {roberta}"
        lengths = {"--other": 63, "--max_length": length}
        assert refusal(require_lengths, [open_network(roberta)], lengths, least) == said
    require_lengths([open_network(roberta)], {"--max_length": 3})
    require_lengths([open_network(roberta)], {"--max_length": 8}, least=8)


def state_of_the_library():
    load = transformers.PreTrainedModel.__dict__["from_pretrained"]
    return load, transformers.utils.logging.get_verbosity()


def test_the_library_is_as_before_whether_a_model_loads_or_not(model_folder, tmp_path):
    before = state_of_the_library()

    def fail():
        with loading(tmp_path, "bi-encoder"):
            assert transformers.utils.logging.get_verbosity() == transformers.logging.ERROR
            raise ValueError("of two\nlines")

    assert refusal(fail) == f"{tmp_path} cannot be loaded as a bi-encoder: of two lines"
    assert state_of_the_library() == before
    representation, lowers_case = read_modules(model_folder)
    assert (representation.pooling, lowers_case) == ("mean", False)
    assert state_of_the_library() == before


def test_one_thread_at_a_time_replaces_how_the_library_loads(tmp_path):
    before = state_of_the_library()
    entered, left = threading.Event(), threading.Event()
    order = []

    def first():
        with loading(tmp_path, "bi-encoder"):
            entered.set()
            left.wait(0.5)  # the second thread would enter meanwhile
            order.append("first ends")

    def second():
        entered.wait()
        with loading(tmp_path, "bi-encoder"):
            order.append("second begins")
            left.set()

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["first ends", "second begins"]
    assert state_of_the_library() == before


@pytest.mark.parametrize("model_type", [[], {}, ["bert"], 7])
def test_a_family_that_is_no_text_is_no_traceback(model_folder, tmp_path, model_type):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    change(folder / "config.json", model_type=model_type)
    require_loadable(open_network(folder))
    change(folder / "config.json", num_hidden_layers=1_001)
    said = f"{folder}/config.json: num_hidden_layers is 1,001; expected at most 1,000"
    assert refusal(require_loadable, open_network(folder)) == said
