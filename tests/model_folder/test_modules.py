"""What sentence-transformers' files say, as values: read, written, and refused where unknown."""

import pytest

from cocondenser_jax.model_folder import modules
from cocondenser_jax.model_folder.modules import (
    around_dense,
    dense_of,
    from_files,
    join,
    kinds_and_paths,
    lowers_case,
    read_otherwise,
    require_kind,
    require_order,
    require_usual,
    similarity_of,
    to_files,
    whole,
)
from cocondenser_jax.representation import Dense, Representation

TANH = "torch.nn.modules.activation.Tanh"
IDENTITY = "torch.nn.modules.linear.Identity"
# A representation in which no two fields have the same value, and its files.
FULL = Representation(
    pooling="mean",
    dense=(Dense(32, 48, True, TANH), Dense(48, 16, False, IDENTITY)),
    normalized=True,
    similarity="dot",
    sizes=(8,),
    prompts=(("query", "q: "), ("document", "d: "), ("other", "o: ")),
    default_prompt="other",
    include_prompt=False,
    max_length=40,
    query_length=10,
    passage_length=30,
)
FULL_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"},
        {
            "idx": 4,
            "name": "4",
            "path": "4_Normalize",
            "type": "sentence_transformers.models.Normalize",
        },
    ],
    "1_Pooling/config.json": {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "include_prompt": False,
    },
    "2_Dense/config.json": {
        "in_features": 32,
        "out_features": 48,
        "bias": True,
        "activation_function": TANH,
    },
    "3_Dense/config.json": {
        "in_features": 48,
        "out_features": 16,
        "bias": False,
        "activation_function": IDENTITY,
    },
    "sentence_bert_config.json": {
        "max_seq_length": 40,
        "do_lower_case": True,
        "model_args": {"add_pooling_layer": False},
        "query_length": 10,
        "document_length": 30,
    },
    "config_sentence_transformers.json": {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "q: ", "document": "d: ", "other": "o: "},
        "default_prompt_name": "other",
        "similarity_fn_name": "dot",
        "truncate_dim": 8,
    },
}


def reader(files):
    return lambda name: files.get(name, {})


def read(files):
    return from_files(files.get("modules.json"), reader(files))


def changed(files, **values):
    """Changes values of files, named as file__key."""
    files = {name: (dict(x) if isinstance(x, dict) else [*x]) for name, x in files.items()}
    names = {"pooling": "1_Pooling/config.json", "dense": "2_Dense/config.json"}
    names |= {"network": "sentence_bert_config.json", "tokenizer": "tokenizer_config.json"}
    names["settings"] = "config_sentence_transformers.json"
    for name, value in values.items():
        file, _, key = name.partition("__")
        files.setdefault(names[file], {})[key] = value
    return files


def test_all_that_a_representation_says_is_in_its_files_and_is_read_back():
    files = to_files(FULL, 32, 64, has_pooler=True, lowers_case=True)
    assert files == FULL_FILES
    assert read(files) == FULL
    assert lowers_case(reader(files))


def test_the_papers_representation_needs_few_files():
    files = to_files(Representation(), 32, 64, has_pooler=False)
    kinds = [(each["type"].rpartition(".")[2], each["path"]) for each in files["modules.json"]]
    assert kinds == [("Transformer", ""), ("Pooling", "1_Pooling")]
    assert files["1_Pooling/config.json"] == {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    assert files["sentence_bert_config.json"] == {
        "max_seq_length": 64,
        "do_lower_case": False,
        "model_args": {},
    }
    assert files["config_sentence_transformers.json"] == {
        "model_type": "SentenceTransformer",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "dot",
    }
    assert len(files) == 4
    assert read(files) == Representation(max_length=64)
    assert not lowers_case(reader(files))


@pytest.mark.parametrize(("size", "written"), [(31, True), (32, False), (33, False)])
def test_a_size_is_written_where_it_cuts(size, written):
    settings = to_files(Representation(sizes=(size,)), 32, 64, has_pooler=False)[modules.SETTINGS]
    assert ("truncate_dim" in settings) is written


def test_no_text_is_longer_than_the_network_reads():
    for longest, expected in ((None, 64), (65, 64), (63, 63)):
        files = to_files(Representation(max_length=longest), 32, 64, has_pooler=False)
        assert files["sentence_bert_config.json"]["max_seq_length"] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pooling__pooling_mode": "cls"}, {"pooling": "cls"}),
        ({"pooling__include_prompt": True}, {"include_prompt": True}),
        ({"settings__default_prompt_name": "unknown"}, {"default_prompt": None}),
        ({"settings__similarity_fn_name": "cosine"}, {"similarity": "cosine"}),
        ({"settings__similarity_fn_name": None}, {"similarity": "cosine"}),
        ({"settings__truncate_dim": None}, {"sizes": ()}),
        ({"settings__prompts": None}, {"prompts": (), "default_prompt": None}),
        (
            {"settings__prompts": {"query": "", "other": "o: "}},
            {"prompts": (("other", "o: "),)},
        ),
        ({"network__max_seq_length": None}, {"max_length": None}),
        (
            {"network__max_seq_length": None, "tokenizer__model_max_length": 50},
            {"max_length": 50},
        ),
        ({"tokenizer__model_max_length": 50}, {"max_length": 40}),
        (
            {"network__max_seq_length": None, "tokenizer__model_max_length": 10**9},
            {"max_length": None},
        ),
        (
            {"network__max_seq_length": None, "tokenizer__model_max_length": 10**9 - 1},
            {"max_length": 10**9 - 1},
        ),
        (
            {"network__max_seq_length": None, "tokenizer__model_max_length": 0},
            {"max_length": None},
        ),
        (
            {"dense__bias": False, "dense__use_residual": False, "dense__module_input_name": None},
            {"dense": (FULL.dense[0]._replace(bias=False), FULL.dense[1])},
        ),
    ],
)
def test_each_setting_is_read_from_its_file(changes, expected):
    assert read(changed(FULL_FILES, **changes)) == FULL._replace(**expected)


POOLS = "pools otherwise than by cls or mean"
USUAL = "expected 'sentence_embedding'"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pooling__pooling_mode": "max"}, POOLS),
        ({"pooling__pooling_mode_cls_token": True}, POOLS),
        ({"pooling__pooling_mode_mean_tokens": False}, POOLS),
        ({"pooling__pooling_mode_max_tokens": True}, POOLS),
        (
            {"settings__truncate_dim": 0},
            "has a config_sentence_transformers.json where truncate_dim is 0; expected a whole"
            " number from 1",
        ),
        (
            {"network__max_seq_length": "9"},
            "has a sentence_bert_config.json where max_seq_length is '9'; expected a whole number"
            " from 1",
        ),
        (
            {"network__query_length": True},
            "has a sentence_bert_config.json where query_length is True; expected a whole number"
            " from 1",
        ),
        (
            {"network__document_length": 1.5},
            "has a sentence_bert_config.json where document_length is 1.5; expected a whole number"
            " from 1",
        ),
        (
            {"settings__prompts": ["q"]},
            "has no JSON object in config_sentence_transformers.json: prompts",
        ),
        (
            {"settings__similarity_fn_name": "euclidean"},
            "compares vectors by 'euclidean'; expected cosine or dot",
        ),
        (
            {"dense__in_features": None},
            "has a Dense module without in_features and out_features",
        ),
        (
            {"dense__module_input_name": "token_embeddings"},
            f"has a Dense module with module_input_name 'token_embeddings'; {USUAL}",
        ),
        (
            {"dense__module_output_name": "x"},
            f"has a Dense module with module_output_name 'x'; {USUAL}",
        ),
        (
            {"dense__use_residual": True},
            "has a Dense module with use_residual True; expected False",
        ),
    ],
)
def test_what_a_representation_cannot_say_is_refused(changes, said):
    with pytest.raises(ValueError, match=r"\w") as refused:
        read(changed(FULL_FILES, **changes))
    assert str(refused.value) == said


def test_files_in_another_form_are_refused():
    said = "is written in another form than sentence_bert_config.json in the folder itself"
    moved = changed(FULL_FILES)
    moved["modules.json"][0] = {**moved["modules.json"][0], "path": "0_Transformer"}
    scaled_first = changed(FULL_FILES)
    scaled_first["modules.json"].insert(2, {**scaled_first["modules.json"][-1], "name": "first"})
    without = changed(FULL_FILES)
    del without["sentence_bert_config.json"]
    for files in (moved, scaled_first, without):
        with pytest.raises(ValueError, match=f"^{said}$"):
            read(files)


@pytest.mark.parametrize(
    ("names", "pooling"),
    [(None, "mean"), (["BertModel"], "mean"), (["Qwen2ForCausalLM"], "lasttoken")],
)
def test_a_plain_folder_is_as_the_library_takes_it(names, pooling):
    files = {"config.json": {"architectures": names}}
    files["tokenizer_config.json"] = {"model_max_length": 77}
    expected = Representation(pooling=pooling, similarity="cosine", max_length=77)
    assert from_files(None, reader(files)) == expected
    said = "^has a config.json where architectures is 'x'; expected a list$"
    with pytest.raises(ValueError, match=said):
        from_files(None, reader({"config.json": {"architectures": "x"}}))


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        ("", ("", "", "")),
        ("N", ("", "", "N")),
        ("D", ("", "D", "")),
        ("DN", ("", "D", "N")),
        ("NDDN", ("N", "DD", "N")),
        ("ND", ("N", "D", "")),
        ("DND", ("", "DND", "")),
        ("NN", ("", "", "NN")),
    ],
)
def test_modules_are_before_dense_layers_these_or_after_them(kinds, parts):
    names = {"N": "Normalize", "D": "Dense"}
    found = around_dense([names[kind] for kind in kinds])
    assert tuple("".join(kind[0] for kind in part) for part in found) == parts


def test_modules_in_another_order_are_named():
    first = ["Transformer", "Pooling"]
    for more in ([], ["Normalize"], ["Dense", "Dense"], ["Normalize", "Dense", "Normalize"]):
        require_order([*first, *more])
    end = "; expected Transformer, Pooling, perhaps Dense and perhaps Normalize"
    for kinds, said in (
        ([], "no modules"),
        (["Pooling", "Transformer"], "Pooling, Transformer"),
        ([*first, "Dropout"], "Transformer, Pooling, Dropout"),
        (
            [*first, "Dense", "Normalize", "Dense"],
            "Transformer, Pooling, Dense, Normalize, Dense",
        ),
    ):
        with pytest.raises(ValueError, match=f"^makes its vectors by {said}{end}$"):
            require_order(kinds)


def test_modules_are_of_sentence_transformers():
    library = "sentence_transformers.models"
    listed = [{"type": f"{library}.Transformer", "path": ""}, {"type": f"{library}.P", "path": "1"}]
    assert kinds_and_paths(listed) == [("Transformer", ""), ("P", "1")]
    assert kinds_and_paths(None) == []
    for wrong in ([{"type": "x"}], [{"path": "x"}], [7], 7):
        said = "^has a modules.json without the type and path of each module$"
        with pytest.raises(ValueError, match=said):
            kinds_and_paths(wrong)
    said = "^has a module 'mine.Transformer', which needs code of its own: none is run$"
    with pytest.raises(ValueError, match=said):
        kinds_and_paths([*listed, {"type": "mine.Transformer", "path": ""}])


def test_two_modules_of_one_name_are_refused():
    """The library would keep the second of them."""
    layers = [
        {"type": f"sentence_transformers.models.{kind}", "path": kind, "name": name}
        for kind, name in (("Transformer", "0"), ("Pooling", "1"), ("Dense", "2"), ("Dense", "2"))
    ]
    assert len(kinds_and_paths(layers[:3])) == 3
    said = "^has a modules.json with two modules named '2': one would be lost$"
    with pytest.raises(ValueError, match=said):
        kinds_and_paths(layers)


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ({"max_seq_length": 9, "do_lower_case": True, "query_length": 7, "unpad_inputs": None}, ()),
        ({"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}, ()),
        (
            {
                "modality_config": {
                    "text": {"method": "forward", "method_output_name": "last_hidden_state"}
                }
            },
            (),
        ),
        ({"processing_kwargs": {}, "query_expansion": None, "model_args": None}, ()),
        ({"model_args": {"add_pooling_layer": False, "torch_dtype": "float16"}}, ()),
        ({"tokenizer_args": {"trust_remote_code": False}, "config_kwargs": {}}, ()),
        (
            {"tokenizer_args": {"model_max_length": 9}},  # which is not read without PyTorch
            ("tokenizer_args: model_max_length",),
        ),
        ({"transformer_task": "fill-mask"}, ("transformer_task",)),
        ({"modality_config": {"text": {}}}, ("modality_config",)),
        ({"module_output_name": "scores"}, ("module_output_name",)),
        ({"processing_kwargs": {"text": {"max_length": 9}}}, ("processing_kwargs",)),
        ({"query_expansion": {"length": 9}}, ("query_expansion",)),
        ({"model_args": {"variant": "fp16"}}, ("model_args: variant",)),
        ({"config_kwargs": {"hidden_act": "relu"}}, ("config_kwargs: hidden_act",)),
        ({"tokenizer_args": {"do_lower_case": False}}, ("tokenizer_args: do_lower_case",)),
        ({"processor_kwargs": {"a": 1}, "config_args": {"b": 2}}, None),
    ],
)
def test_settings_by_which_the_library_reads_files_otherwise(settings, others):
    found = read_otherwise(settings)
    assert found == (others if others is not None else ("config_args: b", "processor_kwargs: a"))


def test_a_tokenizer_elsewhere_is_refused():
    assert read_otherwise({"tokenizer_name_or_path": None}) == ()
    said = "^names a tokenizer elsewhere in sentence_bert_config.json; expected it in the folder$"
    with pytest.raises(ValueError, match=said):
        read_otherwise({"tokenizer_name_or_path": "bert-base-uncased"})


def test_other_kinds_of_models_are_named():
    require_kind({})
    require_kind({"model_type": "SentenceTransformer"})
    said = "is a 'SparseEncoder' by its config_sentence_transformers.json; expected"
    with pytest.raises(ValueError, match=f"^{said} SentenceTransformer$"):
        require_kind({"model_type": "SparseEncoder"})


def test_small_parts():
    assert (join("", "a"), join("1_Pooling", "a")) == ("a", "1_Pooling/a")
    assert (whole({"a": 1}, "a", ""), whole({}, "a", "")) == (1, None)
    assert (similarity_of(None), similarity_of("dot")) == ("cosine", "dot")
    assert dense_of({"in_features": "3", "out_features": 2}) == Dense(3, 2, True, TANH)
    require_usual("Normalize", {"module_input_name": "sentence_embedding"})


def test_what_changes_how_weights_are_loaded_is_named():
    for name in ("model_args", "model_kwargs"):
        settings = {name: {"use_safetensors": False, "dtype": "float16"}}
        assert read_otherwise(settings) == (f"{name}: use_safetensors",)


def test_how_a_network_is_computed_changes_no_vector():
    neutral = {"add_pooling_layer": False, "attn_implementation": "sdpa", "dtype": "float16"}
    neutral |= {"torch_dtype": "float16", "trust_remote_code": False}
    for name in ("model_args", "model_kwargs", "config_kwargs", "processor_kwargs"):
        assert read_otherwise({name: neutral}) == ()
