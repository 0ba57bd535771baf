"""Tiny tokenizers of the kinds that published models have, and their files.

`tokenizer.json` is that of transformers' own class, with a vocabulary of the words of the texts
below; `tokenizer_config.json` names the class, as in folders of released models. transformers makes
most of these tokenizers anew, from the vocabulary and what the second file says.
"""

import functools
import json
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

PASSAGES = (
    "The red river runs to the sea.",
    "A stone bridge crosses the Red River in the old town, and a market is held there in winter.",
    "Captain Émile sold his café and sailed for the islands",
    "Copper wire, silver rings and a box of old letters were found in the castle garden.",
    "Letters from the castle: the doctor's answer!",
    "the market sells copper and silver",
    "Snow fell on the mountain village all winter; the doctor came by sledge, twice a week.",
    "engine  oil",
    "The engine of the first rocket burned oil for 3.5 minutes and then fell into the sea.",
    "A garden of stones",
    "In the old town every doctor, teacher and soldier bought tea, rice and bread at the market,"
    " and nobody sold letters, rings, wire or copper from the castle in those days of snow.",
    "Tea (茶)",
)
QUERIES = (
    "old letters",
    "Where does the river meet the sea?",
    "the doctor of the mountain village, who came by sledge in winter, and the market of the town"
    " where bread, rice, tea, copper wire and silver rings were sold in those days",
    "rocket engine",
    "café",
    "copper and silver",
)
# Of the prompts of published models, so that these do not fill a text's tokens with letters.
_OF_PROMPTS = (
    "query: passage: search_query: search_document: Represent this sentence for searching relevant"
    " passages: task: search result | query: title: none | text: Instruct: Given a web search"
    " query, retrieve relevant passages that answer the query\nQuery:"
)
_UNKNOWN = "茶"  # a character that no vocabulary has
_LEARNED = tuple(text.replace(_UNKNOWN, "") for text in (*PASSAGES, *QUERIES, _OF_PROMPTS))
_NO_LIMIT = 10**30  # what transformers writes where it knows no limit


class Published(NamedTuple):
    """A tokenizer and the files of its folder."""

    backend: Tokenizer
    config: Mapping[str, Any]  # tokenizer_config.json
    pad_id: int


def files_of(kind: str) -> dict[str, Any]:
    """Returns the parsed contents of a tokenizer's files by name."""
    published = load(kind)
    tokens = {name: token for name, token in published.config.items() if name.endswith("_token")}
    return {
        "special_tokens_map.json": {name: token for name, token in tokens.items() if token},
        "tokenizer.json": json.loads(published.backend.to_str()),
        "tokenizer_config.json": dict(published.config),
    }


@functools.cache
def load(kind: str) -> Published:
    """Returns the tokenizer of a kind."""
    return _MAKERS[kind]()


def _roles(**tokens: str) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokens.items()}


_BERT_ROLES = _roles(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_ROBERTA_ROLES = _roles(
    bos="<s>", eos="</s>", sep="</s>", cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>"
)


def _wordpiece(special: list[str], *, lowercase: bool) -> dict[str, int]:
    """Lists whole words and letters: tokenizers' own trainer breaks ties by chance."""
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    cut = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    texts = [normalizer.normalize_str(text) for text in _LEARNED]
    words = sorted({word for text in texts for word, _ in cut(text)})
    letters = sorted(set("".join(words)))
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *words]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def _bert(class_name: str = "BertTokenizer", *, lowercase: bool = True) -> Published:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = _wordpiece(special, lowercase=lowercase)
    made = getattr(transformers, class_name)(vocab=vocabulary, do_lower_case=lowercase)
    config = {
        **_BERT_ROLES,
        "do_lower_case": lowercase,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": 512,
        "tokenizer_class": class_name,
    }
    return Published(made.backend_tokenizer, config, pad_id=0)


def _bert_with_limits() -> Published:
    """As that of all-MiniLM-L6-v2, whose file cuts and pads as its training did."""
    made = _bert()
    backend = Tokenizer.from_str(made.backend.to_str())
    backend.enable_truncation(12)
    backend.enable_padding(length=12, pad_id=0, pad_token="[PAD]")
    return made._replace(backend=backend)


def _mpnet() -> Published:
    vocabulary = _wordpiece(["<s>", "<pad>", "</s>", "[UNK]"], lowercase=True)
    vocabulary["<mask>"] = len(vocabulary)
    made = transformers.MPNetTokenizer(vocab=vocabulary)
    config = {
        **_ROBERTA_ROLES,
        "unk_token": "[UNK]",
        "do_lower_case": True,
        "model_max_length": 512,
        "tokenizer_class": "MPNetTokenizer",
    }
    return Published(made.backend_tokenizer, config, pad_id=1)


def _pieces(special: list[str]) -> list[tuple[str, float]]:
    """Returns the pieces of SentencePiece's unigrams and their scores: words before letters."""
    words = sorted({word for text in _LEARNED for word in text.split()})
    halves = sorted({half for word in words for half in (word[:3], word[3:]) if half})
    letters = sorted(set("".join(words)))
    pieces = [*(f"▁{word}" for word in words), "▁", *halves, *letters]
    scores = {piece: -2.0 - number / 50 for number, piece in enumerate(dict.fromkeys(pieces))}
    return [*((token, 0.0) for token in special), *scores.items()]


def _charsmap() -> bytes:
    """Returns SentencePiece's precompiled normalizer with one rule: a tab becomes a space.

    A double array of words of 32 bits, as SentencePiece (arXiv 1808.06226) writes it: the unit of a
    byte holds the byte itself, a bit for "a key ends here" and the way to the unit of its value,
    which is where the normalized text starts.
    """
    n_units = 512
    units = [0] * n_units
    tab = ord("\t")
    value_at = 256
    units[tab] = tab | 1 << 8 | (tab ^ value_at) << 10
    units[value_at] = 1 << 31
    trie = struct.pack(f"<{n_units}I", *units)
    return struct.pack("<I", len(trie)) + trie + b" \0"


def _unigram(class_name: str = "XLMRobertaTokenizer", max_length: int = 512) -> Published:
    pieces = [*_pieces(["<s>", "<pad>", "</s>", "<unk>"]), ("<mask>", 0.0)]
    made = transformers.XLMRobertaTokenizer(vocab=pieces, _spm_precompiled_charsmap=_charsmap())
    config = {**_ROBERTA_ROLES, "model_max_length": max_length, "tokenizer_class": class_name}
    return Published(made.backend_tokenizer, config, pad_id=1)


def _t5() -> Published:
    pieces = _pieces(["<pad>", "</s>", "<unk>"])
    extra = [(f"<extra_id_{i}>", 0.0) for i in range(3)]
    made = transformers.T5Tokenizer(
        vocab=[*pieces, *extra], extra_ids=len(extra), _spm_precompiled_charsmap=_charsmap()
    )
    config = {
        **_roles(eos="</s>", unk="<unk>", pad="<pad>"),
        "extra_ids": len(extra),
        "additional_special_tokens": [token for token, _ in extra],
        "model_max_length": 512,
        "tokenizer_class": "T5Tokenizer",
    }
    return Published(made.backend_tokenizer, config, pad_id=0)


def _learned_bpe(special: list[str], normalizer: Any = None) -> tuple[dict[str, int], list[Any]]:
    """Returns the entries and merges of a byte-level BPE that has learned from the texts."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator([text for text in _LEARNED for _ in range(2)], trainer)
    state = json.loads(learner.to_str())["model"]
    return state["vocab"], [tuple(merge) for merge in state["merges"]]


def _roberta() -> Published:
    vocabulary, merges = _learned_bpe(["<s>", "<pad>", "</s>", "<unk>"])
    vocabulary["<mask>"] = len(vocabulary)
    made = transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)
    config = {
        **_ROBERTA_ROLES,
        "add_prefix_space": False,
        "trim_offsets": True,
        "model_max_length": 512,
        "tokenizer_class": "RobertaTokenizer",
    }
    return Published(made.backend_tokenizer, config, pad_id=1)


def _modernbert() -> Published:
    """Special tokens come last, after tokens for runs of spaces."""
    vocabulary, merges = _learned_bpe(["|||IP_ADDRESS|||", "<|padding|>"])
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_tokens([AddedToken("  ", normalized=True)])
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    backend.add_special_tokens(
        [AddedToken(token, special=True, lstrip=token == "[MASK]") for token in special]
    )
    ids = {token: backend.token_to_id(token) for token in special}
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    config = {
        **_BERT_ROLES,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    return Published(backend, config, ids["[PAD]"])


def _qwen2() -> Published:
    """The end of a text is what its vector is read from: the template adds it."""
    end = "<|endoftext|>"
    vocabulary, merges = _learned_bpe([])
    vocabulary[end] = len(vocabulary)
    made = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    backend = made.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, vocabulary[end])]
    )
    config = {
        **_roles(eos=end, pad=end),
        "bos_token": None,
        "unk_token": None,
        "padding_side": "left",
        "model_max_length": 131072,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    return Published(backend, config, pad_id=vocabulary[end])


def _gemma() -> Published:
    """A BPE over SentencePiece's pieces; bytes stand in for characters that it lacks."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    letters = sorted(set("".join(_LEARNED).replace(" ", "▁").replace("é", "").replace("\n", "")))
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    words = [f" {word}" for text in _LEARNED for word in text.split()]
    learner.train_from_iterator(words, trainer)
    state = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in state["merges"]]
    made = transformers.GemmaTokenizer(vocab=state["vocab"], merges=merges)
    backend = made.backend_tokenizer
    ids = state["vocab"]
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> <bos> $B <eos>",
        special_tokens=[(token, ids[token]) for token in ("<bos>", "<eos>")],
    )
    config = {
        **_roles(bos="<bos>", eos="<eos>", pad="<pad>", unk="<unk>", mask="<mask>"),
        "model_max_length": _NO_LIMIT,
        "tokenizer_class": "GemmaTokenizer",
    }
    return Published(backend, config, pad_id=ids["<pad>"])


_MAKERS = {
    "WordPiece": _bert,
    "WordPiece, cut and padded by its file": _bert_with_limits,
    "cased WordPiece": functools.partial(_bert, "DistilBertTokenizer", lowercase=False),
    "cased WordPiece of BERT": functools.partial(_bert, lowercase=False),
    "WordPiece of MPNet": _mpnet,
    "unigrams": _unigram,
    "unigrams without a class": functools.partial(_unigram, "PreTrainedTokenizerFast"),
    "unigrams of long texts": functools.partial(_unigram, max_length=8192),
    "unigrams of T5": _t5,
    "byte-level BPE of RoBERTa": _roberta,
    "byte-level BPE of ModernBERT": _modernbert,
    "byte-level BPE of Qwen2": _qwen2,
    "BPE of Gemma": _gemma,
}
