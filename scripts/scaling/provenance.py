"""Where and with what a measurement was made, as far as it can be read."""
import functools
import os
import pathlib

from benchmark import run


def job():
    """The batch system and the job's number; "" outside of jobs."""
    for name, variable in (("Slurm", "SLURM_JOB_ID"), ("PBS", "PBS_JOBID"), ("LSF", "LSB_JOBID")):
        if number := os.environ.get(variable):
            return f"{name} {number}"
    return ""


def text_of(file):
    try:
        return file.read_text().strip()
    except OSError:  # such as the speed of a device that is down
        return ""


def networks():
    """The node's networks, such as "mlx5_0: 200 Gb/sec (4X HDR)" and "eth0: 10000 Mbit/s"; "lo" is none."""
    system = pathlib.Path("/sys/class")
    found = [f"{port.parents[1].name}: {rate}" for port in sorted(system.glob("infiniband/*/ports/*"))
             if (rate := text_of(port / "rate"))]
    return found + [f"{device.name}: {speed} Mbit/s" for device in sorted(system.glob("net/*"))
                    if device.name != "lo" and (speed := text_of(device / "speed")).isdigit() and int(speed) > 0]


@functools.cache
def version(program):
    """Such as "annulus 0.1.0 (commit 621b29bb)"."""
    return run([program, "--version"], 60)[0].strip()


def summarize(raw):
    """{"when", "jobs", "program", "mpi", "networks"} of all measurements; texts, empty if unknown."""
    days = sorted({m["began"][:10] for m in raw if m.get("began")})
    facts = [m.get("provenance", {}) for m in raw]

    def each(name):
        return ", ".join(dict.fromkeys(fact[name] for fact in facts if fact.get(name)))
    return {"when": " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "", "jobs": each("job"),
            "program": each("program"), "networks": each("networks"),
            "mpi": ", ".join(dict.fromkeys(mpi for m in raw if (mpi := m["result"].get("machine", {}).get("mpi"))))}
