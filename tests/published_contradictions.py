"""Published folders with contradictions and without defaults, drawn by Hypothesis.

A change is of one value of one file, to what some release wrote there, to what another file of the
folder contradicts, or to what no release would write.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.published_networks import HIDDEN, POSITIONS

MISSING = "(missing)"
_ODD = (MISSING, None, True, 0, -1, 7, 1.5, "", "x", "../x", [], {})
_NETWORK = "config.json"
_TOKENIZER = "tokenizer.json"
_TOKENIZER_SETTINGS = "tokenizer_config.json"
_TRANSFORMER = "sentence_bert_config.json"
_SETTINGS = "config_sentence_transformers.json"
_POOLING = "1_Pooling/config.json"
_MODULES = "modules.json"
_TOKENS = ("[CLS]", "[MASK]", "[UNK]", "<s>", "<pad>", "the")
_LENGTHS = (MISSING, None, 8, POSITIONS, POSITIONS + 1, 512, 10**30, 0, -1, "16", 16.0)
_LIBRARY = "sentence_transformers.models"
# What may stand at a place, beside what is odd anywhere; a number in a path is of a list.
VALUES: dict[tuple[str, str], Sequence[Any]] = {
    (_NETWORK, "model_type"): ("bert", "roberta", "mpnet", "xlm-roberta", "distilbert"),
    (_NETWORK, "architectures"): (["BertForMaskedLM"], ["Qwen3ForCausalLM"]),
    (_NETWORK, "hidden_act"): ("gelu", "gelu_new", "relu", "gelu_pytorch_tanh", "silu"),
    (_NETWORK, "hidden_activation"): ("gelu", "gelu_new", "relu", "silu"),
    (_NETWORK, "layer_norm_eps"): (1e-12, 1e-5, 1e-2),
    (_NETWORK, "norm_eps"): (1e-12, 1e-5, 1e-2),
    (_NETWORK, "position_embedding_type"): ("absolute", "relative_key", "alibi"),
    (_NETWORK, "pad_token_id"): (0, 1, 2, 10**6),
    (_NETWORK, "max_position_embeddings"): (16, POSITIONS, POSITIONS + 2, 512),
    (_NETWORK, "type_vocab_size"): (1, 2, 3),
    (_NETWORK, "num_attention_heads"): (1, 2, 4, 3),
    (_NETWORK, "num_hidden_layers"): (1, 2, 3),
    (_NETWORK, "intermediate_size"): (32, 64),
    (_NETWORK, "hidden_size"): (HIDDEN, 2 * HIDDEN),
    (_NETWORK, "vocab_size"): (100, 500),
    (_NETWORK, "dtype"): ("float32", "float16", "bfloat16"),
    (_NETWORK, "torch_dtype"): ("float32", "float16", "bfloat16"),
    (_NETWORK, "is_decoder"): (True, False),
    (_NETWORK, "add_cross_attention"): (True, False),
    (_NETWORK, "tie_word_embeddings"): (True, False),
    (_NETWORK, "chunk_size_feed_forward"): (0, 8),
    (_NETWORK, "hidden_dropout_prob"): (0.0, 0.1, 0.5),
    (_NETWORK, "relative_attention_num_buckets"): (32, 16),
    (_NETWORK, "local_attention"): (4, 8, 128),
    (_NETWORK, "global_attn_every_n_layers"): (1, 2, 3),
    (_NETWORK, "global_rope_theta"): (1e4, 160000.0),
    (_NETWORK, "local_rope_theta"): (1e4, 5e3),
    (_NETWORK, "layer_types"): (["full_attention"] * 2, ["sliding_attention", "full_attention"]),
    (_NETWORK, "mlp_bias"): (True, False),
    (_TOKENIZER, "truncation"): (
        {"max_length": 6, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        {"max_length": 6, "strategy": "LongestFirst", "stride": 0, "direction": "Left"},
    ),
    (_TOKENIZER, "normalizer"): (
        {"type": "Lowercase"},
        {"type": "NFKC"},
        {"type": "Sequence", "normalizers": []},
    ),
    (_TOKENIZER, "normalizer/lowercase"): (True, False),
    (_TOKENIZER, "normalizer/strip_accents"): (True, False, None),
    (_TOKENIZER, "normalizer/handle_chinese_chars"): (True, False),
    (_TOKENIZER, "pre_tokenizer/add_prefix_space"): (True, False),
    (_TOKENIZER, "post_processor"): (
        {"type": "BertProcessing", "sep": ["the", 60], "cls": ["[CLS]", 2]},
    ),
    (_TOKENIZER, "model/unk_token"): ("[UNK]", "[MASK]"),
    (_TOKENIZER, "model/max_input_chars_per_word"): (3, 100),
    (_TOKENIZER_SETTINGS, "do_lower_case"): (True, False),
    (_TOKENIZER_SETTINGS, "strip_accents"): (True, False),
    (_TOKENIZER_SETTINGS, "tokenize_chinese_chars"): (True, False),
    (_TOKENIZER_SETTINGS, "add_prefix_space"): (True, False),
    (_TOKENIZER_SETTINGS, "model_max_length"): _LENGTHS,
    (_TOKENIZER_SETTINGS, "padding_side"): ("left", "right"),
    (_TOKENIZER_SETTINGS, "truncation_side"): ("left", "right"),
    (_TOKENIZER_SETTINGS, "cls_token"): _TOKENS,
    (_TOKENIZER_SETTINGS, "sep_token"): _TOKENS,
    (_TOKENIZER_SETTINGS, "pad_token"): _TOKENS,
    (_TOKENIZER_SETTINGS, "unk_token"): _TOKENS,
    (_TOKENIZER_SETTINGS, "mask_token"): _TOKENS,
    (_TOKENIZER_SETTINGS, "tokenizer_class"): (
        "BertTokenizer",
        "BertTokenizerFast",
        "PreTrainedTokenizerFast",
        "RobertaTokenizer",
        "XLMRobertaTokenizer",
        "MPNetTokenizer",
        "DistilBertTokenizer",
        "TokenizersBackend",
    ),
    (_TOKENIZER_SETTINGS, "add_bos_token"): (True, False),
    (_TOKENIZER_SETTINGS, "add_eos_token"): (True, False),
    (_TOKENIZER_SETTINGS, "split_special_tokens"): (True, False),
    (_TRANSFORMER, "max_seq_length"): _LENGTHS,
    (_TRANSFORMER, "do_lower_case"): (True, False),
    (_TRANSFORMER, "query_length"): (8, 64),
    (_TRANSFORMER, "document_length"): (8, 64),
    (_TRANSFORMER, "model_args"): ({"torch_dtype": "float16"}, {"add_pooling_layer": False}),
    (_TRANSFORMER, "tokenizer_args"): (
        {"do_lower_case": False},
        {"padding_side": "left"},
        {"model_max_length": 9},
        {"truncation_side": "left"},
    ),
    (_TRANSFORMER, "config_args"): (
        {"hidden_act": "relu"},
        {"layer_norm_eps": 0.01},
        {"num_hidden_layers": 1},
    ),
    (_TRANSFORMER, "model_kwargs"): ({"dtype": "bfloat16"},),
    (_TRANSFORMER, "processor_kwargs"): ({"do_lower_case": False}, {"model_max_length": 9}),
    (_TRANSFORMER, "config_kwargs"): ({"hidden_act": "relu"},),
    (_TRANSFORMER, "transformer_task"): ("feature-extraction", "fill-mask"),
    (_TRANSFORMER, "unpad_inputs"): (True, False),
    (_TRANSFORMER, "processing_kwargs"): (
        {"text": {"max_length": 9}},
        {"text": {"add_special_tokens": False}},
        {"common": {"padding": "max_length"}},
    ),
    (_TRANSFORMER, "query_expansion"): ({"length": 12, "token": "[MASK]"},),
    (_TRANSFORMER, "module_output_name"): ("token_embeddings", "sentence_embedding"),
    (_TRANSFORMER, "tokenizer_name_or_path"): ("bert-base-uncased",),
    (_SETTINGS, "prompts"): (
        {"query": "query: "},
        {"query": "query: ", "document": "old "},
        {"query": None, "passage": "old "},
        {"document": ""},
        {"query": 5},
        {"corpus": "letters "},
    ),
    (_SETTINGS, "default_prompt_name"): ("query", "document", "other"),
    (_SETTINGS, "similarity_fn_name"): ("cosine", "dot", "euclidean", "Cosine", "dot_product"),
    (_SETTINGS, "truncate_dim"): (1, 8, HIDDEN, HIDDEN + 1, "8", 8.0),
    (_SETTINGS, "model_type"): ("SentenceTransformer", "SparseEncoder", "CrossEncoder"),
    (_SETTINGS, "__version__"): ({"sentence_transformers": "99.0.0"}, {}),
    (_SETTINGS, "requirements"): (["sentence-transformers>=99"], {}),
    (_POOLING, "word_embedding_dimension"): (HIDDEN, HIDDEN // 2),
    (_POOLING, "embedding_dimension"): (HIDDEN, HIDDEN // 2),
    (_POOLING, "pooling_mode"): ("mean", "cls", "lasttoken", ["mean"], ["cls", "mean"], "Mean"),
    (_POOLING, "pooling_mode_cls_token"): (True, False, 1, "no"),
    (_POOLING, "pooling_mode_mean_tokens"): (True, False, 1, "no"),
    (_POOLING, "pooling_mode_max_tokens"): (True, False),
    (_POOLING, "pooling_mode_mean_sqrt_len_tokens"): (True, False),
    (_POOLING, "pooling_mode_weightedmean_tokens"): (True, False),
    (_POOLING, "pooling_mode_lasttoken"): (True, False),
    (_POOLING, "include_prompt"): (True, False),
    (_MODULES, "0/name"): ("1", "0", "a.b", "transformer"),
    (_MODULES, "1/name"): ("0", "2", "a/b"),
    (_MODULES, "0/path"): ("0_Transformer", "/etc", "../model", "."),
    (_MODULES, "1/path"): ("1_Pool", "1_Pooling/", "./1_Pooling", "../model/1_Pooling"),
    (_MODULES, "0/type"): (
        f"{_LIBRARY}.Pooling",
        "sentence_transformers.models.Transformer.Transformer",
        "sentence_transformers.base.modules.transformer.Transformer",
        "transformers.BertModel",
    ),
    (_MODULES, "1/type"): (
        f"{_LIBRARY}.Normalize",
        "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        "sentence_transformers.sentence_transformer.modules.Pooling",
        f"{_LIBRARY}.Poolin",
    ),
    (_MODULES, "0/idx"): (1, 5),
    (_MODULES, "1/kwargs"): (["task"],),
    (_MODULES, "2"): (
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{_LIBRARY}.Normalize"},
        {"idx": 2, "name": "2", "path": "", "type": f"{_LIBRARY}.Normalize"},
        {"idx": 2, "name": "2", "path": "1_Pooling", "type": f"{_LIBRARY}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dropout", "type": f"{_LIBRARY}.Dropout"},
    ),
    ("2_Normalize/config.json", "module_input_name"): ("token_embeddings", "sentence_embedding"),
    ("2_Normalize/config.json", "module_output_name"): ("other", "sentence_embedding"),
    ("2_Dense/config.json", "in_features"): (HIDDEN, 16),
    ("2_Dense/config.json", "out_features"): (HIDDEN, 16),
    ("2_Dense/config.json", "bias"): (True, False),
    ("2_Dense/config.json", "activation_function"): (
        "torch.nn.modules.activation.Tanh",
        "torch.nn.modules.linear.Identity",
        "torch.nn.Tanh",
        "torch.nn.modules.activation.GELU",
        "torch.nn.modules.activation.ReLU",
        "torch.nn.modules.activation.Softmax",
        "tanh",
        "os.system",
    ),
    ("2_Dense/config.json", "use_residual"): (True, False),
    ("2_Dense/config.json", "module_input_name"): ("token_embeddings", "sentence_embedding"),
    ("2_Dense/config.json", "module_output_name"): ("token_embeddings", "sentence_embedding"),
    ("adapter_config.json", "peft_type"): ("LORA",),
}
_FILES = sorted({name for name, _ in VALUES})
# Names that other releases gave a file, or that a folder has beside it.
_MOVES = (
    (_TRANSFORMER, "sentence_roberta_config.json"),
    (_TRANSFORMER, "sentence_xlm-roberta_config.json"),
    ("model.safetensors", "pytorch_model.bin"),
    ("model.safetensors", "model-00001-of-00001.safetensors"),
    ("model.safetensors", "adapter_model.safetensors"),
    ("1_Pooling", "1_Pool"),
    (_MODULES, "Modules.json"),
)


class Change(NamedTuple):
    """What is done to a folder."""

    kind: str  # "set", "remove" or "move"
    file: str
    at: str = ""  # the path of a value, or the new name of a file
    value: Any = None


def _sets() -> st.SearchStrategy[Change]:
    def of_place(place: tuple[str, str]) -> st.SearchStrategy[Change]:
        likely = st.sampled_from([*VALUES[place]])
        value = st.one_of(likely, likely, st.sampled_from(_ODD))
        return st.builds(Change, st.just("set"), st.just(place[0]), st.just(place[1]), value)

    by_file = [[place for place in VALUES if place[0] == name] for name in _FILES]
    return st.sampled_from(by_file).flatmap(st.sampled_from).flatmap(of_place)


def changes() -> st.SearchStrategy[list[Change]]:
    """Draws one to four changes of a folder."""
    removed = ("vocab.txt", "model.safetensors", "special_tokens_map.json", *_FILES)
    one = st.one_of(
        _sets(),
        _sets(),
        _sets(),
        _sets(),
        _sets(),
        st.sampled_from(removed).map(lambda name: Change("remove", name)),
        st.sampled_from(_MOVES).map(lambda names: Change("move", *names)),
    )
    return st.lists(one, min_size=1, max_size=4)


def apply_changes(folder: Path, drawn: Sequence[Change]) -> None:
    """Applies changes to a folder; one whose file is not there makes it, or has no effect."""
    for change in drawn:
        path = folder / change.file
        if change.kind == "remove":
            path.unlink(missing_ok=True)
        elif change.kind == "move":
            if path.exists() and not (folder / change.at).exists():
                shutil.move(path, folder / change.at)
        else:
            _set(path, change.at.split("/"), change.value)


def _set(path: Path, keys: Sequence[str], value: Any) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    inside = content
    for key in keys[:-1]:
        inside = _inside(inside, key)
        if inside is None:
            return
    if isinstance(inside, list) and not keys[-1].isdecimal():
        return  # an earlier change put a list where a value with names was
    _put(inside, keys[-1], value)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def _inside(content: Any, key: str) -> Any:
    match content:
        case list():
            return content[int(key)] if key.isdecimal() and int(key) < len(content) else None
        case dict():
            found = content.get(key)
            return found if isinstance(found, dict | list) else None
    return None


def _put(inside: Any, key: str, value: Any) -> None:
    if isinstance(inside, list):
        at = int(key)
        inside[at : at + 1] = [] if value == MISSING else [value]
    elif value == MISSING:
        inside.pop(key, None)
    else:
        inside[key] = value
