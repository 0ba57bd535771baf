"""The verdict on an adaptation, as a value: what the code decides by, and the line that is printed.

A difference counts if the randomization test finds it at 0.05.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cocondenser_jax.retriever.compare.report import ResultRow
from cocondenser_jax.retriever.data.significance import (
    SIGNIFICANCE_LEVEL,
    Comparison,
    format_interval,
    format_p,
)

PUBLISHED = "published"  # the model as it was
ADAPTED = "adapted"  # the model with as much of the change as is kept

Outcome = Literal["helped", "no difference", "harmed"]


class Verdict(NamedTuple):
    """The best ranking of the adapted model, against the best one without it."""

    outcome: Outcome
    metric: str  # by which both are the best, and are compared
    best: str  # the ranking's name; that of `before` where there is no adapted model
    before: str
    test: Comparison | None  # of `best` against `before`, if they are two

    @property
    def winner(self) -> str:
        """The name of the ranking to search by: a change has to help."""
        return self.best if self.outcome == "helped" else self.before

    def line(self) -> str:
        """Returns the verdict as it is printed."""
        if self.test is None:
            return f"{self.outcome} | {self.metric} | none of the change is kept"
        means = f"{self.best} {self.test['mean']:.4f}, {self.before} {self.test['other_mean']:.4f}"
        p = f"p {format_p(self.test['randomization_p'])}"
        figures = [self.outcome, self.metric, means, describe_difference(self.test), p]
        if self.outcome == "no difference":
            figures.append(describe_power(self.test))
        return " | ".join(figures)


def describe_difference(test: Comparison) -> str:
    """Returns a difference with its interval, as it is printed."""
    return f"{test['difference']:+.4f} ({format_interval(test['interval'], digits=4)})"


def describe_power(test: Comparison) -> str:
    """Returns which differences so many queries show, as it is printed."""
    n_queries = test["better"] + test["worse"] + test["equal"]
    if test["detectable"] is None:
        return f"{n_queries} queries show no difference, however large"
    return f"{n_queries:,} queries show differences of {test['detectable']:.2g} and more"


def decide(difference: float, p: float) -> Outcome:
    """Returns what a difference from before comes to, given its p-value."""
    if p >= SIGNIFICANCE_LEVEL:
        return "no difference"
    return "helped" if difference > 0 else "harmed"


def judge(rows: Sequence[ResultRow]) -> Verdict:
    """Compares the best row of the adapted model with the row that all are tested against.

    The first metric decides. Without an adapted model nothing has changed. Rows of vectors that are
    cut are there to be read: the model that is kept has whole ones.
    """
    metric = next(iter(rows[0].metrics))
    (before,) = [row for row in rows if not row.tests]
    adapted = [row for row in rows if row.model == ADAPTED and not row.part]
    if not adapted:
        return Verdict(
            outcome="no difference", metric=metric, best=before.name, before=before.name, test=None
        )
    best = max(adapted, key=lambda row: row.metrics[metric])
    test = best.tests[metric]
    return Verdict(
        outcome=decide(test["difference"], test["randomization_p"]),
        metric=metric,
        best=best.name,
        before=before.name,
        test=test,
    )
