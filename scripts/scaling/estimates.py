"""What a few noisy measurements allow to say: intervals for medians and their ratios, and whether two sets differ."""
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
    confidence: float  # that it holds the true value


def median_interval(values):
    """Between order statistics, so nothing is assumed of how values are distributed: the k-th smallest and the k-th
    largest enclose the median unless fewer than k values fall on one of its sides, which is as likely as so few heads
    of so many coins. The narrowest with CONFIDENCE; where even all values have less (fewer than 6), from the least to the
    largest with what confidence that has."""
    ordered, count = sorted(values), len(values)

    def confidence(k):
        return 1 - 2 * sum(math.comb(count, i) for i in range(k)) / 2**count

    k = max((k for k in range(1, count // 2 + 1) if confidence(k) >= CONFIDENCE), default=1)
    return Interval(ordered[k - 1], ordered[count - k], confidence(k))


def ratio_interval(above, below):
    """Of median(above) / median(below), by the percentile bootstrap with a fixed seed. Where there are few values it is
    rather too narrow, and with a single one on either side it says nothing."""
    draw = random.Random(1).choices

    def resampled_median(values):
        return statistics.median(draw(values, k=len(values)))

    ratios = sorted(resampled_median(above) / resampled_median(below) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(ratios[outside], ratios[-1 - outside], CONFIDENCE if min(len(above), len(below)) > 1 else 0.0)


def mann_whitney(a, b):
    """How likely it is that values which do not differ are mixed as little as these, or less: the exact two-sided p of
    the rank-sum test. Equal values share the mean of their ranks."""
    both = sorted([*a, *b])

    def twice_the_rank(value):  # an integer, ties or not
        return bisect.bisect_left(both, value) + bisect.bisect_right(both, value) + 1

    # (how many were taken, the sum of their ranks) -> in how many ways
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
    """The smallest that mann_whitney() can say of so many values."""
    return 2 / math.comb(len(a) + len(b), len(a))


def holm(p_values):
    """The same p values, in their order, adjusted for being several: rejecting those below 5 % errs anywhere in at most
    5 % of all families of tests (Holm 1979)."""
    adjusted, so_far = [0.0] * len(p_values), 0.0
    for done, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(p_values) - done) * p_values[place]))
        adjusted[place] = so_far
    return adjusted
