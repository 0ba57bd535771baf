"""The small world of the tests: texts, tokenizers, collections, stores and settings of a tiny run.

Files are written without the package where it does not matter, so that its readers meet what others
write.
"""

import functools
import gzip
import json
import lzma
import os
import random
import re
import shutil
from pathlib import Path

import jax
import numpy as np
from backports import zstd
from safetensors.numpy import save_file

from cocondenser_jax.corpus.build import StoreSettings, build_store, build_task
from cocondenser_jax.corpus.sources import open_source
from cocondenser_jax.corpus.tasks import find_duplicates, hash_task
from cocondenser_jax.corpus.tokenizer import save_tokenizer, train_tokenizer
from cocondenser_jax.files.runs import write_checksums
from cocondenser_jax.model import kernels
from cocondenser_jax.model.condenser import Condenser
from cocondenser_jax.model.config import ModelConfig
from cocondenser_jax.model.layout import Layout
from cocondenser_jax.pretrain import devices, loop, step
from cocondenser_jax.pretrain.checkpoint import named_arrays
from cocondenser_jax.pretrain.experiment import resolve_without_store

WORDS = "red green blue stone river cloud tree house bird fish salt iron wind snow fire".split()
# Suffix of a file → how its content is packed.
COMPRESSIONS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
# A network and batches that CPUs train in no time: 16 documents are two on each of 8 devices.
TINY = {
    "data.batch_size": 16,
    "data.length": 16,
    "model.hidden_size": 16,
    "model.intermediate_size": 32,
    "model.max_position_embeddings": 32,
    "model.num_attention_heads": 2,
    "model.num_hidden_layers": 2,
    "model.skip_from": 1,
}


def instead(words, others):
    """Returns the words of a command with others, instead of those that give the same flags."""
    given = {word.partition("=")[0] for word in others}
    return [*(word for word in words if word.partition("=")[0] not in given), *others]


def as_flags(settings):
    """Returns settings as a command line gives them: --config.model.hidden_size=16 and so on."""
    return [f"--config.{name}={value}" for name, value in settings.items()]


def write_experiment(folder, config):
    """Writes the program of a config, as --config takes it; returns its path."""
    text = "import json\nfrom ml_collections import ConfigDict\n"
    text += f"get_config = lambda: ConfigDict(json.loads({config.to_json()!r}))\n"
    (folder / "experiment.py").write_text(text)
    return folder / "experiment.py"


def change_settings(config, settings):
    """Changes settings of a config, by their dotted names."""
    config.update_from_flattened_dict(settings)


def with_devices(n):
    """Returns the environment of a process that has n devices."""
    flags = re.sub(r"device_count=\d+", f"device_count={n}", os.environ["XLA_FLAGS"])
    return os.environ | {"XLA_FLAGS": flags}


@functools.partial(jax.jit, static_argnums=0)
def encode_in_flax(config, params, *inputs):
    """Computes vectors in one program: operation by operation, each is compiled."""
    return Condenser(config).apply({"params": params}, *inputs, method="encode")


def compute_full_lengths(patch=setattr):
    """Lets chunks have their full length: half of the programs to compile, or a quarter."""
    for name in ("LENGTH_FRACTIONS", "ENCODER_LENGTH_FRACTIONS"):
        patch(step, name, (1,))


def interpret_kernels(patch=setattr):
    """Lets CPUs compute attention by the kernel for GPUs, interpreted, unless it is to be XLA's."""
    call = functools.partial(kernels.pl.pallas_call, interpret=True)
    patch(kernels.pl, "pallas_call", call)

    def choose_layout(model_config, settings, length, used):
        return Layout("xla" if settings.attention == "xla" else "gpu")

    for module in (devices, loop):
        patch(module, "choose_layout", choose_layout)


def make_texts(n, n_sentences=6, seed=0):
    """Returns texts of sentences of 7 to 11 words."""
    rng = random.Random(seed)

    def sentence():
        return " ".join(rng.choices(WORDS, k=rng.randint(7, 11)))

    return [". ".join(sentence() for _ in range(n_sentences)) + "." for _ in range(n)]


def write_records(path, records):
    """Writes JSON lines; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def read_records(path):
    """Reads JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_metrics(workdir):
    """Reads the lines that a run has logged."""
    return read_records(workdir / "metrics.jsonl")


def write_tokenizer(folder, texts, vocab_size=80):
    """Writes a WordPiece tokenizer that has learned from texts; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(train_tokenizer(texts, vocab_size), folder)
    return folder


def write_store(folder, texts, max_length=16, vocab_size=80):
    """Makes text.jsonl, tokenizer/ and store/ in a folder; returns that of the store."""
    write_records(folder / "text.jsonl", ({"text": text} for text in texts))
    tokenizer = write_tokenizer(folder / "tokenizer", texts, vocab_size)
    source = str(folder / "text.jsonl")
    build_store(source, str(tokenizer), folder / "store", max_length=max_length)
    return folder / "store"


def cut_file(path, folder, n):
    """Writes the lines of a .jsonl file into n files of a folder, in their order."""
    lines = path.read_text().splitlines(keepends=True)
    folder.mkdir()
    for k in range(n):
        own = lines[k * len(lines) // n : (k + 1) * len(lines) // n]
        (folder / f"{k}.jsonl").write_text("".join(own))
    return folder


def write_in_tasks(source, tokenizer, out, n, **settings):
    """Writes a store in n tasks, as `corpus --tasks` does, in this process."""
    settings = StoreSettings(
        **{"short_span_prob": 0.0, **settings}, corpus=source, pieces=len(open_source(source))
    )
    work = out.parent / f"{out.name} work"
    for index in range(n):
        hash_task(source, work, (index, n))
    for index in range(n):
        find_duplicates(work, (index, n))
    for index in range(n):
        build_task(settings, tokenizer, out, work, (index, n))


def write_qrels(path, judgments):
    """Writes judgments, {query: {passage: grade}}, as BEIR does."""
    lines = [
        f"{query}\t{passage}\t{grade}"
        for query, grades in judgments.items()
        for passage, grade in grades.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["query-id\tcorpus-id\tscore", *lines, ""]))


def write_beir(folder, passages, queries, splits, prefixes=("p", "q")):
    """Writes a collection as BEIR does: the passage that query i asks for is passage i.

    Args:
      folder: is made.
      passages: the texts; their ids are p0, p1, ...
      queries: the texts; their ids are q0, q1, ...
      splits: {name of a split: numbers of its queries}.
      prefixes: what stands before the numbers of passages and of queries.
    """
    passage, query = prefixes
    for name, prefix, texts in (("corpus", passage, passages), ("queries", query, queries)):
        records = ({"_id": f"{prefix}{i}", "text": text} for i, text in enumerate(texts))
        write_records(folder / f"{name}.jsonl", records)
    for split, numbers in splits.items():
        judgments = {f"{query}{i}": {f"{passage}{i}": 1} for i in numbers}
        write_qrels(folder / "qrels" / f"{split}.tsv", judgments)
    return folder


def write_run(folder, model_config, params, tokenizer_folder):
    """Writes a run folder with these parameters in its only checkpoint."""
    checkpoint = folder / "checkpoints" / "0"
    checkpoint.mkdir(parents=True)
    shutil.copytree(tokenizer_folder, folder / "tokenizer")
    run = {"config": {}, "model": model_config.to_dict()}
    (folder / "run.json").write_text(json.dumps(run))
    save_file(named_arrays(params), checkpoint / "params.safetensors")
    (checkpoint / "probe.json").write_text("{}")
    write_checksums(checkpoint)


def ranked(name, model, is_fused, means, tests, seconds, vectors=(0, 0)):
    """Returns a ranking that was measured and tested, by its means alone."""
    from cocondenser_jax.retriever.compare.rankings import Ranking  # few tests need it

    metrics = {"mean": means, "per_query": {}}
    source = Path(f"{name}.trec")
    return Ranking(name, source, model, is_fused, vectors, seconds, {}, metrics, tests)


def comparison_of(p, difference=0.0, mean=0.5, n_queries=100):
    """Returns what `significance.compare` says of a metric, with an interval of 0.1 around it."""
    return {
        "mean": mean,
        "other_mean": mean - difference,
        "difference": difference,
        "interval": [difference - 0.1, difference + 0.1],
        "detectable": 0.14,
        "t_test_p": p,
        "randomization_p": p,
        "better": n_queries,
        "worse": 0,
        "equal": 0,
    }


def batches_of(config):
    """Returns what the batches of a pre-training are."""
    return resolve_without_store(config, 1, 80, 0).batches


def step_of(config, n_steps):
    """Returns the settings of a step of a pre-training of `n_steps`."""
    return resolve_without_store(config, n_steps, 80, 0).step


def model_of(config, store):
    """Returns the shape of a new model for a store."""
    return ModelConfig(**resolve_without_store(config, 1, store.vocab_size, store.pad_id).network)


def relative_error(found, expected):
    """Returns the norm of the difference of two trees of arrays over that of the second.

    Not by element: one whose terms cancel can be as small as float32's rounding of its terms.
    """
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    distance = np.linalg.norm([np.linalg.norm(a - b) for a, b in pairs])
    return float(distance / np.linalg.norm([np.linalg.norm(b) for _, b in pairs]))


def write_retriever(backbone, out, pooling, dense=(), **settings):
    """Writes a folder as sentence-transformers does, with dense layers after the pooling.

    Args:
      backbone: the folder of a network, and of its tokenizer.
      out: is made.
      pooling: such as "mean".
      dense: the arguments of each layer, but for its first size; `True` scales to length 1.
      settings: of `SentenceTransformer`, such as `truncate_dim`.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Dense,
        Normalize,
        Pooling,
        Transformer,
    )

    transformer = Transformer(str(backbone), model_kwargs={"add_pooling_layer": False})
    size = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(size, pooling)]
    for layer in dense:
        if layer is True:
            modules.append(Normalize())
            continue
        modules.append(Dense(size, **layer))
        size = layer["out_features"]
    SentenceTransformer(modules=modules, **settings).save_pretrained(str(out))
    return out
