"""Both tests against their definitions: the beta function, and every assignment there is."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import betainc

from cocondenser_jax.errors import UserError
from cocondenser_jax.retriever.data.significance import (
    compare,
    correct,
    detectable_difference,
    format_p,
    swap,
)
from tests.lines import whole


def metrics(values, name="MRR@10"):
    return {f"q{i}": {name: float(value)} for i, value in enumerate(values)}


def student(differences):
    """p of the paired t-test, by the distribution's own formula."""
    n = len(differences)
    t = np.mean(differences) / (np.std(differences, ddof=1) / np.sqrt(n))
    return betainc((n - 1) / 2, 1 / 2, (n - 1) / (n - 1 + t**2))


# Eighths: sums of them are exact, so that no assignment is as extreme by rounding alone.
VALUES = st.integers(0, 8).map(lambda eighths: eighths / 8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=9))
def test_few_queries_against_all_assignments(pairs):
    values, others = np.array(pairs).T
    differences = values - others

    row = compare(metrics(values), metrics(others))["MRR@10"]

    sums = [np.dot(signs, differences) for signs in itertools.product((1, -1), repeat=len(pairs))]
    expected = np.mean(np.abs(sums) >= abs(differences.sum()))
    assert row["randomization_p"] == pytest.approx(expected, abs=1e-12)
    if np.ptp(differences):
        assert row["t_test_p"] == pytest.approx(student(differences), abs=1e-9)
    else:
        assert row["t_test_p"] == pytest.approx(float(not differences[0]), abs=1e-12)
    assert row["mean"] == pytest.approx(values.mean())
    assert row["other_mean"] == pytest.approx(others.mean())
    assert row["difference"] == pytest.approx(differences.mean(), abs=1e-12)
    counts = [sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)]
    assert [row["better"], row["worse"]] == counts
    assert row["equal"] == len(pairs) - sum(counts)


@pytest.mark.parametrize("effect", [0.0, 0.02, 0.05])
def test_many_queries_against_drawn_assignments(effect):
    rng = np.random.default_rng(int(100 * effect))
    values_Q, others_Q = rng.random((2, 300))
    values_Q += effect
    values_Q[:60] = others_Q[:60]

    row = compare(metrics(values_Q), metrics(others_Q))["MRR@10"]

    swapped_TxQ = rng.random((20_000, 300)) < 0.5
    first_T = np.where(swapped_TxQ, others_Q, values_Q).mean(axis=1)
    second_T = np.where(swapped_TxQ, values_Q, others_Q).mean(axis=1)
    observed = abs(values_Q.mean() - others_Q.mean())
    expected = (np.abs(first_T - second_T) >= observed).mean()
    assert row["randomization_p"] == pytest.approx(expected, abs=0.02)
    assert row["t_test_p"] == pytest.approx(student(values_Q - others_Q), abs=1e-9)
    assert row["equal"] == 60
    assert compare(metrics(values_Q), metrics(others_Q))["MRR@10"] == row
    exchanged = compare(metrics(others_Q), metrics(values_Q))["MRR@10"]
    assert exchanged["randomization_p"] == pytest.approx(row["randomization_p"], abs=0.02)
    exchanged["randomization_p"] = row["randomization_p"]  # of other draws
    swapped = swap(row)
    assert swapped.pop("interval") == pytest.approx(exchanged.pop("interval"), abs=1e-12)
    assert swapped == exchanged


@pytest.mark.parametrize("differences", [[0.5, -0.25, 0.125, 1.0], [0.0, 0.0, 1.0, 0.0, 0.5]])
def test_the_interval_of_few_queries_against_all_resamples(differences):
    n = len(differences)
    means = [np.mean(drawn) for drawn in itertools.product(differences, repeat=n)]
    expected = np.percentile(means, [2.5, 97.5], method="inverted_cdf")
    found = compare(metrics(differences), metrics([0.0] * n))["MRR@10"]["interval"]
    step = 0.5 / n  # of neighboring means, at most: 10,000 draws may miss by one
    np.testing.assert_allclose(found, expected, rtol=0, atol=step)
    assert found[0] < np.mean(differences) < found[1]


@pytest.mark.parametrize("n", [40, 300])
def test_the_interval_of_many_queries_against_drawn_resamples(n):
    rng = np.random.default_rng(n)
    values_Q, others_Q = rng.random((2, n)) ** 2
    differences_Q = values_Q - others_Q
    means = [np.mean(rng.choice(differences_Q, n)) for _ in range(20_000)]
    row = compare(metrics(values_Q), metrics(others_Q))["MRR@10"]
    error = differences_Q.std() / np.sqrt(n)
    np.testing.assert_allclose(row["interval"], np.percentile(means, [2.5, 97.5]), atol=error / 8)
    exchanged = compare(metrics(others_Q), metrics(values_Q))["MRR@10"]["interval"]
    np.testing.assert_allclose([-x for x in exchanged[::-1]], row["interval"], atol=error / 8)
    # Pairs are kept: two runs that are equally far apart everywhere differ for certain.
    apart = compare(metrics(values_Q + 0.25), metrics(values_Q))["MRR@10"]["interval"]
    np.testing.assert_allclose(apart, 0.25, atol=1e-12)


@pytest.mark.parametrize("n", [8, 35, 200])
def test_the_difference_that_queries_show_is_found_four_times_out_of_five(n):
    rng = np.random.default_rng(n)
    differences_Q = rng.normal(0.01, 0.2, n)
    smallest = detectable_difference(differences_Q)
    noncentrality = smallest / (differences_Q.std(ddof=1) / np.sqrt(n))
    limit = stats.t.ppf(0.975, n - 1)
    power = stats.nct.sf(limit, n - 1, noncentrality) + stats.nct.cdf(-limit, n - 1, noncentrality)
    assert power == pytest.approx(0.8, abs=0.02)
    assert compare(metrics(differences_Q), metrics([0.0] * n))["MRR@10"]["detectable"] == smallest


def test_the_randomization_test_finds_that_difference_as_often():
    rng = np.random.default_rng(0)
    population = rng.normal(0, 0.2, 30)
    smallest = detectable_difference(population)
    spread = population.std(ddof=1)
    found = 0
    for _ in range(60):
        drawn = rng.normal(smallest, spread, 30)
        found += compare(metrics(drawn), metrics([0.0] * 30))["MRR@10"]["randomization_p"] < 0.05
    assert 40 <= found <= 56  # of a chance of 0.8: 48, with a standard error of 3


@pytest.mark.filterwarnings("error::RuntimeWarning")  # of differences that are all equal
def test_five_queries_show_nothing():
    for n, shown in ((5, False), (6, True)):
        row = compare(metrics([0.5] * n), metrics([0.25] * n))["MRR@10"]
        assert (row["randomization_p"] < 0.05) == shown
        assert (row["detectable"] is not None) == shown


def test_identical_runs_have_p_one():
    run = {"q1": {"MRR@10": 0.1, "Recall@5": 1.0}, "q2": {"MRR@10": 0.7, "Recall@5": 0.0}}
    comparisons = compare(run, run)
    assert list(comparisons) == ["MRR@10", "Recall@5"]
    for row in comparisons.values():
        assert (row["t_test_p"], row["randomization_p"], row["difference"]) == (1.0, 1.0, 0.0)
        assert (row["better"], row["worse"], row["equal"]) == (0, 0, 2)


def test_the_order_of_queries_does_not_matter():
    values, others = [0.1, 0.5, 0.9], [0.3, 0.4, 0.2]
    backwards = dict(reversed(metrics(others).items()))
    assert compare(metrics(values), backwards) == compare(metrics(values), metrics(others))


def test_runs_that_cannot_be_compared():
    with pytest.raises(
        UserError, match=whole("a comparison of two runs needs at least two queries")
    ):
        compare(metrics([0.5]), metrics([0.25]))
    with pytest.raises(
        UserError, match=whole("the runs to compare were evaluated on different queries")
    ):
        compare(metrics([0.5, 1.0]), metrics([0.5, 1.0, 0.0]))


def rejected(p_values, level):
    """Holm's procedure: the smallest p first, until one is above its share of the level."""
    found = set()
    for k, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > level / (len(p_values) - k):
            break
        found.add(name)
    return found


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=12))
def test_a_corrected_p_is_the_least_level_at_which_holm_rejects(thousandths):
    p_values = {f"test {n}": p / 1000 for n, p in enumerate(thousandths)}
    corrected = correct(p_values)
    assert corrected.keys() == p_values.keys()
    assert all(p <= corrected[name] <= 1.0 for name, p in p_values.items())
    for name, level in corrected.items():
        if level < 1.0:
            assert name in rejected(p_values, level + 1e-9)
        assert name not in rejected(p_values, level - 1e-9)


def test_nine_tests_of_a_table():
    # Sorted: 9 x 0.0002, 8 x 0.0004, 7 x 0.0006 (twice), 5 x 0.02; 4 x 0.027; the rest 1.
    p_values = [0.0006, 0.774, 0.0002, 0.027, 1.0, 0.02, 0.0006, 0.625, 0.0004]
    corrected = correct(dict(enumerate(p_values)))
    expected = [0.0042, 1.0, 0.0018, 0.108, 1.0, 0.1, 0.0042, 1.0, 0.0032]
    assert [corrected[n] for n in range(9)] == pytest.approx(expected)
    assert correct({}) == {}


def test_a_p_that_the_draws_cannot_tell_is_a_bound():
    smallest = compare(metrics([0.5] * 40), metrics([0.25] * 40))["MRR@10"]["randomization_p"]
    assert smallest == pytest.approx(2 / 10_001)
    assert format_p(smallest) == "≤ 0.0002"
    exact = compare(metrics([0.5] * 13), metrics([0.25] * 13))["MRR@10"]["randomization_p"]
    assert format_p(exact) == "0.00024"  # 2 of 2^13 assignments
    corrected = correct({"a": smallest, "b": 0.0004, "c": 1.0})
    shown = {name: format_p(p, len(corrected)) for name, p in corrected.items()}
    assert shown == {"a": "≤ 0.0006", "b": "0.0008", "c": "1"}
