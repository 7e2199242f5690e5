"""Hosts for benchmarks and checks: namespaces on this machine, connected by links with a rate (tests/hosts; needs root)."""
import contextlib
import subprocess
import tempfile

from benchmark import ROOT, give_up

LAB = ROOT / "tests/hosts/hosts"


class SimulatedHosts:
    """Hosts h1 ... hN: `names`, the command prefix that starts a program on host `first`, and variables for mpirun."""

    def __init__(self, folder, number):
        self.lab = [LAB, f"{folder}/hosts"]
        self.names = [f"h{n}" for n in range(1, number + 1)]
        self.environment = {
            "OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_no_tree_spawn": "1", "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_plm_rsh_agent": f"{LAB} {folder}/hosts rsh", "OMPI_MCA_btl": "self,vader,tcp",
            # The hosts share everything except their network, and waiting ranks must yield the shared cores.
            "OMPI_MCA_mpi_yield_when_idle": "1"}

    def prefix(self, first="h1"):
        return [*self.lab, "exec", first]

    def do(self, *arguments):
        done = subprocess.run([*self.lab, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            give_up(f"hosts {' '.join(map(str, arguments))}: {done.stderr.strip() or 'tests/hosts/hosts failed'}")


@contextlib.contextmanager
def simulated_hosts(number, rate, *burst):
    """`number` hosts, until the end of the block. `rate`, `burst`: see tests/hosts/hosts."""
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        hosts = SimulatedHosts(folder, number)
        hosts.do("up", number, rate, *burst)
        try:
            yield hosts
        finally:
            hosts.do("down")
