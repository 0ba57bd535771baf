"""Compared rankings: their runs, metrics and significance tests."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cocondenser_jax.retriever.data.identical_ids import drop_identical_ids
from cocondenser_jax.retriever.data.ranking import Metrics, compute_metrics
from cocondenser_jax.retriever.data.significance import (
    SIGNIFICANCE_LEVEL,
    Comparison,
    compare,
    correct,
    format_interval,
    format_p,
    swap,
)
from cocondenser_jax.retriever.data.trec import DEPTH, Firsts, Qrels, Run, first_passages

NO_VECTORS = (0, 0)

_NOTHING: Mapping[str, Any] = {}
_NOT_MEASURED: Metrics = {"mean": {}, "per_query": {}}


class Ranking(NamedTuple):
    """A ranking in a comparison on the same queries."""

    name: str
    run: Path  # its TREC run
    model: str = ""  # the name of the model; "" for BM25 alone
    is_fused: bool = False  # whether it is fused with BM25
    vectors: tuple[int, int] = NO_VECTORS  # number and dimension of the searched vectors
    seconds: float = 0.0  # to make it
    first: Firsts = _NOTHING
    metrics: Metrics = _NOT_MEASURED  # means in [0, 1]; the first one determines the order
    tests: Mapping[str, Comparison] = _NOTHING  # by metric, against one ranking, which has none

    @property
    def metric(self) -> str:
        """The metric that determines the order."""
        return next(iter(self.metrics["mean"]))

    @property
    def score(self) -> float:
        """The mean of that metric."""
        return self.metrics["mean"][self.metric]

    def record(self) -> dict[str, Any]:
        """Returns the record for results.json."""
        names = ("name", "model", "is_fused", "tests", "seconds", "vectors")
        return {**{name: getattr(self, name) for name in names}, "metrics": self.metrics["mean"]}


def measure(
    ranking: Ranking,
    run: Run,
    qrels: Qrels,
    metrics: Sequence[str],
    *,
    ignore_identical_ids: bool = False,
) -> Ranking:
    """Returns a ranking with its run's metrics; see `compute_metrics` for the other arguments."""
    measured = compute_metrics(
        qrels, run, metrics, ignore_identical_ids=ignore_identical_ids, name=ranking.name
    )
    first = first_of(run, qrels, ignore_identical_ids=ignore_identical_ids)
    return ranking._replace(metrics=measured, first=first)


def first_of(
    run: Run, queries: Iterable[str], *, ignore_identical_ids: bool = False
) -> dict[str, list[str]]:
    """Returns a run's DEPTH best passages for each query."""
    if ignore_identical_ids:
        run = drop_identical_ids(run)
    return {query: first_passages(run.get(query, {}), DEPTH) for query in queries}


def with_tests(rankings: Sequence[Ranking], baselines: Sequence[str]) -> list[Ranking]:
    """Tests each ranking against the best of the `baselines`, given by name; (): of all."""
    best = max(
        (each for each in rankings if each.name in baselines or not baselines),
        key=lambda each: each.score,
    )
    per_query = best.metrics["per_query"]
    return [
        each if each is best else each._replace(tests=compare(each.metrics["per_query"], per_query))
        for each in rankings
    ]


def corrected_p(rankings: Sequence[Ranking]) -> dict[str, float]:
    """Returns p of the first metric, corrected for the number of tests, by ranking."""
    tested = {each.name: each.tests[each.metric] for each in rankings if each.tests}
    return correct({name: test["randomization_p"] for name, test in tested.items()})


class Lead(NamedTuple):
    """The test of one ranking against another."""

    one: Ranking
    other: Ranking
    test: Comparison  # of the first metric; differences are `one` minus `other`
    p: float  # corrected
    n_tests: int  # number of tests for which p is corrected

    @property
    def is_decided(self) -> bool:
        """Whether the difference is significant."""
        return self.p < SIGNIFICANCE_LEVEL

    def line(self) -> str:
        """Returns the test as a line for printing."""
        test = self.test
        figures = [
            self.one.metric,
            f"{self.one.name} {test['mean']:.4f}, {self.other.name} {test['other_mean']:.4f}",
            f"{test['difference']:+.4f} ({format_interval(test['interval'], digits=4)})",
            f"p {format_p(self.p, self.n_tests)}",
        ]
        return " | ".join(figures if self.is_decided else [*figures, describe_power(test)])

    def sentence(self) -> str:
        """Returns the test as a sentence for a report."""
        one, other, test = self.one, self.other, self.test
        undecided = "" if self.is_decided else f"; {describe_power(test)}"
        return (
            f"{one.name} has the highest {one.metric}, {test['mean']:.3f}; {other.name} has"
            f" {test['other_mean']:.3f}: difference {test['difference']:+.3f} (95 %:"
            f" {format_interval(test['interval'])}), p {format_p(self.p, self.n_tests)}{undecided}"
        )


def find_lead(rankings: Sequence[Ranking], one: Ranking, other: Ranking) -> Lead:
    """Returns the test of two rankings, one of which was tested against the other.

    Args:
      rankings: all tested rankings; their number corrects p.
      one: the ranking from which the other's mean is subtracted.
      other: the other ranking.
    """
    p_values = corrected_p(rankings)
    tested = one if one.tests else other
    test = tested.tests[one.metric]
    seen = test if tested is one else swap(test)
    return Lead(one, other, seen, p_values[tested.name], len(p_values))


def describe_power(test: Comparison) -> str:
    """Returns the smallest difference that this many queries can detect, in words."""
    n_queries = test["better"] + test["worse"] + test["equal"]
    if test["detectable"] is None:
        return f"{n_queries} queries show no difference, however large"
    return f"{n_queries:,} queries show differences of {test['detectable']:.2g} and more"


def vectors_cell(vectors: tuple[int, int]) -> str:
    """Returns the number and dimension of a ranking's vectors, as a cell of a table."""
    return f"{vectors[0]:,} x {vectors[1]:,}" if vectors != NO_VECTORS else ""


def comparison_table(rankings: Sequence[Ranking]) -> list[list[str]]:
    """Returns the cells of a comparison: a header, then a row for each ranking.

    Each metric comes with its difference from the ranking that all are tested against; the first
    metric also with the difference's interval and p, corrected for the number of tests.
    """
    first, *others = rankings[0].metrics["mean"]
    has_vectors = any(each.vectors != NO_VECTORS for each in rankings)
    table = [["", first, "95 %", "p", *others, *(["vectors"] if has_vectors else []), "seconds"]]
    p_values = corrected_p(rankings)
    for each in rankings:
        metrics = {name: f"{value:.3f}" for name, value in each.metrics["mean"].items()}
        for name, test in each.tests.items():
            metrics[name] += f" ({test['difference']:+.3f})"
        interval, p_value = "", ""
        if each.tests:
            interval = format_interval(each.tests[first]["interval"])
            p_value = format_p(p_values[each.name], len(p_values))
        cells = [each.name, metrics[first], interval, p_value, *(metrics[name] for name in others)]
        if has_vectors:
            cells.append(vectors_cell(each.vectors))
        table.append([*cells, f"{each.seconds:,.0f}"])
    return table
