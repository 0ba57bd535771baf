"""What is given to a command is what the functions that do the work get, and nothing else changes.

Every command runs without its functions, which only note their arguments: once as it is, and once
with each row of `ARRIVES`, which says all that the functions then get otherwise. A flag that has no
row fails here. So do a default and choices that are not those of the function: a flag declares them
a second time, because `--help` imports no library.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints
from unittest.mock import MagicMock

import click
import pytest

from cocondenser_jax.cli import flags, output
from cocondenser_jax.cli.flags import PROGRAM
from cocondenser_jax.errors import UserError
from cocondenser_jax.files import whole
from tests.world import instead

# Given beside the required flags, unless others are given in their place.
BESIDE = {"search": ["--index=index", "--model=model", "--query=query"], "retrieve": ["--index=i"]}
IN_PLACE_OF = {"--embeddings": {"--index"}, "--corpus": {"--index", "--model"}}
WAYS = {"search": ["--index=i", "--embeddings=e", "--corpus=c"], "retrieve": ["--embeddings=e"]}

PRINTING = {"print_table", "print_text"}  # what other functions return
# Flags whose default is not that of a function that gets the value, or what is made of it.
OWN_DEFAULT = {
    ("adapt", "metric"),
    ("bm25", "columns"),
    ("compare", "metric"),
    ("finetune", "json_out"),
    ("search", "depth"),
}

# What several commands have.
GIVEN = {
    "--pooling=cls": {"Given.pooling": "cls"},
    "--similarity=dot": {"Given.similarity": "dot"},
    "--query_prompt=q": {"Given.query_prompt": "q"},
    "--passage_prompt=p": {"Given.passage_prompt": "p"},
    "--dimensions=8": {"Given.dimensions": 8},
}
SEARCHED = {
    "--model=m": {"open_model.name_or_folder": "m", "open_index.model": "open_model(m)"},
    "--parameters=nprobe=3": {"open_index.vectors": "Faiss", "Faiss.parameters": "nprobe=3"},
    "--device=cuda with --embeddings=e": {"open_index.vectors": "Exact", "Exact.device": "cuda"},
    "--oversampling=9 with --embeddings=e": {"open_index.vectors": "Bits", "Bits.oversampling": 9},
    "--hybrid=rrf": {"open_index.hybrid": "rrf"},
    "--query_prompt=q": {"open_index.query_prompt": "q"},
    "--language=x with --hybrid=rrf": {"open_index.language": "x"},
}
# Rows of each command: its words, "with" others that both calls have; and what arrives, by
# function or record and parameter. Several values are those of several calls.
ARRIVES = {
    "vocabulary": {
        "--corpus=a --corpus=b": {"build_vocabulary.sources": ["a", "b"]},
        "--columns=id,text with --corpus=a.tsv --corpus=b.tsv": {
            "build_vocabulary.sources": ["a.tsv:id,text", "b.tsv:id,text"]
        },
        "--size=9": {"build_vocabulary.size": 9},
        "--kind=roberta": {"build_vocabulary.kind": "roberta"},
        "--kind=mpnet": {"build_vocabulary.kind": "mpnet"},
        "--cased": {"build_vocabulary.lowercase": False},
        "--out=o": {"build_vocabulary.out": "o"},
    },
    "corpus": {
        "--corpus=c": {
            "build_store.source": "c",
            "print_metrics.metrics": "build_store(c).__getitem__().__or__()",
        },
        "--columns=id,text with --corpus=a.tsv": {
            "build_store.source": "a.tsv:id,text",
            "print_metrics.metrics": "build_store(a.tsv:id,text).__getitem__().__or__()",
        },
        "--tokenizer=t": {"build_store.tokenizer": "t"},
        "--out=o": {
            "output_folder.place": "o",
            "build_store.out": "output_folder(o).__enter__()",
            "print_command.words": [
                "pretrain",
                "--config=configs/small.py:condenser",
                "--config.data.store=o",
                "--config.data.length=128",
                "--workdir=runs/condenser",
            ],
        },
        "--max_length=9": {
            "build_store.max_length": 9,
            "print_command.words": [
                "pretrain",
                "--config=configs/small.py:condenser",
                "--config.data.store=out",
                "--config.data.length=9",
                "--workdir=runs/condenser",
            ],
        },
        "--short_span_prob=0.3": {"build_store.short_span_prob": 0.3},
        "--tasks=3": {
            "no longer": ["build_store"],
            "output_folder.grows": True,
            "build_in_tasks.settings": "StoreSettings",
            "StoreSettings.corpus": "corpus",
            "StoreSettings.max_length": 128,
            "StoreSettings.short_span_prob": 0.0,
            "build_in_tasks.tokenizer": "tokenizer",
            "build_in_tasks.out": "output_folder(out).__enter__()",
            "build_in_tasks.engine": "Engine",
            "Engine.tasks": 3,
            "print_metrics.metrics": "build_in_tasks(StoreSettings).__getitem__().__or__()",
        },
        "--corpus=c with --tasks=2": {"StoreSettings.corpus": "c"},
        "--tokenizer=t with --tasks=2": {"build_in_tasks.tokenizer": "t"},
        "--max_length=9 with --tasks=2": {
            "StoreSettings.max_length": 9,
            "print_command.words": [
                "pretrain",
                "--config=configs/small.py:condenser",
                "--config.data.store=out",
                "--config.data.length=9",
                "--workdir=runs/condenser",
            ],
        },
        "--short_span_prob=0.3 with --tasks=2": {"StoreSettings.short_span_prob": 0.3},
        "--workers=3 with --tasks=2": {"Engine.workers": 3},
        "--executor=slurm with --tasks=2": {"Engine.executor": "slurm"},
        "--executor=ray with --tasks=2": {"Engine.executor": "ray"},
        "--executor_options=x with --tasks=2 --executor=ray": {"Engine.options": {"read": "x"}},
        "--json_out=j": {"print_metrics.json_out": "j"},
    },
    "pretrain": {
        "--config=c": {
            "load_config.spec": "c",
            "require_stores.path": "load_config(c).data.store",
            "folder_probes.config": "load_config(c)",
            "train.config": "load_config(c)",
            "train.probes": "folder_probes(load_config(c))",
        },
        "--config.seed=7": {"load_config.overrides": ["--config.seed=7"]},
        "--workdir=w": {
            "train.workdir": "w",
            "print_command.words": ["convert", "--run_dir=w", "--out=w-model"],
        },
        "--coordinator=auto": {"no longer": ["require_stores"], "run_on_hosts.coordinator": "auto"},
        "--coordinator=h:1 --num_hosts=3 --host=2": {
            "no longer": ["require_stores"],
            "run_on_hosts.coordinator": "h:1",
            "run_on_hosts.n_hosts": 3,
            "run_on_hosts.host": 2,
        },
        "--num_hosts=4 with --coordinator=h:1 --num_hosts=3 --host=2": {"run_on_hosts.n_hosts": 4},
        "--host=1 with --coordinator=h:1 --num_hosts=3 --host=2": {"run_on_hosts.host": 1},
        "--profile_dir=p": {"train.profile_dir": "p"},
    },
    "plan": {
        "--config=c": {
            "load_config.spec": "c",
            "plan.config": "load_config(c)",
            "print_metrics.metrics": "plan(load_config(c))",
        },
        "--config.seed=7": {"load_config.overrides": ["--config.seed=7"]},
        "--topology=t": {"require_machine.name": "t", "plan.topology": "t"},
        "--json_out=j": {"print_metrics.json_out": "j"},
    },
    "convert": {
        "--run_dir=r": {"require_run_folder.folder": "r", "export_run.run": "r"},
        "--out=o": {"export_run.out": "o"},
        "--step=7": {"export_run.step": 7},
        "--step=best": {"export_run.step": "best"},
    },
    "resolve": {
        **GIVEN,
        "--model=m": {"open_model.name_or_folder": "m", "resolve_model.model": "open_model(m)"},
        "--out=o": {"require_absent.target": "o", "resolve_model.out": "o"},
        "--title_separator=s": {"Given.title_separator": "s"},
    },
    "verify": {
        "--store=s": {"verify_store.path": "s"},
    },
    "finetune": {
        "--config=c": {
            "load_config.spec": "c",
            "finetune.config": "load_config(c)",
            "finetune.words": ["finetune", "--config=c", "--workdir=workdir"],
            "print_metrics.metrics": "finetune(load_config(c))",
        },
        "--config.seed=7": {
            "load_config.overrides": ["--config.seed=7"],
            "finetune.words": [
                "finetune",
                "--config=config",
                "--workdir=workdir",
                "--config.seed=7",
            ],
        },
        "--workdir=w": {
            "finetune.workdir": "w",
            "finetune.words": ["finetune", "--config=config", "--workdir=w"],
        },
        "--json_out=j": {
            "finetune.words": ["finetune", "--config=config", "--workdir=workdir", "--json_out=j"],
            "print_metrics.json_out": "j",
        },
    },
    "quickstart": {
        "--workdir=w": {
            "require_own.path": "w/started.json",
            "quickstart.workdir": "w",
            "comparison_table.rankings": "quickstart(w).part0",
        },
    },
    "adapt": {
        **GIVEN,
        "--corpus=c": {"adapt.corpus": "c"},
        "--model=m": {"adapt.model": "m"},
        "--workdir=w": {"adapt.workdir": "w"},
        "--data=d": {
            "with_first.metric": None,
            "adapt.trial": "Trial",
            "Trial.data": "d",
            "Trial.metrics": "with_first(None)",
        },
        f"--data={__file__}": {
            "with_first.metric": None,
            "adapt.trial": "Trial",
            "Trial.data": __file__,
            "Trial.metrics": "with_first(None)",
            "Trial.corpus": "corpus",
        },
        "--metric=AP with --data=d": {"with_first.metric": "AP", "Trial.metrics": "with_first(AP)"},
        "--language=x with --data=d": {"Trial.language": "x"},
        "--ignore_identical_ids with --data=d": {"Trial.ignore_identical_ids": True},
        "--config.seed=7": {"adapt.overrides": ["--config.seed=7"]},
    },
    "compare": {
        "--data=d": {"Trial.data": "d"},
        "--corpus=c": {"Trial.corpus": "c"},
        "--model=a --model=b": {"compare.models": ["a", "b"]},
        "--workdir=w": {"compare.workdir": "w"},
        "--split=s": {"Trial.split": "s"},
        "--metric=AP": {"with_first.metric": "AP", "Trial.metrics": "with_first(AP)"},
        "--language=x": {"Trial.language": "x"},
        "--ignore_identical_ids": {"Trial.ignore_identical_ids": True},
    },
    "report": {
        "--run_dir=a --run_dir=b": {"write_run_report.workdirs": ["a", "b"]},
        "--out=o": {"write_run_report.out": "o"},
    },
    "encode": {
        **GIVEN,
        "--model=m": {
            "open_model.name_or_folder": "m",
            "Encoding.model": "open_model(m)",
            "print_command.words": ["search", "--embeddings=out", "--model=m"],
        },
        "--corpus=c": {"corpus_source.source": "c", "encode_corpus.corpus": "corpus_source(c)"},
        "--columns=id,text with --corpus=a.tsv": {
            "corpus_source.source": "a.tsv:id,text",
            "encode_corpus.corpus": "corpus_source(a.tsv:id,text)",
        },
        "--out=o": {
            "output_folder.place": "o",
            "require_own_shards.out": "output_folder(o).__enter__()",
            "encode_corpus.out": "output_folder(o).__enter__()",
            "print_command.words": ["search", "--embeddings=o", "--model=model"],
        },
        "--batch_size=9": {"Encoding.batch_size": 9},
        "--max_length=9": {"Encoding.max_length": 9},
        "--shard_size=9": {"encode_corpus.shard_size": 9},
        "--task=0/2": {
            "no longer": ["print_command"],
            "output_folder.task": [0, 2],
            "require_own_shards.task": [0, 2],
            "encode_corpus.task": [0, 2],
        },
        "--task=1/2": {
            "no longer": ["print_command"],
            "output_folder.task": [1, 2],
            "require_own_shards.task": [1, 2],
            "encode_corpus.task": [1, 2],
        },
        "--tasks=3": {
            "require_own_shards.in_tasks": True,
            "encode_corpus.engine": "Engine",
            "Engine.tasks": 3,
        },
        "--workers=3 with --tasks=2": {"Engine.workers": 3},
        "--executor=slurm with --tasks=2": {"Engine.executor": "slurm"},
        "--executor_options=x with --tasks=2 --executor=ray": {"Engine.options": {"read": "x"}},
        "--dtype=float16": {"Encoding.dtype": "float16"},
        "--dtype=int8": {"Encoding.dtype": "int8"},
        "--precision=float32": {"Encoding.precision": "float32"},
        "--title_separator=s": {"Given.title_separator": "s"},
        "--backend=jax": {"Encoding.backend": "run_in_flax"},
        "--parquet=p": {
            "write_parquet.folder": "output_folder(out).__enter__()",
            "write_parquet.out": "p",
        },
        "--json_out=j": {
            "write_json.path": "j",
            "write_json.value": "encode_corpus(Encoding).to_json()",
        },
        "--json_out=j with --task=0/2": {
            "write_json.path": "j",
            "write_json.value": "encode_corpus(Encoding).to_json()",
        },
    },
    "index": {
        "--embeddings=e": {
            "build_index.embeddings": "e",
            "print_command.words": ["search", "--index=out", "--model=build_index(e).model"],
        },
        "--out=o": {
            "output_folder.place": "o",
            "build_index.out": "output_folder(o).__enter__()",
            "print_command.words": ["search", "--index=o", "--model=build_index(embeddings).model"],
        },
        "--factory=HNSW32": {"build_index.factory": "HNSW32"},
        "--json_out=j": {
            "write_json.path": "j",
            "write_json.value": "build_index(embeddings).to_json()",
        },
    },
    "search": {
        **SEARCHED,
        "--index=j": {
            "local_copy.place": "j",
            "read_manifest.folder": "local_copy(j)",
            "open_index.folder": "local_copy(j)",
            "search_text_timed.index": "open_index(local_copy(j))",
            "print_search.hits": "search_text_timed(open_index(local_copy(j))).part0",
        },
        "--embeddings=e": {
            "local_copy.place": "e",
            "read_manifest.folder": "local_copy(e)",
            "open_index.folder": "local_copy(e)",
            "search_text_timed.index": "open_index(local_copy(e))",
            "print_search.hits": "search_text_timed(open_index(local_copy(e))).part0",
        },
        "--corpus=c": {
            "no longer": [
                "local_copy",
                "open_index",
                "open_model",
                "read_manifest",
                "search_text_timed",
            ],
            "index_corpus.corpus": "c",
            "index_corpus.language": None,
            "find_passages.index": "index_corpus(c)",
            "find_passages.query": "query",
            "find_passages.k": 10,
            "print_search.hits": "find_passages(index_corpus(c))",
            "print_search.nothing": "nothing found: no passage has a word of the query"
            " (a model finds others too: see encode)",
        },
        "--columns=id,text with --corpus=a.tsv": {
            "index_corpus.corpus": "a.tsv:id,text",
            "find_passages.index": "index_corpus(a.tsv:id,text)",
            "print_search.hits": "find_passages(index_corpus(a.tsv:id,text))",
        },
        "--language=x with --corpus=c": {"index_corpus.language": "x"},
        "--query=q": {"search_text_timed.query": "q", "print_search.query": "q"},
        "--query=q with --corpus=c": {"find_passages.query": "q", "print_search.query": "q"},
        "--depth=9": {"search_text_timed.k": 9},
        "--depth=9 with --corpus=c": {"find_passages.k": 9},
        "--json_out=j": {
            "write_json.path": "j",
            "write_json.value": {"query": "query", "hits": []},
        },
    },
    "retrieve": {
        **SEARCHED,
        "--index=j": {
            "local_copy.place": "j",
            "read_manifest.folder": "local_copy(j)",
            "open_index.folder": "local_copy(j)",
            "count_passages.index": "open_index(local_copy(j))",
            "warn_of_missing.n_found": "count_passages(open_index(local_copy(j)))",
            "retrieve.index": "open_index(local_copy(j))",
            "print_metrics.metrics": "retrieve(open_index(local_copy(j)))",
        },
        "--embeddings=e": {
            "local_copy.place": "e",
            "read_manifest.folder": "local_copy(e)",
            "open_index.folder": "local_copy(e)",
            "count_passages.index": "open_index(local_copy(e))",
            "warn_of_missing.n_found": "count_passages(open_index(local_copy(e)))",
            "retrieve.index": "open_index(local_copy(e))",
            "print_metrics.metrics": "retrieve(open_index(local_copy(e)))",
        },
        "--data=d": {
            "read_asked.data": "d",
            "relevant_passages.qrels": "read_asked(d).qrels",
            "count_passages.names": "relevant_passages(read_asked(d).qrels)",
            "warn_of_missing.relevant": "relevant_passages(read_asked(d).qrels)",
            "retrieve.asked": "read_asked(d)",
            "numbers_queries.path": "d",
        },
        "--split=s": {
            "read_asked.split": "s",
            "warn_of_missing.split": "s",
            "judgments_file.folder": "data",
            "judgments_file.split": "s",
            "print_command.words": ["evaluate", "--run=run_out", "--qrels=judgments_file(data)"],
        },
        "--run_out=r": {"retrieve.run_out": "r"},
        "--depth=9": {"retrieve.depth": 9},
        "--json_out=j": {"print_metrics.json_out": "j"},
        "--ignore_identical_ids": {
            "read_asked.ignore_identical_ids": True,
            "retrieve.ignore_identical_ids": True,
        },
    },
    "bm25": {
        "--data=d": {"Searched.data": "d", "numbers_queries.path": "d"},
        "--split=s": {"Searched.split": "s"},
        "--run_out=r": {"write_bm25_run.run_out": "r"},
        "--depth=9": {"write_bm25_run.depth": 9},
        "--json_out=j": {"print_metrics.json_out": "j"},
        "--corpus=c": {"Searched.corpus": "c"},
        "--columns=id,text with --corpus=a.tsv": {"Searched.corpus": "a.tsv:id,text"},
        "--ignore_identical_ids": {"write_bm25_run.ignore_identical_ids": True},
        "--k1=0.3": {"Bm25Settings.k1": 0.3},
        "--b=0.3": {"Bm25Settings.b": 0.3},
        "--language=x": {"Bm25Settings.language": "x"},
    },
    "fuse": {
        "--run=a --run=b": {
            "read_run.path": ["a", "b"],
            "check_runs.runs": {"a": "read_run(a)", "b": "read_run(b)"},
            "fuse_runs.runs": ["read_run(a)", "read_run(b)"],
            "finds_itself.run": "fuse_runs(['read_run(a)', 'read_run(b)'])",
            "finds_itself.queries": "fuse_runs(['read_run(a)', 'read_run(b)'])",
            "warn_of_identical_ids.rankings": {
                "run_out": "finds_itself(fuse_runs(['read_run(a)', 'read_run(b)']))"
            },
            "write_run.run": "fuse_runs(['read_run(a)', 'read_run(b)'])",
        },
        "--run_out=r": {
            "write_run.path": "r",
            "warn_of_identical_ids.rankings": {"r": "finds_itself(fuse_runs(['read_run(run)']))"},
        },
        "--method=rrf": {"fuse_runs.method": "rrf"},
        "--weights=1,2": {"fuse_runs.weights": [1.0, 2.0]},
        "--depth=9": {"fuse_runs.depth": 9},
        "--ignore_identical_ids": {
            "drop_identical_ids.run": "read_run(run)",
            "check_runs.runs": {"run": "drop_identical_ids(read_run(run))"},
            "fuse_runs.runs": ["drop_identical_ids(read_run(run))"],
            "finds_itself.run": "fuse_runs(['drop_identical_ids(read_run(run))'])",
            "finds_itself.queries": "fuse_runs(['drop_identical_ids(read_run(run))'])",
            "warn_of_identical_ids.rankings": {
                "run_out": "finds_itself(fuse_runs(['drop_identical_ids(read_run(run))']))"
            },
            "write_run.run": "fuse_runs(['drop_identical_ids(read_run(run))'])",
        },
        "--json_out=j": {"print_metrics.json_out": "j"},
    },
    "rerank": {
        "--model=m": {"rerank.model": "m", "print_metrics.metrics": "rerank(m)"},
        "--run=a": {"Candidates.run": "a"},
        "--data=d": {"Candidates.data": "d"},
        "--split=s": {"Candidates.split": "s"},
        "--run_out=r": {"rerank.out": "r"},
        "--depth=9": {"Candidates.depth": 9},
        "--json_out=j": {"print_metrics.json_out": "j"},
        "--corpus=c": {"Candidates.corpus": "c"},
        "--batch_size=9": {"rerank.batch_size": 9},
        "--precision=float32": {"rerank.precision": "float32"},
        "--with_positives": {"Candidates.with_positives": True},
        "--ignore_identical_ids": {"Candidates.ignore_identical_ids": True},
    },
    "mine": {
        "--run=a --run=b": {
            "mine.runs": ["a", "b"],
            "print_metrics.metrics": "mine(['a', 'b'])",
        },
        "--data=d": {"mine.data_folder": "d"},
        "--split=s": {"mine.split": "s"},
        "--run_out=r": {"mine.out": "r"},
        "--depth=9": {"mine.depth": 9},
        "--denoise_run=d": {
            "mine.denoising": "Denoising",
            "Denoising.run": "d",
            "Denoising.below": 0.1,
        },
        "--denoise_below=0.3 with --denoise_run=d": {"Denoising.below": 0.3},
        "--json_out=j": {"print_metrics.json_out": "j"},
    },
    "evaluate": {
        "--run=a": {
            "read_run.path": "a",
            "Ranking.name": "a",
            "Ranking.run": "a",
            "measure.run": "read_run(a)",
            "finds_itself.run": "read_run(a)",
            "warn_of_identical_ids.rankings": {"a": "finds_itself(read_run(a))"},
        },
        "--qrels=q": {
            "read_qrels.path": "q",
            "measure.qrels": "read_qrels(q)",
            "finds_itself.queries": "read_qrels(q)",
            "warn_of_identical_ids.qrels": "read_qrels(q)",
        },
        "--metric=AP,P@5": {
            "parse_metric.name": ["AP", "P@5"],
            "measure.metrics": ["AP", "P@5"],
        },
        "--compare_with=b": {
            "read_run.path": ["run", "b"],
            "require_results.run": ["read_run(run)", "read_run(b)"],
            "require_results.qrels": ["read_qrels(qrels)", "read_qrels(qrels)"],
            "require_results.name": ["run", "b"],
            "measure.ranking": ["Ranking", "Ranking"],
            "Ranking.name": ["run", "b"],
            "Ranking.run": ["run", "b"],
            "measure.run": ["read_run(run)", "read_run(b)"],
            "measure.qrels": ["read_qrels(qrels)", "read_qrels(qrels)"],
            "measure.metrics": [
                ["MRR@10", "Recall@100", "nDCG@10"],
                ["MRR@10", "Recall@100", "nDCG@10"],
            ],
            "finds_itself.run": ["read_run(run)", "read_run(b)"],
            "finds_itself.queries": ["read_qrels(qrels)", "read_qrels(qrels)"],
            "warn_of_identical_ids.rankings": {
                "run": "finds_itself(read_run(run))",
                "b": "finds_itself(read_run(b))",
            },
            "compare.per_query": "measure(run).metrics.__getitem__()",
            "compare.other": "measure(b).metrics.__getitem__()",
        },
        "--data=d with --compare_with=b": {
            "read_queries.data": "d",
            "require_known.ids": "read_qrels(qrels)",
            "require_known.known": "read_queries(d)",
            "require_known.what": "queries",
            "require_known.file": "qrels",
            "metric_name.typed": "MRR@10",
            "warn_of_copies.rankings": {
                "measure(b).name": "measure(b).first",
                "measure(run).name": "measure(run).first",
            },
            "warn_of_copies.qrels": "read_qrels(qrels)",
            "warn_of_copies.texts": "<lambda>",
            "write_changes.out": "report.html",
            "write_changes.before": "measure(b)",
            "write_changes.after": "measure(run)",
            "write_changes.judged": "Judged",
            "write_changes.test": "compare(measure(run).metrics.__getitem__()).__getitem__()",
            "Judged.metric": "metric_name(MRR@10)",
            "Judged.qrels": "read_qrels(qrels)",
            "Judged.queries": "read_queries(d)",
            "Judged.corpus": "d",
        },
        "--report=p with --compare_with=b --data=d": {"write_changes.out": "p"},
        "--ignore_identical_ids": {
            "measure.ignore_identical_ids": True,
            "no longer": ["finds_itself", "warn_of_identical_ids"],
        },
        "--ignore_identical_ids with --compare_with=b": {
            "measure.ignore_identical_ids": [True, True],
            "no longer": ["finds_itself", "warn_of_identical_ids"],
        },
        "--json_out=j with --compare_with=b": {
            "write_json.path": "j",
            "write_json.value": {
                "compared_with": "measure(b).metrics",
                "comparisons": "compare(measure(run).metrics.__getitem__())",
            },
        },
    },
}


class Result(MagicMock):
    """What a function that only notes its arguments returns; named by it and its first argument."""

    def __format__(self, how):
        return self._extract_mock_name()


def plain(value):
    """Returns what can be compared of a value; of a record or a function its name."""
    if isinstance(value, MagicMock):
        return value._extract_mock_name()
    if isinstance(value, Path):
        return re.sub(r"^Result/(.*)/\d+$", r"\1", str(value))
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return type(value).__name__
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return getattr(getattr(value, "func", value), "__name__", value)


class Arguments:
    """Notes what functions are called with: values, default and type by function and parameter."""

    def __init__(self):
        self.values = {}
        self.defaults = {}
        self.types = {}

    def note(self, owner, types, defaults, values):
        """Notes the values of parameters or fields; of a record its type, and its fields."""
        for name, value in values.items():
            key = f"{owner}.{name}"
            self.types[key] = types.get(name)
            if name in defaults:
                self.defaults[key] = defaults[name]
            self.values.setdefault(key, []).append(plain(value))
            if isinstance(value, tuple) and hasattr(value, "_asdict"):
                kind = type(value)
                self.note(kind.__name__, hints_of(kind), kind._field_defaults, value._asdict())
            if isinstance(value, functools.partial):
                value()

    def noting(self, function):
        """Returns what notes the arguments in place of a function."""
        signature = inspect.signature(function)
        defaults = {
            name: parameter.default
            for name, parameter in signature.parameters.items()
            if parameter.default is not parameter.empty
        }
        hints = hints_of(function)

        @functools.wraps(function)
        def note(*arguments, **options):
            bound = signature.bind(*arguments, **options).arguments
            if function.__name__ not in PRINTING:
                self.note(function.__name__, hints, defaults, bound)
            first = next(iter(bound.values()), "")
            if "name" in getattr(first, "_fields", ()):
                first = first.name
            result = Result(name=f"{function.__name__}({plain(first)})")
            parts = [getattr(result, part) for part in parts_of(hints.get("return"))]
            result.__iter__.side_effect = lambda: iter(parts)
            for table in (result, *parts) if get_origin(hints.get("return")) is list else parts:
                table.__bool__.return_value = False  # it has no rows
            return result

        return note


def parts_of(returned):
    """Returns the names of what a function returns that returns several values."""
    if get_origin(returned) is tuple:
        return [f"part{i}" for i in range(len(get_args(returned)))]
    return getattr(returned, "_fields", ())


def functions_of(command):
    """Yields (module, name) of the functions that a command calls, itself or in its module."""
    own = sys.modules[command.callback.__module__]
    functions = {name: each for name, each in vars(own).items() if inspect.isfunction(each)}
    parts = [name for name, each in functions.items() if each.__module__ == own.__name__]
    source = textwrap.dedent(inspect.getsource(command.callback))
    for _ in range(2):  # a part may call another one
        called = {*re.findall(r"\b\w+(?=\()", source)}
        source += "".join(inspect.getsource(functions[name]) for name in parts if name in called)
    for name in called & functions.keys():
        if functions[name].__module__ in (output.__name__, whole.__name__):
            yield own, name
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if inspect.isfunction(getattr(module, alias.name)):
                    yield module, alias.name


@functools.cache
def names_for_types(module):
    """Returns what a module imports for a type checker alone; of other libraries, `object`."""
    names = {}
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                is_ours = line.module.startswith("cocondenser_jax.")
                found = importlib.import_module(line.module) if is_ours else None
                names |= {each.name: getattr(found, each.name, object) for each in line.names}
    return names


@functools.cache
def hints_of(annotated):
    """Returns the types of the arguments of a function, or of the fields of a record."""
    return get_type_hints(annotated, localns=names_for_types(annotated.__module__))


@functools.cache
def call(name, words):
    """Returns the arguments that a command passes on with these words, separated by spaces."""
    command = PROGRAM.commands[name]
    words = words.split()
    given = {word.partition("=")[0] for word in words}
    replaced = given.union(*(IN_PLACE_OF.get(flag, ()) for flag in given))
    beside = [word for word in BESIDE.get(name, ()) if word.partition("=")[0] not in replaced]
    names = [each.name for each in command.params if each.required]
    required = [f"--{each}={each}" for each in names if f"--{each}" not in given]
    noted = Arguments()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flags, "_PACKAGES", {})
        patch.setattr(flags, "read_object", lambda path: {"read": path})
        for module, function in functions_of(command):
            patch.setattr(module, function, noted.noting(getattr(module, function)))
        with contextlib.suppress(LookupError):  # evaluate prints its first result
            command.main([*required, *beside, *words], standalone_mode=False)
    return noted


def changes(before, given):
    """Returns the values of a call that another one does not have, nor are defaults.

    By "no longer", the functions and records that the other one called or made alone.
    """
    changed = {}
    for key, values in given.values.items():
        known, default = before.values.get(key, []), plain(given.defaults.get(key, Result))
        if values != known and any(each != default for each in (*values, *known)):
            changed[key] = values
    called, then = ({key.partition(".")[0] for key in each.values} for each in (before, given))
    return changed | ({"no longer": [sorted(called - then)]} if called - then else {})


def choices_of(hint):
    """Returns the values of a Literal, or of one among the members of a union."""
    members = (hint, *get_args(hint))
    return {value for each in members if get_origin(each) is Literal for value in get_args(each)}


def flags_of(row):
    words = row.partition(" with ")[0].split()
    return {word.partition("=")[0].removeprefix("--") for word in words}


ROWS = [(name, row) for name in ARRIVES for row in ARRIVES[name]]


@pytest.mark.parametrize("name", PROGRAM.commands)
def test_every_flag_of_a_command_has_a_row(name):
    settings = {"overrides": "config.seed"}
    declared = {settings.get(each.name, each.name) for each in PROGRAM.commands[name].params}
    assert set().union(*map(flags_of, ARRIVES[name])) == declared


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_what_is_given_arrives_and_nothing_else_changes(name, row):
    words, _, beside = row.partition(" with ")
    before = call(name, beside)
    given = call(name, " ".join(instead(beside.split(), words.split())))
    changed = changes(before, given)
    shown = {key: each[0] if len(each) == 1 else each for key, each in changed.items()}
    assert shown == ARRIVES[name][row]
    params = PROGRAM.commands[name].params
    flag = next((each for each in params if {each.name} == flags_of(row)), None)
    if flag is None or flag.required or (name, flag.name) in OWN_DEFAULT:
        return
    for key in changed.keys() & before.values.keys() & before.defaults.keys():
        default = plain(before.defaults[key])
        assert all(value == default for value in before.values[key]), f"{key} is not {default!r}"
    if isinstance(flag.type, click.Choice):
        for key, values in changed.items():
            if key != "no longer" and values[0] in flag.type.choices:
                assert {*flag.type.choices} == choices_of(given.types[key]), key


# `evaluate` ends here before it writes JSON, see `call`.
@pytest.mark.parametrize(("name", "row"), [each for each in ROWS if "--json_out" not in each[1]])
def test_a_flag_without_what_it_needs_changes_something_or_is_refused(name, row):
    words = row.partition(" with ")[0].split()
    for way in {"", *WAYS.get(name, ())}.difference(words):
        with contextlib.suppress(click.UsageError, UserError):
            given = call(name, " ".join(instead(way.split(), words)))
            assert changes(call(name, way), given), way
