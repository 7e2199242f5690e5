"""ReFrame's tests (4.x) of steps, all-reduces and training, with performance variables:

  reframe -c scripts/formats/reframe_annulus.py -r                                          a single rank, local launcher
  reframe -C site.py -c scripts/formats/reframe_annulus.py -r -S ranks=8 -S model=resnet50 -S image=224x224x3

ANNULUS is the program, if not annulus on PATH. Variables (-S): program, ranks, model, image, classes, batch, seconds, and for
AnnulusTraining data, a data file; without it that test is skipped."""
import os

import reframe as rfm
import reframe.utility.sanity as sn


class AnnulusTest(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    program = variable(str, value=os.environ.get("ANNULUS", "annulus"))
    ranks = variable(int, value=1)
    model = variable(str, value="lenet")
    image = variable(str, value="28x28x1")
    classes = variable(int, value=10)
    batch = variable(int, value=64)
    seconds = variable(float, value=1.0)
    results = "results.json"

    @run_before("run")
    def prepare(self):
        self.num_tasks = self.ranks
        self.executable = self.program
        self.executable_opts = [str(word) for word in self.arguments()]

    def value_of(self, name):
        """The first value with this name in the results."""
        return sn.extractsingle(rf'"{name}": ([-+.\d]+(?:e[-+]?\d+)?)', self.results, 1, float)

    @sanity_function
    def has_results(self):
        return sn.assert_found(r'"version":', self.results)


@rfm.simple_test
class AnnulusStep(AnnulusTest):
    """A training step on random images."""

    def arguments(self):
        return ["bench", "step", "--model", self.model, "--image", self.image, "--classes", self.classes, "--batch", self.batch, "--seconds",
                self.seconds, "--json", self.results]

    @performance_function("images/s")
    def speed(self):
        return self.value_of("images_per_second")

    @performance_function("s")
    def step(self):
        return self.value_of("median_seconds")


@rfm.simple_test
class AnnulusNetwork(AnnulusStep):
    """A step of each network in EESSI's test of PyTorch."""

    network = parameter(["vgg16", "resnet50", "resnet152", "densenet121", "mobilenet_v3_large"])

    @run_after("init")
    def choose_network(self):
        self.model, self.image, self.classes = self.network, "224x224x3", 1000


@rfm.simple_test
class AnnulusAllReduce(AnnulusTest):
    """An all-reduce of 16 MiB; on one rank there is none."""

    @run_after("init")
    def needs_ranks(self):
        self.skip_if(self.ranks < 2, "an all-reduce needs two ranks: -S ranks=2, with a launcher of MPI")

    def arguments(self):
        return ["bench", "all-reduce", "--sizes", "16MiB", "--seconds", self.seconds, "--json", self.results]

    @performance_function("B/s")
    def busbw(self):
        return self.value_of("busbw_bytes_per_second")


@rfm.simple_test
class AnnulusTraining(AnnulusTest):
    """An epoch of training, with the evaluation at the end."""

    data = variable(str, value="")

    @run_after("init")
    def needs_data(self):
        self.skip_if(not self.data, "-S AnnulusTraining.data=FILE, from annulus import")

    @run_before("run")
    def choose_results(self):
        self.results = "run/results.json"

    def arguments(self):
        return ["train", "--data", self.data, "--model", self.model, "--batch", self.batch, "--epochs", 1, "--out", "run"]

    @sanity_function
    def is_complete(self):
        return sn.assert_found(r'"status": "complete"', "run/results.json")

    @performance_function("images/s")
    def speed(self):
        return self.value_of("train_images_per_second")

    @performance_function("")
    def accuracy(self):
        return self.value_of("test_accuracy")
