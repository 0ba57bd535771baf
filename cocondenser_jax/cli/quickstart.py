"""Commands that run whole pipelines, or report on runs."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cocondenser_jax.cli.flags import (
    GIVEN,
    OUTPUT_FILE,
    OVERRIDES,
    command,
    flag,
    ignore_identical_ids,
    required,
)
from cocondenser_jax.cli.output import print_table, print_text

_WORKDIR = required("--workdir", Path, "output folder; finished steps found there are skipped")


@command("quickstart --workdir=runs/quickstart", _WORKDIR)
def quickstart(workdir):
    """Run the whole pipeline on the docstrings of this machine's Python packages."""
    from cocondenser_jax.pretrain.devices import prepare_libtpu
    from cocondenser_jax.quickstart.quickstart import quickstart

    prepare_libtpu()
    places = [f"--index={workdir / 'index'}"]
    _print_outcome(workdir, *quickstart(workdir), places)


@command(
    "adapt --corpus=articles.jsonl.xz --model=models/minilm --workdir=runs/adapted --data=data",
    required("--corpus", str, "your documents: whatever corpus --source takes"),
    required("--model", str, "the model to adapt (docs/backbones.md): a folder or Hub name"),
    _WORKDIR,
    flag("--data", Path, "passages, queries and judgments to test on (default: no test)"),
    flag(
        "--backend",
        (None, "jax", "torch", "lora"),
        "what trains the model (default: jax where it can)",
    ),
    flag("--language", "english", "that of your documents, for BM25; none: words as they are"),
    ignore_identical_ids(goes_with="data"),
    *GIVEN,
    OVERRIDES,
)
def adapt(
    corpus,
    model,
    workdir,
    data,
    backend,
    language,
    ignore_identical_ids,
    pooling,
    similarity,
    query_prompt,
    passage_prompt,
    dimensions,
    overrides,
):
    """Adapt an embedding model to your documents, and test whether that helped; resumes."""
    from cocondenser_jax.pretrain.devices import prepare_libtpu
    from cocondenser_jax.quickstart.adapt import Options, adapt
    from cocondenser_jax.representation import Given

    given = Given(
        pooling=pooling,
        similarity=similarity,
        query_prompt=query_prompt,
        passage_prompt=passage_prompt,
        dimensions=dimensions,
    )
    prepare_libtpu()
    options = Options(given, backend, language, ignore_identical_ids)
    _print_outcome(workdir, *adapt(workdir, corpus, model, data, overrides, options))


def _print_outcome(workdir: Path, rows: Sequence[Any], summary: str, places: Sequence[str]) -> None:
    from cocondenser_jax.analysis.report import comparison_table

    if rows:
        header, *cells = comparison_table(rows)
        print()
        print_table(header, cells)
        print()
    print_text(summary)
    print_text(f"report: {workdir / 'report.html'}")
    print_text(f"retriever: {workdir / 'retriever'}")
    if places:
        flags = shlex.join([*places, f"--model={workdir / 'retriever'}"])
        print_text(f"search for yourself: cocondenser search {flags} --query=...")


@command(
    "report --workdir=runs/condenser --workdir=runs/cocondenser",
    required("--workdir", Path, "a run folder; may be repeated", multiple=True),
    flag("--out", OUTPUT_FILE, "HTML file to write", default="report.html"),
)
def report(workdir, out):
    """Write one HTML page with the curves, settings, data and versions of runs."""
    from cocondenser_jax.analysis.report import write_run_report

    write_run_report(workdir, out)
    print_text(out)
