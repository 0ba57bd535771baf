"""The figures of Condenser's draft (arXiv 2104.08253, version 1)."""

from collections.abc import Mapping

from papers import commands, encoders, marco, qa
from papers.steps import Step

_MODELS = {"BERT": "bert", "BERT + CD": "condenser"}

Points = Mapping[tuple[str, int], Step]  # a line's name and a number of training rows: a result


def stsb_by_size(metric: str) -> Step:
    """Figure 2: the STS Benchmark by the number of training pairs."""
    points = {
        (name, rows or encoders.STSB.n_rows): encoders.stsb(model, rows)
        for name, model in _MODELS.items()
        for rows in (500, 1000, 0)
    }
    return _by_size("stsb", metric, points)


def nq_by_size(metric: str) -> Step:
    """Figure 3: Natural Questions by the number of training questions."""
    points = {
        (name, queries or qa.N_QUESTIONS): qa.nq(qa.round1(model, queries))
        for name, model in _MODELS.items()
        for queries in (1000, 10000, 0)
    }
    return _by_size("nq", metric, points)


def marco_by_size(metric: str) -> Step:
    """Figure 4: MS MARCO by the number of training queries; 40 epochs of few, 3 of all."""
    models = _MODELS | {"BERT + CD + CT": "condenser_passages"}
    points = {
        (name, queries or marco.N_QUERIES): marco.dev(
            marco.round1(model, queries, 40 if queries else 3, passages="untitled")
        )
        for name, model in models.items()
        for queries in (1000, 10000, 0)
    }
    return _by_size("marco", metric, points)


def _by_size(name: str, metric: str, points: Points) -> Step:
    out = f"$WORK/figures/{name}-{metric}.svg"
    command = commands.words(
        "python -m papers.figures.sizes",
        f"--measure={metric}",
        f"--out={out}",
        f"--json_out={out}.json",
        *(f"--point={line},{size},{step.out}" for (line, size), step in points.items()),
    )
    return Step(out, [command], needs=[*points.values()])


def nq_losses() -> Step:
    """Figure 5: 10 epochs of 60,000 questions in batches of 128 are 4,688 steps."""
    runs = {name: qa.trained_once("nq", model) for name, model in _MODELS.items()}
    out = "$WORK/figures/nq-losses.svg"
    command = commands.words(
        "python -m papers.figures.curves",
        "--key=loss",
        "--until=4688",
        "--log_y",
        f"--out={out}",
        f"--json_out={out}.json",
        *(f"--run={name},{run.out}" for name, run in runs.items()),
    )
    return Step(out, [command], needs=[*runs.values()])
