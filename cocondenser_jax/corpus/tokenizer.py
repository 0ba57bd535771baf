"""Tokenizers of the backbones: load, train, save, identify."""

import dataclasses
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from cocondenser_jax.backbones import BACKBONES, Backbone
from cocondenser_jax.errors import UserError, first_three, whole_message
from cocondenser_jax.files.whole import read_object, write_json

Learned = Literal["bert", "roberta", "mpnet"]  # kinds that `train_tokenizer` can make
ALPHABET_SIZE = 1000  # maximum number of single characters in a vocabulary learned from text
N_AROUND = 2  # tokens around a text: [CLS] and [SEP]
_N_BYTES = 256
_DECODERS = {
    "wordpiece": decoders.WordPiece(cleanup=False),
    "byte-level": decoders.ByteLevel(),
    "unigram": decoders.Metaspace(),
}
_LARGEST = 10_000_000  # of a network, see `ModelConfig`; tokenizers takes memory for all entries
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # of transformers' special tokens
_REPEATS = 1000  # maximum count of a word in one text


@dataclasses.dataclass(frozen=True, eq=False)
class SpanTokenizer:
    """A tokenizer of spans, with the properties that the rest of the package needs."""

    backend: Tokenizer  # does not pad or truncate, and reads "[MASK]" in a text as text
    kind: str  # the family of `backbones.BACKBONES` that has such a tokenizer
    vocab_size: int  # highest token id + 1
    cls_id: int
    sep_id: int
    pad_id: int
    mask_id: int
    unknown_id: int | None  # None: every text has tokens
    special_ids: tuple[int, ...]  # that stand for no text, and the unknown token; ascending
    sha256: str  # of entries and rules, independent of the layout of the files

    @property
    def is_byte_level(self) -> bool:
        """Whether tokens include the space before them, so that a text's first word differs."""
        return BACKBONES[self.kind].tokenizer == "byte-level"

    @property
    def space(self) -> str:
        """The prefix of tokens that follow a space; "" if there is none."""
        return {"byte-level": "Ġ", "unigram": "▁"}.get(BACKBONES[self.kind].tokenizer, "")

    @property
    def space_ids(self) -> list[int]:
        """The token of a space alone, if there is one."""
        number = self.backend.token_to_id(self.space) if self.space else None
        return [] if number is None else [number]

    def ids_of(self, text: str) -> list[int]:
        """Returns the token ids of a text, without [CLS] and [SEP]."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def spell(self, ids: Iterable[int]) -> str:
        """Returns the text of tokens, whether or not the tokenizer's file has a decoder."""
        tokens = [str(self.backend.id_to_token(number)) for number in ids]
        text: str = _DECODERS[BACKBONES[self.kind].tokenizer].decode(tokens)
        return text

    @functools.cached_property
    def puts_space(self) -> bool:
        """Whether a text's first token begins with `space`, as if the text followed a space."""
        if not self.space:
            return False
        ((first, _),) = self.backend.pre_tokenizer.pre_tokenize_str("a")
        return first.startswith(self.space)

    @functools.cached_property
    def follows_space_V(self) -> np.ndarray:
        """Whether a token begins with `space`."""
        follows_V = np.zeros(self.vocab_size, bool)
        entries = self.backend.get_vocab()
        follows_V[[i for token, i in entries.items() if token.startswith(self.space)]] = True
        return follows_V


def load_tokenizer(name_or_folder: str) -> SpanTokenizer:
    """Loads a tokenizer of one of the backbones.

    Args:
      name_or_folder: a folder with `tokenizer.json` or its sources, or a Hugging Face Hub name.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        backend = _read_folder(folder)
    else:
        try:
            backend = Tokenizer.from_pretrained(name_or_folder)
        except Exception as error:  # the library passes on any exception of the network
            raise UserError(
                f"no folder {folder}, and no tokenizer of that name from the Hugging Face hub: "
                f"{whole_message(error)}"
            ) from error
    return span_tokenizer(backend, name_or_folder)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    kind: Learned = "bert",
    *,
    lowercase: bool = True,
) -> SpanTokenizer:
    """Learns a WordPiece or a byte-level BPE; the same texts give the same vocabulary.

    Args:
      texts: the corpus or a sample of it, read once. Its distinct words are kept in memory.
      vocab_size: entries, special tokens (which come first) included; a small corpus gives fewer.
      kind: see `SpanTokenizer`.
      lowercase: remove capitals and accents, where it is a WordPiece.
    """
    backbone = BACKBONES[kind]
    is_wordpiece = backbone.tokenizer == "wordpiece"
    special = [*backbone.special_tokens.values()]
    least = 10 if is_wordpiece else _N_BYTES + len(special)
    if vocab_size < least:
        raise UserError(f"a vocabulary of {vocab_size} entries: {kind} needs at least {least}")
    if vocab_size > _LARGEST:
        raise UserError(f"a vocabulary of {vocab_size:,} entries: expected at most {_LARGEST:,}")
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
    if not words:
        raise UserError("the texts hold no words to learn a vocabulary from")
    rules: dict[str, Any] = {"do_lower_case": lowercase} if is_wordpiece else {}
    entries = {token: number for number, token in enumerate(special)}
    learner = _new_tokenizer(backbone, vocab=entries, **rules)
    letters = pre_tokenizers.ByteLevel.alphabet()
    if is_wordpiece:
        letters, inner_letters = _alphabet(learner, words, min(ALPHABET_SIZE, vocab_size // 4))
        # tokenizers 0.23.3 numbers inner letters in the order of a hash table and breaks ties
        # between merges by number, so each run learns another vocabulary. Letters given in advance
        # keep their numbers. https://github.com/huggingface/tokenizers/issues/1794
        special += [f"##{letter}" for letter in inner_letters]
    make_trainer = trainers.WordPieceTrainer if is_wordpiece else trainers.BpeTrainer
    trainer = make_trainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    learner.train_from_iterator(_repeated(words), trainer)
    if is_wordpiece:  # the inner letters are not special tokens
        learner = _new_tokenizer(backbone, vocab=learner.get_vocab(), **rules)
    return span_tokenizer(learner, "the trained vocabulary")


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Yields texts that repeat each word, after a space, as often as it was counted."""
    for word, count in words.items():
        for first in range(0, count, _REPEATS):
            yield f" {word}" * min(_REPEATS, count - first)


def _alphabet(tokenizer: Tokenizer, words: Counter[str], size: int) -> tuple[list[str], list[str]]:
    """Finds the most frequent characters, and which of them occur inside words."""
    normalize = tokenizer.normalizer.normalize_str
    cut = tokenizer.pre_tokenizer.pre_tokenize_str
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in words.items():
        for piece, _ in cut(normalize(word)):
            inner.update(piece[1:])
            for letter in piece:
                counts[letter] += count
    letters = sorted(counts, key=lambda letter: (-counts[letter], letter))[:size]
    return sorted(letters), sorted(inner.intersection(letters))


def save_tokenizer(tokenizer: SpanTokenizer, folder: Path, model_max_length: int = 512) -> None:
    """Writes the files from which `transformers.AutoTokenizer` loads the same tokenizer."""
    backend = tokenizer.backend
    backbone = BACKBONES[tokenizer.kind]
    backend.save(str(folder / "tokenizer.json"))
    backend.model.save(str(folder))
    tokens = {f"{role}_token": token for role, token in backbone.special_tokens.items()}
    state = json.loads(backend.to_str())
    rules: dict[str, Any] = {"tokenizer_class": backbone.tokenizer_class}
    if backbone.tokenizer == "wordpiece":
        rules |= {
            "do_lower_case": state["normalizer"]["lowercase"],
            "strip_accents": state["normalizer"]["strip_accents"],
            "tokenize_chinese_chars": state["normalizer"]["handle_chinese_chars"],
        }
    elif backbone.tokenizer_class == "RobertaTokenizer":
        tokens |= {"bos_token": "<s>", "eos_token": "</s>"}
        rules["add_prefix_space"] = state["pre_tokenizer"]["add_prefix_space"]
    config = tokens | {"model_max_length": model_max_length} | rules
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", tokens)


def span_tokenizer(backend: Tokenizer, name: str) -> SpanTokenizer:
    """Wraps a tokenizer, and turns off everything that would change the tokens of plain text."""
    backend.no_padding()
    backend.no_truncation()
    # A docstring about tokenizers may say "[MASK]": in a corpus that is text, not a mask.
    backend.encode_special_tokens = True
    entries = backend.get_vocab(with_added_tokens=True)
    state = _state(backend, entries)
    _require_words(state["model"], entries, name)
    kind = _kind(state, entries.keys(), name)
    if kind == "xlm-roberta":
        _require_equal_words(backend, name)
    ids = _ids_of_roles(kind, entries, name)
    added = backend.get_added_tokens_decoder().items()
    special_ids = {*ids.values(), *(number for number, token in added if token.special)}
    if unfit := [token.content for _, token in added if _needs_neighbors(token, kind)]:
        raise UserError(
            f"tokenizer {name} has added tokens that hold or take spaces, such as {unfit[0]!r}:"
            " texts are tokenized word by word here, so they would not be read as the model reads"
            " them"
        )
    unknown_id = _unknown_id(state["model"], entries)
    if unknown_id is not None:
        special_ids.add(unknown_id)
    if state["model"]["type"] == "Unigram":
        special = {token for token, number in entries.items() if number in special_ids}
        backend.model = _never_in_text(state["model"], special)
        state = json.loads(backend.to_str())
    n_ids = max(entries.values()) + 1
    unused_ids = set(range(n_ids)).difference(entries.values())
    return SpanTokenizer(
        backend=backend,
        kind=kind,
        vocab_size=n_ids,
        cls_id=ids["cls"],
        sep_id=ids["sep"],
        pad_id=ids["pad"],
        mask_id=ids["mask"],
        unknown_id=unknown_id,
        special_ids=tuple(sorted(special_ids | unused_ids)),
        sha256=_checksum(entries, state),
    )


def _needs_neighbors(token: AddedToken, kind: str) -> bool:
    """Whether a token depends on the words around it; spaces alone are collapsed before."""
    has_space = token.content.strip() and token.content.split() != [token.content]
    takes_space = token.rstrip and not token.special and BACKBONES[kind].tokenizer != "wordpiece"
    return bool(has_space or takes_space)


def special_strings(tokenizer: SpanTokenizer) -> list[str]:
    """Returns the strings that a model in use reads as one token, and training as plain text."""
    added = tokenizer.backend.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special]


def _state(backend: Tokenizer, entries: Mapping[str, int]) -> dict[str, Any]:
    """Returns a tokenizer's JSON, which the library makes for all ids up to the largest."""
    token = max(entries, key=entries.__getitem__, default=None)
    if token is not None and entries[token] >= _LARGEST:
        raise UserError(
            f"token {token!r} has the id {entries[token]:,}: expected less than {_LARGEST:,}"
        )
    state: dict[str, Any] = json.loads(backend.to_str())
    return state


def _unknown_id(model: Mapping[str, Any], entries: Mapping[str, int]) -> int | None:
    """Returns the token for unknown text, or None; it need not be an added token."""
    number: int | None = model.get("unk_id", entries.get(model.get("unk_token") or ""))
    return number


def _require_words(model: Mapping[str, Any], entries: Mapping[str, int], name: str) -> None:
    """Raises a UserError for a tokenizer that would fail on some text, or that has no words."""
    unknown = model.get("unk_token")
    if model["type"] == "WordPiece" and unknown not in entries:
        raise UserError(f"tokenizer {name} has no {unknown}, which stands for unknown words")
    if not model["vocab"]:
        raise UserError(f"tokenizer {name} has no vocabulary")


def _kind(state: dict[str, Any], entries: Set[str], name: str) -> str:
    """Identifies a tokenizer by the types of its parts: many folders have no config.json.

    MPNet's differs from BERT's only in its special tokens, and BERT's are in its vocabulary, too.
    """
    cutter = state["pre_tokenizer"] or {}
    last_step = cutter.get("pretokenizers", [cutter])[-1]
    found = (state["model"], state["normalizer"] or {}, last_step)
    parts = [part.get("type") for part in found]
    match parts:
        case ["WordPiece", "BertNormalizer", "BertPreTokenizer"]:
            return "mpnet" if entries >= {*BACKBONES["mpnet"].special_tokens.values()} else "bert"
        case ["BPE", None, "ByteLevel"]:
            return "roberta"
        case ["BPE", "NFC", "ByteLevel"]:
            return "modernbert"
        case ["Unigram", _, "Metaspace"]:  # SentencePiece's, with any normalizer
            return "xlm-roberta"
    raise UserError(
        f"tokenizer {name} is of another kind ({', '.join(map(str, parts))}):"
        f" expected one of {', '.join(BACKBONES)}"
    )


def _require_equal_words(backend: Tokenizer, name: str) -> None:
    """Raises a UserError for unigrams that treat the first word of a text differently."""
    words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str("a a")]
    if len(words) != 2 or words[0] != words[1]:
        raise UserError(
            f"tokenizer {name} reads 'a a' as {words}: expected a pre-tokenizer (Metaspace) that"
            " splits at spaces and begins every word in the same way (prepend_scheme always), as"
            " texts are tokenized word by word"
        )


def _ids_of_roles(kind: str, entries: Mapping[str, int], name: str) -> dict[str, int]:
    special = BACKBONES[kind].special_tokens
    if missing := [token for token in special.values() if token not in entries]:
        raise UserError(f"tokenizer {name} has no {missing[0]}, which {kind} models need")
    return {role: entries[token] for role, token in special.items()}


def _never_in_text(model: dict[str, Any], special: set[str]) -> models.Unigram:
    """Gives special tokens the lowest score: SentencePiece never reads "</s>" as a piece."""
    worst = min((score for piece, score in model["vocab"] if piece not in special), default=0.0)
    worst -= 100.0
    pieces = [(piece, worst if piece in special else score) for piece, score in model["vocab"]]
    return models.Unigram(pieces, model["unk_id"], model.get("byte_fallback", False))


def _checksum(entries: dict[str, int], state: dict[str, Any]) -> str:
    """Hashes everything that affects the ids of a text; layout, decoder and template do not."""
    state["pre_tokenizer"].pop("trim_offsets", None)  # changes only character positions
    rules = {
        "entries": entries,
        "merges": state["model"].get("merges"),
        "normalizer": state["normalizer"],
        "pre_tokenizer": state["pre_tokenizer"],
    }
    pieces = state["model"]["vocab"]
    if isinstance(pieces, list):  # unigrams have scores, which tokenizers writes with rounding
        rules["scores"] = [round(score, 6) for _, score in pieces]
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()


def _read_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    try:
        if file.exists():
            tokenizer = Tokenizer.from_file(str(file))
            _require_all_added(tokenizer, folder)
            return tokenizer
        from transformers import AutoTokenizer  # slow to import, and seldom needed

        loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return loaded.backend_tokenizer
    except UserError:
        raise
    except Exception as error:  # the libraries raise a bare Exception
        raise UserError(
            f"{folder} holds no tokenizer that loads: {whole_message(error)}"
        ) from error


def _require_all_added(tokenizer: Tokenizer, folder: Path) -> None:
    """Raises a UserError for tokens that transformers adds from files beside tokenizer.json."""
    settings = read_object(folder / "tokenizer_config.json", {})
    names = read_object(folder / "special_tokens_map.json", {})
    tokens = [*read_object(folder / "added_tokens.json", {})]
    tokens += (settings.get("added_tokens_decoder") or {}).values()
    for said in (settings, names):
        for key in ("additional_special_tokens", "extra_special_tokens"):
            more = said.get(key) or ()
            tokens += more.values() if isinstance(more, dict) else more
    roles = [said.get(f"{role}_token") for said in (settings, names) for role in _ROLES]
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = {*map(_content, tokens)} - known
    missing |= {*map(_content, filter(None, roles))} - tokenizer.get_vocab().keys()
    if missing:
        raise UserError(
            f"{folder}: tokenizer.json lacks {first_three(sorted(missing))}, which other files add,"
            " so that training would not read them as the model does: save the tokenizer again,"
            " with transformers"
        )


def _content(token: Any) -> str:
    """Returns the text of a token that a file describes by its text or by its properties."""
    return str(token["content"] if isinstance(token, dict) else token)


def _new_tokenizer(backbone: Backbone, **rules: Any) -> Tokenizer:
    """Makes a tokenizer of transformers; the rules are arguments of its class."""
    import transformers  # slow to import, and seldom needed

    backend: Tokenizer = getattr(transformers, backbone.tokenizer_class)(**rules).backend_tokenizer
    return backend
