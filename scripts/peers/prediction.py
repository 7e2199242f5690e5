"""Runs annulus predict-scaling for comparisons: for a step, and for an all-reduce alone."""
import json
import pathlib
import subprocess
import tempfile


def predict(annulus, profile, ranks, *arguments):
    """Its row for `ranks` ranks and a step with this profile. Raises CalledProcessError, with the reason in stderr."""
    with tempfile.TemporaryDirectory(prefix="prediction-") as folder:
        step, out = pathlib.Path(folder, "step.json"), pathlib.Path(folder, "out.json")
        step.write_text(json.dumps({"profile": profile}))
        subprocess.run([annulus, "predict-scaling", step, "--ranks", str(ranks), *map(str, arguments), "--json", out],
                       check=True, capture_output=True, text=True, timeout=60)
        return json.loads(out.read_text())["predictions"][0]


def predict_ring(annulus, size, ranks, *arguments):
    """Seconds of a ring all-reduce of `size` bytes: of a step without computation that sends everything in one bucket."""
    layer = {"name": "all", "forward_ms": 0, "backward_ms": 0, "gradient_bytes": [size]}
    profile = {"model": "sum", "batch": 1, "ranks": 1, "input_ms": 1, "optimizer_ms": 0, "layers": [layer]}
    row = predict(annulus, profile, ranks, "--all-reduce", "message-ring", "--bucket", "1TiB", *arguments)
    return row["communication_ms"] / 1e3
