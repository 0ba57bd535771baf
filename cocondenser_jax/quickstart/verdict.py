"""The verdict on an adaptation, as a value: what the code decides by, and the line that is printed.

A difference counts if the randomization test finds it at 0.05.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cocondenser_jax.analysis.report import ResultRow
from cocondenser_jax.evaluation.significance import format_p

PUBLISHED = "published"  # the model as it was
ADAPTED = "adapted"  # the model with as much of the change as is kept
SIGNIFICANCE_LEVEL = 0.05

Outcome = Literal["helped", "no difference", "harmed"]


class Verdict(NamedTuple):
    """The best ranking of the adapted model, against the best one without it."""

    outcome: Outcome
    metric: str  # by which both are the best, and are compared
    best: str  # the ranking's name; that of `before` where there is no adapted model
    best_mean: float
    before: str
    before_mean: float
    difference: float
    p: float  # of the randomization test

    @property
    def winner(self) -> str:
        """The name of the ranking to search by: a change has to help."""
        return self.best if self.outcome == "helped" else self.before

    def line(self) -> str:
        """Returns the verdict as it is printed."""
        if self.best == self.before:
            return f"{self.outcome} | {self.metric} | none of the change is kept"
        compared = f"{self.best} {self.best_mean:.4f}, {self.before} {self.before_mean:.4f}"
        figures = f"{compared} | {self.difference:+.4f} | p {format_p(self.p)}"
        return f"{self.outcome} | {self.metric} | {figures}"


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
    (before,) = [row for row in rows if not row.p_values]
    adapted = [row for row in rows if row.model == ADAPTED and not row.part]
    best = max(adapted, key=lambda row: row.metrics[metric], default=before)
    difference = best.metrics[metric] - before.metrics[metric]
    p = best.p_values.get(metric, 1.0)
    return Verdict(
        outcome=decide(difference, p),
        metric=metric,
        best=best.name,
        best_mean=best.metrics[metric],
        before=before.name,
        before_mean=before.metrics[metric],
        difference=difference,
        p=p,
    )
