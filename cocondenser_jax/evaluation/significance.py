"""Tests whether two runs differ by more than chance, from their metrics for each query."""

import warnings
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from cocondenser_jax.errors import UserError
from cocondenser_jax.evaluation.ranking import mean_over_queries

_ASSIGNMENTS = 10_000  # drawn where there are more: p-values near 0.05 are then within 0.01
LEAST_P = 2 / _ASSIGNMENTS  # the bound, 2 / 10,001 rounded up, where none drawn is as extreme

Name = TypeVar("Name", bound=Hashable)


def compare(
    per_query: Mapping[str, Mapping[str, float]], other: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, Any]]:
    """Compares two runs on the same queries, metric by metric, by two paired two-sided tests.

    Student's t-test asks how many standard errors the mean difference is from 0; Fisher's
    randomization test (Smucker, Allan & Carterette, CIKM 2007) how often a difference at least as
    large arises when each query's values are assigned to the runs at random, by a fixed seed; with
    few queries, in every way. Each run is query → metric → value, as in `Metrics`.

    Returns:
      metric → both means (`mean`, `other_mean`), their `difference`, the p-values (`t_test_p`,
      `randomization_p`; 1 for runs without a difference), and how many queries are `better`,
      `worse` or `equal` in `per_query`.
    """
    if per_query.keys() != other.keys():
        raise UserError("the runs to compare were evaluated on different queries")
    if len(per_query) < 2:
        raise UserError("a comparison of two runs needs at least two queries")
    means = mean_over_queries(per_query)
    other_means = mean_over_queries(other)
    comparisons = {}
    for name in means:
        values_Q = np.array([values[name] for values in per_query.values()])
        other_values_Q = np.array([other[query][name] for query in per_query])
        comparisons[name] = {
            "mean": means[name],
            "other_mean": other_means[name],
            "difference": means[name] - other_means[name],
            "t_test_p": _t_test_p(values_Q, other_values_Q),
            "randomization_p": _randomization_p(values_Q - other_values_Q),
            "better": int((values_Q > other_values_Q).sum()),
            "worse": int((values_Q < other_values_Q).sum()),
            "equal": int((values_Q == other_values_Q).sum()),
        }
    return comparisons


def correct(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Corrects the p-values of all tests of a table for their number, by name (Holm, 1979).

    Of m tests, the k-th smallest p is multiplied by m + 1 - k, and is no smaller than the one
    before it. The chance of any false finding in the table is then p at most.
    """
    corrected: dict[Name, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        n_left = len(p_values) - rank
        largest = max(largest, n_left * p_values[name])
        corrected[name] = min(largest, 1.0)
    return corrected


def format_p(p: float, n_tests: int = 1) -> str:
    """Formats a randomization p, corrected for `n_tests`; one too small to tell is a bound."""
    bound = "≤ " if p <= n_tests * LEAST_P else ""
    return f"{bound}{p:.2g}"


def _t_test_p(values_Q: np.ndarray, other_values_Q: np.ndarray) -> float:
    with warnings.catch_warnings():
        # Equal differences have a standard error of 0: p is 0, or NaN where they are all 0.
        warnings.simplefilter("ignore", RuntimeWarning)
        return float(np.nan_to_num(stats.ttest_rel(values_Q, other_values_Q).pvalue, nan=1.0))


def _randomization_p(differences_Q: np.ndarray) -> float:
    # Differences of 0 change no sum.
    nonzero_Q = differences_Q[differences_Q != 0]
    if len(nonzero_Q) < 2:  # a single one is as large with either sign
        return 1.0
    # For one sample scipy draws signs: swapping two values changes the sign of their difference.
    test = stats.permutation_test(
        (nonzero_Q,),
        np.sum,
        permutation_type="samples",
        n_resamples=_ASSIGNMENTS,
        batch=1000,
        rng=0,
    )
    return float(test.pvalue)
