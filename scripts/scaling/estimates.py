"""Statistics of a few noisy measurements: intervals for medians and their ratios, and tests of differences."""
import bisect
import collections
import dataclasses
import math
import random
import statistics

CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Interval:
    low: float
    high: float
    confidence: float  # that it contains the true value


def median_interval(values):
    """Interval between order statistics, for any distribution: the k-th smallest and k-th largest value enclose the median
    unless fewer than k values are on one of its sides, whose probability is binomial. Returns the narrowest with
    CONFIDENCE; with fewer than 6 values, the minimum and maximum with their confidence."""
    ordered, count = sorted(values), len(values)

    def confidence(k):
        return 1 - 2 * sum(math.comb(count, i) for i in range(k)) / 2**count

    k = max((k for k in range(1, count // 2 + 1) if confidence(k) >= CONFIDENCE), default=1)
    return Interval(ordered[k - 1], ordered[count - k], confidence(k))


def ratio_interval(above, below):
    """Interval of median(above) / median(below), by the percentile bootstrap with a fixed seed. Too narrow with few values,
    and meaningless with a single one on either side."""
    draw = random.Random(1).choices

    def resampled_median(values):
        return statistics.median(draw(values, k=len(values)))

    ratios = sorted(resampled_median(above) / resampled_median(below) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(ratios[outside], ratios[-1 - outside], CONFIDENCE if min(len(above), len(below)) > 1 else 0.0)


def mann_whitney(a, b):
    """The exact two-sided p value of the rank-sum test: the probability that samples of equal distributions overlap as
    little as these, or less. Ties share the mean of their ranks."""
    both = sorted([*a, *b])

    def twice_the_rank(value):  # an integer, ties or not
        return bisect.bisect_left(both, value) + bisect.bisect_right(both, value) + 1

    # (number of values taken, sum of their ranks) -> number of ways
    ways = collections.Counter({(0, 0): 1})
    for rank in map(twice_the_rank, both):
        for (taken, total), count in list(ways.items()):
            if taken < len(a):
                ways[taken + 1, total + rank] += count
    expected = len(a) * (len(both) + 1)
    distance = abs(sum(map(twice_the_rank, a)) - expected)
    extreme = sum(count for (taken, total), count in ways.items()
                  if taken == len(a) and abs(total - expected) >= distance)
    return extreme / math.comb(len(both), len(a))


def least_p(a, b):
    """The smallest p of mann_whitney() for these numbers of values."""
    return 2 / math.comb(len(a) + len(b), len(a))


def holm(p_values):
    """The p values in the same order, adjusted for multiple tests: rejecting those below 5 % gives any false rejection in
    at most 5 % of all families of tests (Holm 1979)."""
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(p_values) - done) * p_values[place]))
        adjusted[place] = so_far
    return adjusted
