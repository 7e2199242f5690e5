"""How ranks disturb each other, fitted to a study's steps with the smaller numbers of ranks:

  sharing  with k ranks on a node, a rank's work takes 1 + sharing (k - 1) times as long as alone: they share its memory
           (steps without all-reduces, compared with one rank's)
  beside   the factor by which computing takes longer while all-reduces run (steps with and without them)
  waiting  the mean random delay of a rank, as a share of its computing. With exponentially distributed delays the
           slowest of N ranks is late by waiting (1 + 1/2 + ... + 1/N), so all wait waiting (1/2 + ... + 1/N)
           (what is left of the median step without the mean rank's computing and the ledger's shares of other parts)

Each is fitted to each repeat by least squares; the repeats give the interval. If steps of several ranks were measured
with different numbers, the largest is held out, to judge the prediction."""
import statistics

from scaling.settings import stored_settings
from scaling.summary import LEDGER, estimate

PARTS = ("sharing", "beside", "waiting")
OTHERS = set(LEDGER) - {"compute", "waiting_for_slower_ranks"}  # parts of a step


def waits(ranks):
    """The expected wait for the slowest rank, in mean delays."""
    return sum(1 / rank for rank in range(2, ranks + 1))


def slope(points):
    """The slope of the line through the origin with the least squares; 0 if nothing determines it."""
    below = sum(x * x for x, _ in points)
    return sum(x * y for x, y in points) / below if below else 0.0


def rows_of(measurement):
    """The rows with and without all-reduces; None for a row that was not measured."""
    rows = {row["algorithm"]: row for row in measurement["result"]["rows"]}
    return rows.get(stored_settings(measurement).all_reduce), rows.get("none")


def of_a_repeat(alone, several):
    """The parameters, from measurements of one rank and of several numbers of ranks in the same round."""
    base = alone["result"]["rows"][0]
    sharing, beside, waiting = [], [], []
    for m in several:
        with_sums, without = rows_of(m)
        work = without["batch"] / base["batch"]  # 1 with weak scaling
        sharing.append((m["ranks_per_node"] - 1, without["compute_seconds"] / base["compute_seconds"] / work - 1))
        beside.append(with_sums["compute_seconds"] / without["compute_seconds"])
        ledger, computing = with_sums["ledger"], with_sums["compute_seconds"]
        others = sum(ledger[part] for part in OTHERS) / sum(ledger[part] for part in LEDGER)
        waiting.append((waits(m["ranks"]), with_sums["median_seconds"] * (1 - others) / computing - 1))
    return dict(zip(PARTS, (slope(sharing), statistics.mean(beside), max(0.0, slope(waiting)))))


def held_out(counts):
    """The number of ranks on which the prediction is judged, or None."""
    return max(counts) if sum(ranks > 1 for ranks in counts) > 1 else None


def fit(by_ranks):
    """{part: estimate, "ranks": those fitted to, "held_out": see above}, or None if steps without all-reduces are missing.
    `by_ranks`: ranks -> measurements of steps; one rank is among them."""
    judge = held_out(by_ranks)
    counts = [ranks for ranks in by_ranks if ranks != judge]
    if not all(all(rows_of(m)) for ranks in counts if ranks > 1 for m in by_ranks[ranks]):
        return None
    rounds = {m["repeat"]: {1: m} for m in by_ranks[1]}
    for ranks in counts:
        for m in by_ranks[ranks]:
            rounds.setdefault(m["repeat"], {})[ranks] = m
    whole = [found for found in rounds.values() if len(found) == len(counts) > 1]
    if not whole:
        return None
    fits = [of_a_repeat(found[1], [m for ranks, m in found.items() if ranks > 1]) for found in whole]
    return {"ranks": counts, "held_out": judge, **{part: estimate([f[part] for f in fits]) for part in PARTS}}


def options(fitted, end, ranks_on_node):
    """Options of annulus predict-scaling; `end`: of each part's estimate, "median", "low" or "high"."""
    sharing, beside, waiting = (fitted[part][end] for part in PARTS)
    # Ranks do not speed each other up: what looks like it is noise.
    return ["--contention", max(1.0, (1 + sharing * (ranks_on_node - 1)) * beside), "--waiting", waiting]
