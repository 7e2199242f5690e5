"""Is B slower than A? For each number of ranks, with the statistical significance of the repeats."""
import dataclasses
import statistics

from benchmark import number, plural, table
from scaling.estimates import holm, least_p, mann_whitney, ratio_interval
from scaling.settings import CannotRead, read_json, speed_name

ERROR_RATE = 0.05  # probability of any false difference, over all numbers of ranks

NO_SLOWER, SLOWER, UNKNOWN = 0, 1, 2  # exit statuses

# Settings and machine: if these differ, a comparison of speeds is meaningless.
MUST_AGREE = ["model", "image", "classes", "length", "vocabulary", "data", "scaling", "threads", "device", "processor",
              "cores", "nodes", "batch"]
# May be the purpose of the comparison; differences are printed.
MAY_DIFFER = ["algorithm", "step_options", "version", "program"]


class CannotCompare(Exception):
    """The reason."""


@dataclasses.dataclass
class Repeats:
    """The repeats with one number of ranks."""
    facts: dict   # the available ones of MUST_AGREE and MAY_DIFFER
    speed: str    # its name, such as "images_per_second"
    speeds: list


def facts_of(measurement, row):
    """The facts of a study's measurement, or the fewer ones of a file by `annulus bench step --json`."""
    known = {**measurement.get("settings", {}), **measurement.get("machine", {}), **measurement,
             **measurement.get("result", {}), **row}
    return {name: known[name] for name in MUST_AGREE + MAY_DIFFER if name in known}


def read(path):
    """Ranks -> Repeats. `path`: a study's folder, a folder of files by `annulus bench step --json`, or one of these."""
    raw = path / "raw" if (path / "raw").is_dir() else path
    found = {}
    for file in sorted(raw.glob("*.json")) if raw.is_dir() else [raw]:
        measurement = read_json(file)
        rows = measurement.get("result", measurement)["rows"]
        if (speed := speed_name(rows[0])) not in rows[0]:  # all-reduces
            continue
        if "settings" not in measurement and len(rows) > 1:  # a study's further rows are steps without all-reduces
            raise CannotCompare(f"{file} has several all-reduces; compare one with another")
        row, facts = rows[0], facts_of(measurement, rows[0])
        repeats = found.setdefault(row["ranks"], Repeats(facts, speed, []))
        if unlike := differences(repeats.facts, facts, MUST_AGREE + MAY_DIFFER):
            raise CannotCompare(f"{path} mixes different measurements: {unlike}")
        repeats.speeds.append(row[speed])
    if not found:
        raise CannotCompare(f"{path} has no measured step: give a folder of scripts/study, or files of "
                            "annulus bench step --json")
    return found


def differences(a, b, names):
    return ", ".join(f"{name} {a[name]} and {b[name]}" for name in names
                     if name in a and name in b and a[name] != b[name])


def pair(a, b, force):
    """Ranks -> (Repeats of A, of B), for the numbers of ranks in both."""
    both = {ranks: (a[ranks], b[ranks]) for ranks in sorted(a.keys() & b.keys())}
    if not both:
        raise CannotCompare("no number of ranks was measured in both")
    for ranks, (one, other) in both.items():
        if (unlike := differences(one.facts, other.facts, MUST_AGREE)) and not force:
            raise CannotCompare(f"with {plural(ranks, 'rank')}: {unlike}; use --force to compare anyway")
        if len(both) * least_p(one.speeds, other.speeds) > ERROR_RATE:
            raise CannotCompare(f"{len(one.speeds)} and {len(other.speeds)} repeats with {len(both)} numbers of ranks "
                                "cannot show any difference: repeat more often")
    return both


def verdict(ratio, interval, p, threshold):
    """B / A. A missing difference proves nothing: B is no slower only if its whole interval is above the threshold."""
    if p < ERROR_RATE and ratio < 1 - threshold:
        return "REGRESSION"
    if interval.low < 1 - threshold:
        return "inconclusive"
    return "faster" if p < ERROR_RATE and ratio > 1 + threshold else "no slower"


def judge(both, threshold):
    """Yields (row of the table, verdict) for each number of ranks."""
    p_values = holm([mann_whitney(one.speeds, other.speeds) for one, other in both.values()])
    for (ranks, (one, other)), p in zip(both.items(), p_values):
        a, b = statistics.median(one.speeds), statistics.median(other.speeds)
        interval = ratio_interval(other.speeds, one.speeds)
        found = verdict(b / a, interval, p, threshold)
        yield [str(ranks), str(other.facts["batch"]), number(a), number(b),
               f"{b / a:.3f} [{interval.low:.3f}, {interval.high:.3f}]", f"{p:.4f}", found], found


def compare(path_a, path_b, threshold, force):
    """Prints a table and the verdict. Returns the exit status."""
    try:
        a, b = read(path_a), read(path_b)
        both = pair(a, b, force)
    except (CannotCompare, CannotRead) as reason:
        print(f"cannot compare: {reason}")
        return UNKNOWN
    rows, verdicts = zip(*judge(both, threshold))
    unit = next(iter(a.values())).speed.removesuffix("_per_second")
    print(table(["ranks", "batch per rank", f"A, {unit}/s", f"B, {unit}/s", "B / A", "p", "verdict"], rows))
    print(f"\nMedians; B / A with a 95 % bootstrap interval; p: exact Mann-Whitney test, two-sided, adjusted for "
          f"{len(rows)} numbers of ranks (Holm); threshold {threshold:.1%}.")
    for ranks, (one, other) in both.items():
        if unlike := differences(one.facts, other.facts, MUST_AGREE + MAY_DIFFER):
            print(f"Different with {plural(ranks, 'rank')}: {unlike}.")
    if left_out := sorted(a.keys() ^ b.keys()):
        print(f"Not compared, because only in one of them: {', '.join(map(str, left_out))} ranks.")
    regressions, inconclusive = verdicts.count("REGRESSION"), verdicts.count("inconclusive")
    if regressions:
        print(f"B is slower with {regressions} of {len(rows)} numbers of ranks.")
        return SLOWER
    if inconclusive:
        print(f"Inconclusive with {inconclusive} of {len(rows)} numbers of ranks: B may be slower by more than the "
              "threshold. Repeat more often (--repeat), or on a quieter machine.")
        return UNKNOWN
    print("B is nowhere slower by more than the threshold.")
    return NO_SLOWER
