"""annulus predict-scaling against SimGrid's SMPI: the time of the ring all-reduce on simulated hosts, to 1 %.

SimGrid (H. Casanova et al., "Versatile, scalable, and accurate simulation of distributed applications and platforms",
2014) runs our ring's schedule, ring.cpp beside this file, as MPI processes on a simulated cluster, independently of
our model. Skipped with a message if SimGrid is not installed.

Concurrent messages share a link in SimGrid, so they all arrive together; on a real connection they follow each other
and hide each other's latency. So chunks are not segmented here, or latency is short."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "scripts/peers"))
from prediction import predict_ring  # noqa: E402

ANNULUS = os.environ.get("ANNULUS") or str(ROOT / "build" / "annulus")
KIB, MIB = 1 << 10, 1 << 20

# ranks, bytes, Gbit/s, us
CHUNKS_GO_WHOLE = [(2, 64 * KIB, 10, 20), (3, 100_000, 1, 50), (4, 256, 10, 20), (8, 256 * KIB, 10, 20),
                   (16, 1_000_000, 1, 20), (16, 1_000_000, 100, 2), (64, 4_000_000, 10, 20), (64, 64 * KIB, 10, 5),
                   (256, 2 * MIB, 25, 5)]
CHUNKS_OF_SEGMENTS = [(2, 4 * MIB, 1, 2), (4, 16 * MIB, 1, 2), (16, 32 * MIB, 10, 0.2)]

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="all" routing="Full">
    <cluster id="cluster" prefix="h" suffix="" radical="0-{last}" speed="1000Gf" bw="{bandwidth}Gbps"
             lat="{half_latency}us" sharing_policy="SPLITDUPLEX"/>
  </zone>
</platform>
"""


class Prediction(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not (shutil.which("smpicxx") and shutil.which("smpirun")):
            raise unittest.SkipTest("SimGrid is not installed (Debian's libsimgrid-dev)")
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="annulus-simgrid-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.ring = cls.folder / "ring"
        subprocess.run(["smpicxx", "-std=c++20", "-O1", "-I", ROOT, HERE / "ring.cpp", "-o", cls.ring], check=True)

    def simulate(self, ranks, size, bandwidth, latency):
        """Seconds. A route is two links, so half the latency belongs to each."""
        platform, hosts = self.folder / "platform.xml", self.folder / "hosts"
        platform.write_text(PLATFORM.format(last=ranks - 1, bandwidth=bandwidth, half_latency=latency / 2))
        hosts.write_text("".join(f"h{n}\n" for n in range(ranks)))
        out = subprocess.run(
            ["smpirun", "-np", str(ranks), "-platform", platform, "-hostfile", hosts, "--log=root.thresh:warning",
             "--cfg=smpi/simulate-computation:no", "--cfg=smpi/shared-malloc:global",
             # A message costs latency and bytes / bandwidth, nothing else.
             "--cfg=smpi/bw-factor:0:1", "--cfg=smpi/lat-factor:0:1", "--cfg=network/crosstraffic:0",
             self.ring, str(size)], check=True, capture_output=True, text=True, timeout=60).stdout
        return float(out)

    def compare(self, cases):
        for case in cases:
            with self.subTest(case):
                ranks, size, bandwidth, latency = case
                simulated = self.simulate(*case)
                predicted = predict_ring(ANNULUS, size, ranks, "--bandwidth", f"{bandwidth}Gbit/s", "--latency",
                                         f"{latency}us")
                print("{} ranks, {} bytes, {} Gbit/s, {} us:".format(*case),
                      f"SimGrid {1e6 * simulated:.1f} us, predicted {1e6 * predicted:.1f} us", flush=True)
                self.assertAlmostEqual(predicted, simulated, delta=0.01 * simulated)

    def test_chunks_that_go_whole(self):
        self.compare(CHUNKS_GO_WHOLE)

    def test_chunks_of_several_segments(self):
        self.compare(CHUNKS_OF_SEGMENTS)


if __name__ == "__main__":
    unittest.main()
