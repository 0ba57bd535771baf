"""Commands that run whole pipelines, or report on runs."""

import gc
from collections.abc import Sequence
from pathlib import Path

from cocondenser_jax.cli.flags import (
    CORPUS,
    DATA,
    DOCUMENTS,
    GIVEN,
    IGNORE_IDENTICAL_IDS,
    OUTPUT_FILE,
    OVERRIDES,
    command,
    flag,
    ignore_identical_ids,
    required,
)
from cocondenser_jax.cli.output import print_command, print_table, print_text

_WORKDIR = required("--workdir", Path, "output folder; finished steps found there are skipped")
_LANGUAGE = flag("--language", "english", "language of your documents, for BM25; none: no stemming")


@command("quickstart --workdir=runs/quickstart", _WORKDIR)
def quickstart(workdir):
    """Run the whole pipeline on the docstrings of this machine's Python packages."""
    from cocondenser_jax.files.runs import require_own

    require_own(workdir / "started.json")
    # These load JAX and PyTorch; a wrong folder is reported without that delay.
    from cocondenser_jax.pipelines.quickstart import quickstart
    from cocondenser_jax.pretrain.devices import prepare_libtpu, require_devices
    from cocondenser_jax.retriever.compare.rankings import comparison_table

    # Excludes the 200,000 objects of the loaded libraries from garbage collection, which reduced
    # reading docstrings from 50 to 28 CPU seconds.
    gc.freeze()
    prepare_libtpu()
    require_devices()
    rankings, summary = quickstart(workdir)
    _print_outcome(workdir, comparison_table(rankings), summary)
    _print_retriever(workdir, [f"--index={workdir / 'index'}", f"--model={workdir / 'retriever'}"])


@command(
    "adapt --corpus=articles.jsonl.xz --model=models/minilm --workdir=runs/adapted --data=data",
    required("--corpus", CORPUS, f"your documents: {DOCUMENTS}"),
    required("--model", str, "the model to adapt (docs/backbones.md): a folder or Hub name"),
    _WORKDIR,
    flag("--data", DATA, "passages, queries and judgments to test on (default: no test)"),
    flag(
        "--metric",
        str,
        "metric that decides, such as Recall@100 (default: nDCG@10)",
        goes_with="data",
    ),
    flag(
        "--language",
        "english",
        "language of your documents, for BM25; none: no stemming",
        goes_with="data",
    ),
    ignore_identical_ids(goes_with="data"),
    *GIVEN,
    OVERRIDES,
)
def adapt(corpus, model, workdir, data, metric, language, ignore_identical_ids, overrides, **given):
    """Adapt an embedding model to your documents, and test whether that helped; resumes."""
    from cocondenser_jax.pipelines.adapt import adapt
    from cocondenser_jax.representation import Given
    from cocondenser_jax.retriever.compare.trial import Trial, with_first

    trial = None
    if data is not None:
        trial = Trial(
            data=data,
            metrics=with_first(metric),
            language=language,
            ignore_identical_ids=ignore_identical_ids,
            corpus=corpus if data.is_file() else None,
        )
    table, summary, search = adapt(workdir, corpus, model, trial, overrides, Given(**given))
    _print_outcome(workdir, table, summary)
    _print_retriever(workdir, search)


@command(
    "compare --data=data --model=models/minilm --model=models/mpnet --workdir=runs/compared",
    required("--data", DATA, "passages, queries and judgments; or queries alone, as a file"),
    flag("--corpus", CORPUS, f"passages (default: those of --data): {DOCUMENTS}"),
    required(
        "--model", str, "an embedding model: a folder or Hub name; may be repeated", multiple=True
    ),
    _WORKDIR,
    flag("--split", "test", "split whose judgments are used"),
    flag("--metric", str, "metric that decides, such as Recall@100 (default: nDCG@10)"),
    _LANGUAGE,
    IGNORE_IDENTICAL_IDS,
)
def compare(model, workdir, metric, **trial):
    """Compare BM25 and models, alone and fused, on your queries, with or without judgments."""
    from cocondenser_jax.retriever.compare.compare import compare
    from cocondenser_jax.retriever.compare.trial import Trial, with_first

    on = Trial(metrics=with_first(metric), **trial)
    table, summary, search = compare(workdir, on, model)
    _print_outcome(workdir, table, summary)
    _print_search(search)


def _print_outcome(workdir: Path, table: Sequence[Sequence[str]], summary: str) -> None:
    if table:
        header, *cells = table
        print()
        print_table(header, cells)
        print()
    print_text(summary)
    print_text(f"report: {workdir / 'report.html'}")


def _print_retriever(workdir: Path, search: Sequence[str]) -> None:
    print_text(f"retriever: {workdir / 'retriever'}")
    _print_search(search)


def _print_search(flags: Sequence[str]) -> None:
    if flags:
        print_command("search", *flags)


@command(
    "report --run_dir=runs/condenser --run_dir=runs/cocondenser",
    required(
        "--run_dir",
        Path,
        "the --workdir of a training; may be repeated",
        multiple=True,
        formerly="workdir",
    ),
    flag("--out", OUTPUT_FILE, "HTML file to write", default="report.html"),
)
def report(run_dir, out):
    """Write one HTML page with the curves, settings, data and versions of runs."""
    from cocondenser_jax.retriever.compare.report import write_run_report

    write_run_report(run_dir, out)
    print_text(out)
