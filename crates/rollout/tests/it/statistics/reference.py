"""Computes the statistics of random data with numpy, scipy and statsmodels: a line of numbers for a line of data."""

import json
import sys
from math import comb

import numpy as np
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint


def mean(values, axis):
    return np.mean(values, axis=axis)


def sample(data):
    values = np.array(data["values"])
    low, high = stats.t.interval(data["level"], len(values) - 1, np.mean(values), stats.sem(values))
    numbers = {
        "mean": np.mean(values),
        "sd": np.std(values, ddof=1),
        "standard error": stats.sem(values),
        "low": low,
        "high": high,
    }
    for share in data["shares"]:
        numbers[f"quantile {share}"] = np.quantile(values, share)
    return numbers


def wilson(data):
    low, high = proportion_confint(data["successes"], data["trials"], 1 - data["level"], method="wilson")
    return {"low": low, "high": high}


def clusters(data):
    tasks, values = np.array(data["tasks"]), np.array(data["values"])
    model = sm.OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": tasks})
    names = np.unique(tasks)
    sums = np.array([values[tasks == name].sum() for name in names])
    counts = np.array([(tasks == name).sum() for name in names])
    drawn = np.array(data["drawn"]).reshape(-1, len(names))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    tail = (1 - data["level"]) / 2
    clustered = stats.t.interval(data["level"], len(names) - 1, values.mean(), model.bse[0])
    return {
        "clustered": model.bse[0],
        "clustered low": clustered[0],
        "clustered high": clustered[1],
        "bootstrap": np.std(means, ddof=1),
        "low": np.quantile(means, tail),
        "high": np.quantile(means, 1 - tail),
    }


def figures(data):
    tasks, values = np.array(data["tasks"]), np.array(data["values"])
    low, high = stats.t.interval(data["level"], len(values) - 1, np.mean(values), stats.sem(values))
    passed = values == 1
    rate = wilson({"successes": passed.sum(), "trials": len(values), "level": data["level"]})
    once = np.mean([passed[tasks == name].mean() for name in np.unique(tasks)])
    return {
        "rate": passed.mean(),
        "rate low": rate["low"],
        "rate high": rate["high"],
        "mean": values.mean(),
        "plain": stats.sem(values),
        "plain low": low,
        "plain high": high,
        "at 1": once,
        "all 1": once,
        **clusters(data),
    }


def several(data):
    return {str(place): p for place, p in enumerate(multipletests(data["p"], method="holm")[1])}


def pairs(data):
    first, second = np.array(data["first"]), np.array(data["second"])
    test = stats.ttest_rel(second, first)
    interval = test.confidence_interval(data["level"])
    difference = second - first
    if data["drawn"]:
        signs = 1 - 2 * np.array(data["drawn"]).reshape(-1, len(difference))
        far = np.abs((signs * difference).sum(axis=1)) >= abs(difference.sum()) * (1 - 1e-12)
        p = (1 + far.sum()) / (1 + len(signs))
    else:
        ways = stats.permutation_test((difference,), mean, permutation_type="samples", n_resamples=np.inf)
        p = ways.pvalue
    return {
        "mean": difference.mean(),
        "standard error": stats.sem(difference),
        "low": interval.low,
        "high": interval.high,
        "p": p,
        "ratio": second.sum() / first.sum(),
    }


def flips(data):
    table = [[7, data["first"]], [data["second"], 9]]
    chi_square = mcnemar(table, exact=False, correction=True)
    return {
        "exact": mcnemar(table, exact=True).pvalue,
        "statistic": chi_square.statistic,
        "p": chi_square.pvalue,
    }


def passes(data):
    numbers = {}
    for k in range(1, max(all for all, _ in data["tasks"]) + 1):
        tried = [task for task in data["tasks"] if task[0] >= k]
        numbers[f"tasks {k}"] = len(tried)
        numbers[f"at {k}"] = np.mean([1 - comb(all - correct, k) / comb(all, k) for all, correct in tried])
        numbers[f"all {k}"] = np.mean([comb(correct, k) / comb(all, k) for all, correct in tried])
    return numbers


kinds = {f.__name__: f for f in (sample, wilson, clusters, figures, several, pairs, flips, passes)}
for line in sys.stdin:
    data = json.loads(line)
    numbers = kinds[data["kind"]](data)
    print(json.dumps({name: float(number) for name, number in numbers.items()}))
