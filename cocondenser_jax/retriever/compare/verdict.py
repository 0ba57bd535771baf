"""The verdict on an adaptation, as a value: what the code decides by, and the line that is printed.

A difference counts if the randomization test finds it at 0.05, corrected for the tests beside it
(Holm). The adapted model *helped* if its best ranking is ahead of the best one without it, by the
corrected p of the table. It *harmed* if a ranking that a user may search by, its vectors alone or
fused with BM25, is behind the same ranking by the published model.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from cocondenser_jax.retriever.compare.comparison import Compared, ranking_name
from cocondenser_jax.retriever.compare.report import ResultRow, corrected_p
from cocondenser_jax.retriever.data.significance import (
    SIGNIFICANCE_LEVEL,
    Comparison,
    compare,
    correct,
    format_interval,
    format_p,
)

PUBLISHED = "published"  # the model as it was
ADAPTED = "adapted"  # the model after training

Outcome = Literal["helped", "undecided", "harmed"]


class Verdict(NamedTuple):
    """What adapting came to, and the two rankings that show it."""

    outcome: Outcome
    metric: str  # by which they are compared
    after: str  # name of a ranking by the adapted model
    before: str  # and of the one that it is compared with
    winner: str  # the ranking to search by: a change has to help
    test: Comparison  # of `after` against `before`
    p: float  # of that test, corrected for the number of those beside it
    n_tests: int

    def line(self) -> str:
        """Returns the verdict as it is printed."""
        means = f"{self.after} {self.test['mean']:.4f}, {self.before} {self.test['other_mean']:.4f}"
        p = f"p {format_p(self.p, self.n_tests)}"
        figures = [self.outcome, self.metric, means, describe_difference(self.test), p]
        if self.outcome == "undecided":
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


def judge(compared: Compared) -> Verdict:
    """Compares the rankings by the adapted model with those without it; the first metric decides.

    Harm counts before help: whoever replaces a model searches by it in both ways.
    """
    rows = compared.rows
    metric = next(iter(rows[0].metrics))
    (before,) = [row for row in rows if not row.tests]
    adapted = [row for row in rows if row.model == ADAPTED]
    best = max(adapted, key=lambda row: row.metrics[metric])
    p_values = corrected_p(rows)
    found = Verdict(
        outcome="undecided",
        metric=metric,
        after=best.name,
        before=before.name,
        winner=before.name,
        test=best.tests[metric],
        p=p_values[best.name],
        n_tests=len(p_values),
    )
    worst = _likeliest_harm(compared, adapted, metric)
    if worst.p < SIGNIFICANCE_LEVEL and worst.test["difference"] < 0:
        return worst._replace(outcome="harmed", winner=before.name)
    if found.p < SIGNIFICANCE_LEVEL and found.test["difference"] > 0:
        return found._replace(outcome="helped", winner=best.name)
    return found


def _likeliest_harm(compared: Compared, adapted: Sequence[ResultRow], metric: str) -> Verdict:
    """Compares each ranking with the same one by the published model.

    Returns the loss of the least p; a gain, where none loses.
    """
    tests = {}
    for row in adapted:
        before = ranking_name(PUBLISHED, row.is_fused)
        runs = (compared.rankings[name].metrics["per_query"] for name in (row.name, before))
        tests[row.name, before] = compare(*runs)[metric]
    p_values = correct({names: test["randomization_p"] for names, test in tests.items()})
    after, before = min(tests, key=lambda names: (tests[names]["difference"] >= 0, p_values[names]))
    return Verdict(
        outcome="undecided",
        metric=metric,
        after=after,
        before=before,
        winner=before,
        test=tests[after, before],
        p=p_values[after, before],
        n_tests=len(tests),
    )
