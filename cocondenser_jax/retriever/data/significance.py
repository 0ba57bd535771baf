"""Tests whether two runs differ by more than chance, from their metrics for each query."""

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import TypedDict, TypeVar

import numpy as np
import scipy  # loads its modules on first use

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.ranking import mean_over_queries

_ASSIGNMENTS = 10_000  # sampled if there are more: p-values near 0.05 are then within 0.01
LEAST_P = 2 / _ASSIGNMENTS  # bound if no sample is as extreme: 2 / 10,001, rounded up
SIGNIFICANCE_LEVEL = 0.05  # a difference is significant if its p is lower
_CONFIDENCE = 0.95  # of intervals
_POWER = 0.8  # the probability of detecting a difference of `detectable`
_RESAMPLES = 10_000

Name = TypeVar("Name", bound=Hashable)


class Comparison(TypedDict):
    """The difference of two runs in a metric, over the same queries."""

    mean: float
    other_mean: float
    difference: float  # mean - other_mean
    interval: list[float]  # of the difference, low and high: paired bootstrap, 95 %
    detectable: float | None  # see `detectable_difference`
    t_test_p: float
    randomization_p: float  # 1 for runs without a difference
    better: int  # queries with a higher value than in the other run
    worse: int
    equal: int


def compare(
    per_query: Mapping[str, Mapping[str, float]], other: Mapping[str, Mapping[str, float]]
) -> dict[str, Comparison]:
    """Compares two runs on the same queries, metric by metric, by two paired two-sided tests.

    Student's t-test measures the mean difference in standard errors. Fisher's randomization test
    (Smucker, Allan & Carterette, CIKM 2007) measures how often a difference at least as large
    arises when each query's two values are assigned to the runs at random, with a fixed seed; with
    few queries, all assignments are tried. The interval is the 2.5th to the 97.5th percentile of
    the paired bootstrap (Efron, 1979): the mean over as many queries, drawn with replacement.

    Args:
      per_query: query → metric → value, as in `Metrics`.
      other: the same of the other run.

    Returns:
      The comparison of each metric; differences are `per_query` minus `other`.

    Raises:
      UserError: for runs with different queries, or with fewer than two.
    """
    if per_query.keys() != other.keys():
        raise UserError("the runs to compare were evaluated on different queries")
    if len(per_query) < 2:
        raise UserError("a comparison of two runs needs at least two queries")
    means = mean_over_queries(per_query)
    other_means = mean_over_queries(other)
    comparisons: dict[str, Comparison] = {}
    for name in means:
        values_Q = np.array([values[name] for values in per_query.values()])
        other_values_Q = np.array([other[query][name] for query in per_query])
        differences_Q = values_Q - other_values_Q
        comparisons[name] = {
            "mean": means[name],
            "other_mean": other_means[name],
            "difference": means[name] - other_means[name],
            "interval": _interval(differences_Q),
            "detectable": detectable_difference(differences_Q),
            "t_test_p": _t_test_p(values_Q, other_values_Q),
            "randomization_p": _randomization_p(differences_Q),
            "better": int((values_Q > other_values_Q).sum()),
            "worse": int((values_Q < other_values_Q).sum()),
            "equal": int((values_Q == other_values_Q).sum()),
        }
    return comparisons


def swap(comparison: Comparison) -> Comparison:
    """Returns a comparison with the roles of the runs exchanged."""
    low, high = comparison["interval"]
    return {
        **comparison,
        "mean": comparison["other_mean"],
        "other_mean": comparison["mean"],
        "difference": -comparison["difference"],
        "interval": [-high, -low],
        "better": comparison["worse"],
        "worse": comparison["better"],
    }


def detectable_difference(differences_Q: np.ndarray) -> float | None:
    """Returns the smallest mean difference that n queries detect with a power of 80 %.

    (t(1 - α/2) + t(0.8)) · s / √n, with α = 0.05, t the quantiles of Student's distribution with
    n - 1 degrees of freedom, and s the standard deviation of the observed differences (Lachin,
    Controlled Clinical Trials 2, 1981, with t instead of the normal distribution). This is for the
    t-test; the randomization test is close to it. None for n ≤ 5, since the smallest p of all
    assignments, 2 / 2ⁿ, is then above α.
    """
    n = len(differences_Q)
    if 2 / 2**n >= SIGNIFICANCE_LEVEL:
        return None
    quantiles = scipy.stats.t.ppf([1 - SIGNIFICANCE_LEVEL / 2, _POWER], n - 1)
    return float(quantiles.sum() * differences_Q.std(ddof=1) / math.sqrt(n))


def correct(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Corrects p-values, by name, for the number of tests in a table (Holm, 1979).

    Of m tests, the k-th smallest p is multiplied by m + 1 - k, and raised to the previous one if
    lower. This bounds the probability of any false finding in the table.
    """
    corrected: dict[Name, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        n_left = len(p_values) - rank
        largest = max(largest, n_left * p_values[name])
        corrected[name] = min(largest, 1.0)
    return corrected


def format_p(p: float, n_tests: int = 1) -> str:
    """Formats a randomization p, corrected for `n_tests`; a very small one as a bound."""
    bound = "≤ " if p <= n_tests * LEAST_P else ""
    return f"{bound}{p:.2g}"


def format_interval(interval: Sequence[float], digits: int = 3) -> str:
    """Formats an interval of a difference, with signs."""
    return " to ".join(f"{bound:+.{digits}f}" for bound in interval)


def _t_test_p(values_Q: np.ndarray, other_values_Q: np.ndarray) -> float:
    with warnings.catch_warnings():
        # With equal differences the standard error is 0: p is 0, or NaN if they are all 0.
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(np.nan_to_num(scipy.stats.ttest_rel(values_Q, other_values_Q).pvalue, nan=1.0))


def _interval(differences_Q: np.ndarray) -> list[float]:
    found = scipy.stats.bootstrap(
        (differences_Q,),
        np.mean,
        n_resamples=_RESAMPLES,
        batch=100,  # of 10,000 queries, 8 MB
        confidence_level=_CONFIDENCE,
        method="percentile",
        rng=0,
    )
    return [float(bound) for bound in found.confidence_interval]


def _randomization_p(differences_Q: np.ndarray) -> float:
    # Differences of 0 do not change any sum.
    nonzero_Q = differences_Q[differences_Q != 0]
    if len(nonzero_Q) < 2:  # a single difference is equally large with either sign
        return 1.0
    # With one sample, scipy draws signs: swapping two values flips the sign of their difference.
    test = scipy.stats.permutation_test(
        (nonzero_Q,),
        np.sum,
        permutation_type="samples",
        n_resamples=_ASSIGNMENTS,
        batch=1000,
        rng=0,
    )
    return float(test.pvalue)
