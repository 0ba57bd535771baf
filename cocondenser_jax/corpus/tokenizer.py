"""Tokenizers of BERT, RoBERTa, XLM-R and ModernBERT: load, train, save, identify."""

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from cocondenser_jax.errors import UserError, first_line
from cocondenser_jax.files import read_object, write_json
from cocondenser_jax.paths import plain_path

Kind = Literal["bert", "roberta", "xlm-roberta", "modernbert"]

# Types of model, normalizer and pre-tokenizer. XLM-R's is SentencePiece's, with any normalizer.
_KINDS: dict[tuple[str | None, ...], Kind] = {
    ("WordPiece", "BertNormalizer", "BertPreTokenizer"): "bert",
    ("BPE", None, "ByteLevel"): "roberta",
    ("BPE", "NFC", "ByteLevel"): "modernbert",
    ("Unigram", "Metaspace"): "xlm-roberta",
}

# Role -> spelling, in the order in which a new vocabulary numbers them.
_BERTS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTAS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
SPECIAL_TOKENS: dict[Kind, dict[str, str]] = {
    "bert": _BERTS,
    "roberta": _ROBERTAS,
    "xlm-roberta": _ROBERTAS,
    "modernbert": _BERTS,
}
# A vocabulary learnt from text in many scripts has at most this many single characters.
ALPHABET_SIZE = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class SpanTokenizer:
    """A tokenizer of spans, and what the rest of the package needs to know about it.

    Attributes:
      backend: neither pads nor truncates, and reads "[MASK]" in a text as text.
      kind: `bert` is WordPiece, `roberta` and `modernbert` byte-level BPE, `xlm-roberta` unigrams.
      vocab_size: highest token id + 1.
      special_ids: ids that stand for no text (and the unknown token), ascending.
      sha256: equal for two tokenizers exactly when their entries and rules are, however their
        files are laid out.
    """

    backend: Tokenizer
    kind: Kind
    vocab_size: int
    cls_id: int
    sep_id: int
    pad_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    sha256: str

    @property
    def is_byte_level(self) -> bool:
        """Whether the space before a word is part of its first token."""
        return self.kind in ("roberta", "modernbert")


def load_tokenizer(name_or_folder: str) -> SpanTokenizer:
    """Loads a tokenizer of BERT, RoBERTa, XLM-R or ModernBERT.

    Args:
      name_or_folder: a folder with `tokenizer.json`, with `vocab.txt` (WordPiece; lower-casing
        as `tokenizer_config.json` says, else lower-cased if no entry has a capital), or with
        `vocab.json` and `merges.txt` (byte-level BPE); or a name on the Hugging Face hub.
    """
    folder = Path(name_or_folder)
    if folder.is_dir():
        backend = _read_folder(folder)
    elif folder.exists():
        raise UserError(f"tokenizer {folder} is a file: expected the folder that holds it")
    else:
        try:
            backend = Tokenizer.from_pretrained(name_or_folder)
        except Exception as error:  # the library passes on whatever the network raised
            raise UserError(
                f"no folder {folder}, and no tokenizer of that name from the Hugging Face hub: "
                f"{first_line(error)}"
            ) from error
    return span_tokenizer(backend, name_or_folder)


def train_wordpiece(texts: Iterable[str], vocab_size: int) -> SpanTokenizer:
    """Learns a lower-case BERT WordPiece vocabulary; the same texts give the same vocabulary.

    Args:
      texts: the corpus, or a sample of it: held in memory.
      vocab_size: number of entries, [PAD] = 0, [UNK], [CLS], [SEP] and [MASK] included; a small
        corpus gives fewer.
    """
    texts = list(texts)
    learner = _bert_tokenizer(models.WordPiece(unk_token="[UNK]"), lowercase=True)
    letters, inner_letters = _alphabet(learner, texts, min(ALPHABET_SIZE, vocab_size // 4))
    # tokenizers 0.23.3 numbers inner letters in the order of a hash table and breaks ties between
    # merges by number, so each run learns another vocabulary. Letters given beforehand keep their
    # numbers. https://github.com/huggingface/tokenizers/issues/1794
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS["bert"].values(), *(f"##{c}" for c in inner_letters)],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer, length=len(texts))
    model = models.WordPiece(learner.get_vocab(), unk_token="[UNK]")
    return span_tokenizer(_bert_tokenizer(model, lowercase=True), "the trained vocabulary")


def _alphabet(tokenizer: Tokenizer, texts: Iterable[str], size: int) -> tuple[list[str], list[str]]:
    """Returns the most frequent characters, and those of them that occur inside words."""
    normalize, cut = tokenizer.normalizer.normalize_str, tokenizer.pre_tokenizer.pre_tokenize_str
    words = Counter(word for text in texts for word in normalize(text).split())
    counts: Counter[str] = Counter()
    inner: set[str] = set()
    for word, count in words.items():
        for piece, _ in cut(word):
            inner.update(piece[1:])
            for letter in piece:
                counts[letter] += count
    letters = sorted(counts, key=lambda letter: (-counts[letter], letter))[:size]
    return sorted(letters), sorted(inner.intersection(letters))


def save_tokenizer(tokenizer: SpanTokenizer, folder: Path, model_max_length: int = 512) -> None:
    """Writes the files from which `transformers.AutoTokenizer` loads the same tokenizer.

    The longest input of the model counts special tokens, too. The folder must exist.
    """
    kind, backend = tokenizer.kind, tokenizer.backend
    with plain_path(folder) as plain:
        backend.save(f"{plain}/tokenizer.json")
        backend.model.save(str(plain))
    tokens = {f"{role}_token": token for role, token in SPECIAL_TOKENS[kind].items()}
    state = json.loads(backend.to_str())
    if kind == "bert":
        rules = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": state["normalizer"]["lowercase"],
            "strip_accents": state["normalizer"]["strip_accents"],
            "tokenize_chinese_chars": state["normalizer"]["handle_chinese_chars"],
        }
    elif kind != "roberta":
        rules = {"tokenizer_class": "PreTrainedTokenizerFast"}
    else:
        tokens |= {"bos_token": "<s>", "eos_token": "</s>"}
        rules = {
            "tokenizer_class": "RobertaTokenizer",
            "add_prefix_space": state["pre_tokenizer"]["add_prefix_space"],
        }
    config = {**tokens, "model_max_length": model_max_length, **rules}
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", tokens)


def span_tokenizer(backend: Tokenizer, name: str) -> SpanTokenizer:
    """Wraps a tokenizer, switching off what would change the tokens of plain text."""
    backend.no_padding()
    backend.no_truncation()
    # A docstring about tokenizers may say "[MASK]": in a corpus that is text, not a mask.
    backend.encode_special_tokens = True
    state = json.loads(backend.to_str())
    parts = [_part_type(state[part]) for part in ("model", "normalizer", "pre_tokenizer")]
    kind = _KINDS.get(tuple(parts)) or _KINDS.get((parts[0], parts[2]))
    if kind is None:
        raise UserError(
            f"tokenizer {name} is of another kind ({', '.join(map(str, parts))}):"
            f" expected one of {', '.join(_KINDS.values())}"
        )
    if kind == "xlm-roberta":
        backend.model = _never_in_text(state["model"], set(SPECIAL_TOKENS[kind].values()))
        state = json.loads(backend.to_str())
    entries = backend.get_vocab(with_added_tokens=True)
    for token in SPECIAL_TOKENS[kind].values():
        if token not in entries:
            raise UserError(f"tokenizer {name} has no {token}, which {kind} models need")
    ids = {role: entries[token] for role, token in SPECIAL_TOKENS[kind].items()}
    added = backend.get_added_tokens_decoder()
    return SpanTokenizer(
        backend=backend,
        kind=kind,
        vocab_size=max(entries.values()) + 1,
        **{f"{role}_id": ids[role] for role in ("cls", "sep", "pad", "mask")},
        special_ids=tuple(sorted({*ids.values(), *(i for i, t in added.items() if t.special)})),
        sha256=_checksum(entries, state),
    )


def _never_in_text(model: dict[str, Any], special: set[str]) -> models.Unigram:
    """Makes special tokens the worst of all pieces: in a text, the library prefers them to others.

    SentencePiece never reads "</s>" in a text as the special token.
    """
    worst = min(score for piece, score in model["vocab"] if piece not in special) - 100.0
    pieces = [(piece, worst if piece in special else score) for piece, score in model["vocab"]]
    return models.Unigram(pieces, model["unk_id"], model.get("byte_fallback", False))


def _part_type(part: dict[str, Any] | None) -> str | None:
    """Returns the type of a tokenizer's part; of a sequence of pre-tokenizers that of the last."""
    if part is None:
        return None
    steps = part.get("pretokenizers") or [part]
    return str(steps[-1]["type"])


def _checksum(entries: dict[str, int], state: dict[str, Any]) -> str:
    """Hashes what decides the ids of a text, which layout, decoder and template do not."""
    vocab = state["model"]["vocab"]
    state["pre_tokenizer"].pop("trim_offsets", None)  # changes character positions only
    rules = {
        "entries": entries,
        "merges": state["model"].get("merges"),
        # Unigrams have scores; tokenizers reads and writes them inexactly.
        **({"scores": [round(score, 6) for _, score in vocab]} if isinstance(vocab, list) else {}),
        "normalizer": state["normalizer"],
        "pre_tokenizer": state["pre_tokenizer"],
    }
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()


def _read_folder(folder: Path) -> Tokenizer:
    for names in (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt")):
        if all((folder / name).exists() for name in names):
            break
    else:
        raise UserError(
            f"no tokenizer in {folder}: expected tokenizer.json, vocab.txt, "
            "or vocab.json with merges.txt"
        )
    try:
        with plain_path(folder) as plain:
            match names[0]:
                case "tokenizer.json":
                    return Tokenizer.from_file(f"{plain}/tokenizer.json")
                case "vocab.txt":
                    return _read_wordpiece(plain, _read_config(folder))
                case _:
                    return _read_byte_level(plain, _read_config(folder))
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception
        wrong = " with ".join(names)
        raise UserError(f"{folder}: {wrong} is not a tokenizer: {first_line(error)}") from error


def _read_wordpiece(folder: Path, config: dict[str, Any]) -> Tokenizer:
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()
    entries = {line: number for number, line in enumerate(lines)}
    special = set(SPECIAL_TOKENS["bert"].values())
    cased = any(re.search("[A-Z]", entry) for entry in entries.keys() - special)
    return _bert_tokenizer(
        models.WordPiece(entries, unk_token="[UNK]"),
        lowercase=config.get("do_lower_case", not cased),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )


def _read_byte_level(folder: Path, config: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
    prefix = config.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    _add_special_tokens(tokenizer, "roberta")
    return tokenizer


def _read_config(folder: Path) -> dict[str, Any]:
    """Reads `tokenizer_config.json`, where there is one."""
    file = folder / "tokenizer_config.json"
    config = read_object(file, {})
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"):
        value = config.get(name, False)
        if not isinstance(value, bool) and (value, name) != (None, "strip_accents"):
            raise UserError(f"{file}: {name} is {value!r}, expected true or false")
    return config


def _bert_tokenizer(
    model: models.WordPiece,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    handle_chinese_chars: bool = True,
) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=handle_chinese_chars,
        strip_accents=strip_accents,  # None: as lowercase says
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    _add_special_tokens(tokenizer, "bert")
    return tokenizer


def _add_special_tokens(tokenizer: Tokenizer, kind: Kind) -> None:
    """Declares the special tokens and how they surround one text or a pair."""
    names = SPECIAL_TOKENS[kind]
    present = [token for token in names.values() if tokenizer.token_to_id(token) is not None]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in present])
    cls_id, sep_id = (tokenizer.token_to_id(names[role]) for role in ("cls", "sep"))
    if cls_id is None or sep_id is None:
        return  # `span_tokenizer` names the missing one
    cls, sep = (names["cls"], cls_id), (names["sep"], sep_id)
    if kind == "bert":
        single = f"{cls[0]}:0 $A:0 {sep[0]}:0"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, pair=f"{single} $B:1 {sep[0]}:1", special_tokens=[cls, sep]
        )
    else:
        tokenizer.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
