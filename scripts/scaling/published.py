#!/usr/bin/python3
"""Published scaling curves: predicts each curve's last point from the first two.

  scripts/scaling/published.py tests/data/published_curves.json > scripts/results/published-curves.md

The model is that of annulus predict-scaling for large arrays, with two unknowns: a step computes for a time that does not depend on
the number of units (weak scaling), or is divided by it (strong), and a ring of N units takes 2 (N - 1) / N times a constant. Nothing
is known about the machines: what the first two points do not show, such as slower links further away, is not predicted."""
import json
import pathlib
import sys

LIMIT = 0.1  # relative error


def ring(units):
    """The time of an all-reduce, in all bytes / bandwidth."""
    return 2 * (units - 1) / units


def solve(first, second, work):
    """Computing and communication, neither negative, so that time(N) = computing work(N) + communication ring(N) at two points
    (units, time)."""
    (n, t), (m, u) = first, second
    determinant = work(n) * ring(m) - work(m) * ring(n)
    communication = (work(n) * u - work(m) * t) / determinant
    if communication < 0:  # faster than ideal: noise, or caches
        return t / work(n), 0.0
    return (t - communication * ring(n)) / work(n), communication


def predict_last(curve):
    """Its last value."""
    strong = curve["quantity"] == "minutes"
    units = curve["units"]

    def work(count):
        return 1 / count if strong else 1
    times = [value if strong else count / value for count, value in zip(units, curve["values"])]
    computing, communication = solve(*list(zip(units, times))[:2], work)
    time = computing * work(units[-1]) + communication * ring(units[-1])
    return time if strong else units[-1] / time


def text(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def main():
    curves = json.loads(pathlib.Path(sys.argv[1]).read_text())["curves"]
    errors = [predict_last(curve) / curve["values"][-1] - 1 for curve in curves]
    print("# Published curves: the last point, predicted from the first two\n")
    print(f"Within {LIMIT:.0%}: {sum(abs(error) <= LIMIT for error in errors)} of {len(curves)}. Data and sources: "
          "`tests/data/published_curves.json`; the model: `scripts/scaling/published.py`.\n")
    print("| curve | from | to | published | predicted | error | source |\n|---|---:|---:|---:|---:|---:|---|")
    for curve, error in zip(curves, errors):
        print(f"| {curve['what']} | {curve['units'][0]}, {curve['units'][1]} | {curve['units'][-1]} | {text(curve['values'][-1])} "
              f"{curve['quantity']} | {text(predict_last(curve))} | {error:+.1%} | {curve['source']} |")
    print("\nCauses of larger errors:\n")
    for curve, error in zip(curves, errors):
        if abs(error) > LIMIT:
            print(f"- {curve['what']}: {curve['cause']}.")


if __name__ == "__main__":
    main()
