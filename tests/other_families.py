"""Small models of families that only PyTorch computes here, written by the libraries alone."""

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from tests import world

_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
_DECODER = _SIZES | {"num_key_value_heads": 1, "head_dim": 16}
_DISTILBERT = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2}
_DISTILBERT |= {"max_position_embeddings": 128, "initializer_range": 0.2}
_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
# Family → tokenizer, transformers' model and config, sizes, pooling.
_MODELS = {
    "distilbert": ("bert", "DistilBertModel", "DistilBertConfig", _DISTILBERT, "mean"),
    "deberta-v2": ("deberta-v2", "DebertaV2Model", "DebertaV2Config", _SIZES, "cls"),
    "qwen3": ("qwen2", "Qwen3Model", "Qwen3Config", _DECODER, "lasttoken"),
    "gemma3_text": ("gemma", "Gemma3TextModel", "Gemma3TextConfig", _DECODER, "mean"),
    "t5": ("t5", "T5EncoderModel", "T5Config", _T5, "mean"),
}


def write_model(family, texts, folder, prompts=None, **settings):
    """Writes a small random model of a family, with a cosine, by sentence-transformers."""
    tokenizer, model, config, sizes, pooling = _MODELS[family]
    plain = folder / "plain"
    plain.mkdir(parents=True)
    if tokenizer == "bert":
        world.write_tokenizer(plain, texts, 300)
    else:
        write_tokenizer(tokenizer, texts, plain)
    n_entries = len(transformers.AutoTokenizer.from_pretrained(plain))
    torch.manual_seed(0)
    made = getattr(transformers, config)(**sizes, vocab_size=n_entries, **settings)
    getattr(transformers, model)(made).save_pretrained(plain)
    backbone = Transformer(str(plain))
    modules = [backbone, Pooling(backbone.get_embedding_dimension(), pooling), Normalize()]
    SentenceTransformer(modules=modules, prompts=prompts).save_pretrained(
        str(folder / "model"), create_model_card=False
    )
    return folder / "model"


def write_tokenizer(family, texts, folder):
    """Writes a tokenizer that is learned from texts, as models of a family have it."""
    tokenizer, rules = _TOKENIZERS[family](texts)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **rules).save_pretrained(folder)
    return folder


def _as_qwen2(texts):
    """Byte-level, each digit a token, one token after the text and none before it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    rest = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    steps = [
        pre_tokenizers.Split(Regex(words + rest), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    return tokenizer, {"pad_token": "<|endoftext|>", "padding_side": "left"}


def _as_gemma(texts):
    """SentencePiece's BPE: a space is a part of the next word, and nothing cuts words."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [word for text in texts for word in text.split()]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    # Word by word, as SentencePiece learns: no piece is of two words.
    tokenizer.train_from_iterator([*words, *(f"▁{word}" for word in words)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    return tokenizer, {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}


def _as_t5(texts):
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _sentencepiece(texts, special, "$A </s>"), special


def _as_deberta(texts):
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk")}
    special |= {"mask_token": "[MASK]"}
    return _sentencepiece(texts, special, "[CLS] $A [SEP]"), special


def _sentencepiece(texts, special, single):
    """SentencePiece's unigrams: the letters, and the words from the longest to the shortest."""
    words = sorted({f"▁{word}" for text in texts for word in text.split()})
    letters = sorted({"▁", *"".join(words)})
    names = [*special.values()]
    pieces = [*((name, 0.0) for name in names), *((letter, -9.0) for letter in letters)]
    pieces += [(word, -4.0) for word in words if word not in letters]
    tokenizer = Tokenizer(models.Unigram(pieces, names.index(special["unk_token"])))
    tokenizer.add_special_tokens(names)
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    around = [(name, names.index(name)) for name in single.split() if name != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=around)
    return tokenizer


_TOKENIZERS = {
    "qwen2": _as_qwen2,
    "gemma": _as_gemma,
    "t5": _as_t5,
    "deberta-v2": _as_deberta,
}
