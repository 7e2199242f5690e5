"""Training on GPUs: ANNULUS is the program with an emulated CUDA runtime of ANNULUS_EMULATED_GPUS GPUs."""
import io
import json
import math
import re
import shutil
import signal

import helper
import hosts_test
import numpy as np
import PIL.Image
from helper import command, read_checkpoint, run

PARTS = ["input", "compute", "exposed_communication", "waiting_for_slower_ranks", "optimizer", "rest"]
RUN, STEP, ALL_REDUCE = range(3)  # the timeline's lanes
STALL = 1.5  # seconds


def gpus(count):
    return {"ANNULUS_EMULATED_GPUS": str(count)}


class GpuTest(helper.ProgramTest):
    """Small data: 5 steps of 16 an epoch. resnet20 gets images of its own, smaller and in color."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = helper.write_data(cls.shared / "few.h5", train=80, test=40)
        cls.color = helper.write_data(cls.shared / "color.h5", train=40, test=20, size=12, channels=3)

    def training(self, out, model="lenet", **options):
        of_model = {"data": self.color, "global_batch": 8} if model == "resnet20" else {"global_batch": 16}
        return super().training(out, model, **{"device": "cuda", **of_model, **options})

    def train(self, out, ranks=0, model="lenet", **options):
        return super().train(out, ranks, model, **options)

    def losses(self, results):
        return [epoch[name] for epoch in results["epochs"] for name in ("train_loss", "test_loss")]

    def assert_adds_up(self, ledger, *present):
        """`present`: parts that take time."""
        for part in PARTS[:-1]:
            self.assertGreaterEqual(ledger[part], 0, part)
        for part in present:
            self.assertGreater(ledger[part], 0, part)
        self.assertAlmostEqual(sum(ledger[part] for part in PARTS), ledger["wall"], delta=1e-6 * ledger["wall"])

    def assert_same_losses(self, a, b, tolerance):
        self.assertEqual(len(self.losses(a)), len(self.losses(b)))
        for one, other in zip(self.losses(a), self.losses(b)):
            self.assertAlmostEqual(one, other, delta=tolerance * one)

    def scaling(self, state):
        return tuple(int(state["attributes"][name]) for name in ("loss_scale", "good_steps"))

    def assert_finite(self, checkpoint):
        state = read_checkpoint(checkpoint)
        for group in helper.STATE:
            for name, values in state[group].items():
                self.assertTrue(np.isfinite(values).all(), f"{group}/{name}")

    def assert_refused(self, result, names, status=1):
        """Fails with one line on every rank: none is left waiting for another."""
        self.assertEqual(result.status, status, str(result))
        self.assertEqual(len(result.messages), 1, str(result))
        self.assertRegex(result.messages[0], names)
        self.assertLess(result.seconds, 10)


class Precision(GpuTest):
    def test_fp32_gives_the_losses_of_the_cpu(self):
        # Few steps: batch norm over small batches amplifies every difference in each.
        for model, steps in (("mlp", 7), ("lenet", 7), ("resnet20", 3)):
            with self.subTest(model):
                options = {"model": model, "precision": "fp32", "epochs": 2, "max_steps": steps}
                found = [self.train(self.folder / model / device, device=device, **options)
                         for device in ("cpu", "cuda")]
                self.assertRegex(found[1]["device"], r"^cuda, .*, fp32$")
                self.assert_same_losses(*found, 1e-4)

    def test_every_precision_learns(self):
        for precision in ("tf32", "bf16", "fp16"):
            with self.subTest(precision):
                out = self.folder / precision
                results = self.train(out, ranks=2, model="mlp", precision=precision, epochs=2)
                self.assertRegex(results["device"], f", {precision}$")
                losses = [epoch["train_loss"] for epoch in results["epochs"]]
                self.assertLess(losses[1], 0.3 * losses[0])
                self.assertGreater(results["test_accuracy"], 0.9)
                self.assertEqual("loss_scale" in read_checkpoint(out / "checkpoint.h5")["attributes"],
                                 precision == "fp16")

    def test_bf16_is_the_default_on_a_gpu(self):
        self.assertRegex(self.train(self.folder / "out", max_steps=1, device=None)["device"], r"^cuda, .*, bf16$")

    def test_fp16_with_measured_plans(self):
        options = {"model": "resnet20", "precision": "fp16", "epochs": 1}
        losses = [self.train(self.folder / f"{name}", **options, **more)["epochs"][0]["train_loss"] for name, more in (
            ("untuned", {}), ("repeatable", {"tune": self.folder / "plans.json"}),
            ("fused", {"tune": self.folder / "fusions.json", "deterministic": "off"}))]
        for tuned in losses[1:]:  # equal if the plans without measurements were faster
            self.assertAlmostEqual(tuned, losses[0], delta=0.01 * losses[0])

    def test_fp16_skips_steps_until_the_gradients_fit(self):
        out = self.folder / "out"
        options = {"ranks": 2, "precision": "fp16", "epochs": 3, "ema": 0.9, "clip_norm": 5, "resume": True}
        self.train(out, max_steps=2, **options)
        helper.edit_checkpoint(out / "checkpoint.h5", lambda file: file.attrs.modify("loss_scale", np.uint64(2 ** 24)))
        before = read_checkpoint(out / "checkpoint.h5")
        self.train(out, max_steps=4, **options)
        skipped = read_checkpoint(out / "checkpoint.h5")
        self.assertEqual(self.scaling(skipped), (2 ** 22, 0))
        for group in helper.STATE:
            for name, values in before[group].items():
                self.assertEqual(values.tobytes(), skipped[group][name].tobytes(), f"{group}/{name} was updated")
        self.train(out, max_steps=14, **options)
        self.assert_finite(out / "checkpoint.h5")
        scale, good_steps = self.scaling(read_checkpoint(out / "checkpoint.h5"))
        self.assertGreater(good_steps, 0)
        skipped = 24 - math.log2(scale)  # halved in each of these steps; the good steps are counted from the last of them
        self.assertIn(skipped, range(3, 13 - good_steps))
        self.train(out, max_steps=15, **{**options, "precision": "fp32"})
        self.assertNotIn("loss_scale", read_checkpoint(out / "checkpoint.h5")["attributes"])

class Ranks(GpuTest):
    def test_any_number_of_ranks_gives_the_same_losses(self):
        found = {ranks: self.train(self.folder / str(ranks), ranks=ranks, precision="fp32", epochs=2)
                 for ranks in (0, 2, 3)}
        for ranks, results in found.items():
            self.assertEqual(results["ranks"], max(ranks, 1))
            self.assert_same_losses(found[0], results, 1e-5)
        self.assertLess(self.farthest(self.folder / "0/checkpoint.h5", self.folder / "3/checkpoint.h5"), 1e-5)

    def test_synchronized_batch_norm_gives_the_losses_of_one_rank(self):
        options = {"model": "resnet20", "precision": "fp32", "max_steps": 4}
        alone = self.train(self.folder / "alone", **options)
        three = self.train(self.folder / "three", ranks=3, sync_batch_norm=True, bucket="16KiB", **options)
        self.assert_same_losses(alone, three, 1e-3)

    def test_fewer_images_than_ranks_in_the_last_step(self):
        alone = self.train(self.folder / "alone", precision="fp32", global_batch=79)
        three = self.train(self.folder / "three", ranks=3, precision="fp32", global_batch=79)  # then 1: two have none
        self.assert_same_losses(alone, three, 1e-5)

    def test_repeated_runs_are_bit_identical(self):
        for name in ("a", "b"):
            self.train(self.folder / name, ranks=3, model="resnet20")
        self.assert_same_state(self.folder / "a" / "checkpoint.h5", self.folder / "b" / "checkpoint.h5")

    def test_a_flipped_bit_is_detected_and_its_rank_named(self):
        result = run(*self.training(self.folder / "out", checkpoint_every=2), "--inject", "flip:rank=1,step=3", ranks=3)
        self.assertEqual(result.status, 1, str(result))
        self.assertRegex(result.messages[0], r"the replicas differ after step 4, first in .*: rank 1 ")
        self.assertEqual(read_checkpoint(self.folder / "out" / "checkpoint.h5")["attributes"]["step"], 2)

    def test_verified_steps_name_flipped_bits_and_change_nothing(self):
        who = r"rank 1 on .* does not have the values of the others"
        for precision, other in (("bf16", {"ema": 0.9}), ("fp16", {"clip_norm": 0.1}), ("fp32", {"optimizer": "muon"})):
            options = {"precision": precision, "bucket": "64KiB", "epochs": 4, "eval_every": "none",
                       "checkpoint_every": "end", **other}
            for verify in (None, True):
                self.train(self.folder / f"{precision}-{verify}", ranks=3, verify=verify, **options)
            self.assert_same_state(*(self.folder / f"{precision}-{verify}" / "checkpoint.h5" for verify in (None, True)))
            for flip, finding in (("in=bucket,element=70,bit=0", rf"step 3: the sums of gradients differ, first in bucket 1 of \d+: {who}"),
                                  ("in=bucket,bucket=2,bit=30", rf"step 3: the sums of gradients differ, first in bucket 3 of \d+: {who}"),
                                  ("in=state,bit=22", rf"step \d+: the replicas differ, first in .*: {who}")):
                with self.subTest(precision=precision, flip=flip):
                    result = run(*self.training(self.folder / "flipped", overwrite=True, verify=True, **options), "--inject",
                                 f"flip:rank=1,step=3,{flip}", ranks=3)
                    self.assertEqual(result.status, 1, str(result))
                    self.assertRegex(result.messages[0], finding)


    def test_images_in_the_gpus_memory_give_the_same_bits(self):
        """A single epoch does not keep them there."""
        augment = {"augment": "flip,alternate,shift=2", "max_steps": 5, "eval_every": "none"}
        for ranks in (0, 3):
            for epochs in (1, 2):
                result = run(*self.training(self.folder / f"{ranks}-{epochs}", epochs=epochs, **augment), ranks=ranks)
                self.assertEqual(result.status, 0, str(result))
                self.assertEqual("in the GPU's memory, where they are augmented" in result.out, epochs == 2, str(result))
            self.assert_same_state(*(self.folder / f"{ranks}-{epochs}" / "checkpoint.h5" for epochs in (1, 2)))


class Resume(GpuTest):
    def checkpoint(self, name):
        return self.folder / name / "checkpoint.h5"

    def test_resumed_runs_are_bit_identical(self):
        for precision, optimizer, model in (("bf16", "sgd", "resnet20"), ("fp16", "adamw", "lenet"),
                                            ("bf16", "lars", "lenet"), ("bf16", "muon", "lenet")):
            with self.subTest(precision=precision, optimizer=optimizer, model=model):
                options = {"ranks": 2, "model": model, "precision": precision, "optimizer": optimizer, "epochs": 2,
                           "weight_decay": 0.001, "ema": 0.95}
                self.train(self.folder / optimizer / "whole", max_steps=6, **options)
                for steps in (3, 6):  # within the first epoch, within the second
                    self.train(self.folder / optimizer / "parts", max_steps=steps, resume=True, **options)
                self.assert_same_state(self.checkpoint(f"{optimizer}/whole"), self.checkpoint(f"{optimizer}/parts"))

    def test_on_another_number_of_ranks_and_on_the_cpu(self):
        options = {"precision": "fp32", "epochs": 2}
        self.train(self.folder / "out", ranks=2, max_steps=4, **options)
        for ranks, device in ((2, "cuda"), (0, "cuda"), (3, "cuda"), (2, "cpu")):
            with self.subTest(ranks=ranks, device=device):
                name = f"{ranks}-{device}"
                shutil.copytree(self.folder / "out", self.folder / name)
                self.train(self.folder / name, ranks=ranks, device=device, max_steps=8, resume=True, **options)
                self.assertLess(self.farthest(self.checkpoint("2-cuda"), self.checkpoint(name)), 1e-4)

    def test_each_device_evaluates_the_others_checkpoints(self):
        for trained, device, ranks in (("cuda", "cpu", 0), ("cpu", "cuda", 3)):
            with self.subTest(trained=trained, evaluated=device):
                results = self.train(self.folder / trained, device=trained, model="mlp")
                file = self.folder / "eval.json"
                self.succeed("eval", "--data", self.data, "--checkpoint", self.checkpoint(trained), "--device", device,
                             "--json", file, ranks=ranks)
                found = json.loads(file.read_text())
                self.assertEqual(found["count"], 40)
                self.assertAlmostEqual(found["accuracy"], results["test_accuracy"], delta=0.026)  # one image
                self.assertAlmostEqual(found["loss"], results["test_loss"], delta=0.02 * results["test_loss"])

    def test_another_optimizer_is_refused(self):
        for before, after in (("sgd", "lars"), ("lars", "adamw"), ("adamw", "sgd")):
            with self.subTest(before=before, after=after):
                self.train(self.folder / before, optimizer=before, max_steps=2)
                saved = self.checkpoint(before).read_bytes()
                result = run(*self.training(self.folder / before, optimizer=after, resume=True, max_steps=3), ranks=2)
                self.assert_refused(result, rf"step-000000002\.h5 was made with --optimizer {before}: resume it with the same --optimizer")
                self.assertEqual(self.checkpoint(before).read_bytes(), saved, "the old checkpoint was touched")


class Optimizers(GpuTest):
    def test_they_match_the_cpu(self):
        for options in ({"optimizer": "lars", "lr": 1}, {"optimizer": "adamw", "lr": 0.001, "label_smoothing": 0.1},
                        {"optimizer": "muon", "lr": 0.001, "instruction_set": "avx2"},  # not in bf16 on CPUs with AMX
                        {"optimizer": "sgd,nesterov", "clip_norm": 1, "ema": 0.9, "accumulate": 3}):
            with self.subTest(**options):
                found = [self.train(self.folder / options["optimizer"] / device, ranks=2, device=device,
                                    precision="fp32", weight_decay=0.01, metrics_every=4, **options)
                         for device in ("cpu", "cuda")]
                self.assert_same_losses(*found, 1e-4)
                norms = [[line["gradient_norm"] for line in helper.metrics(self.folder / options["optimizer"] / device)
                          if line["kind"] == "train"] for device in ("cpu", "cuda")]
                self.assertTrue(norms[0])
                for ours, theirs in zip(*norms, strict=True):
                    self.assertAlmostEqual(ours, theirs, delta=1e-2 * ours)
                self.assertLess(self.farthest(*(self.folder / options["optimizer"] / device / "checkpoint.h5"
                                                for device in ("cpu", "cuda"))), 1e-3)

    def test_label_smoothing_raises_the_training_loss(self):
        results = self.train(self.folder / "out", model="mlp", epochs=3, label_smoothing=0.2)
        self.assertGreater(results["epochs"][-1]["train_loss"], 0.8)  # at least the entropy of the labels
        self.assertLess(results["test_loss"], 0.8)


class AllReduce(GpuTest):
    def test_all_algorithms_agree(self):
        found = {"auto": r"^(shm|ring in shared memory).*, staged through pinned memory .*\(ranks that share a GPU wait on the host; ",
                 "ring": r"^ring over the GPUs' memory \(requested",
                 "direct": r"^direct all-reduce over the GPUs' memory \(requested",
                 "shm": r"^shm, .*, staged through pinned memory",
                 "message-ring": r"^ring over MPI messages of fp32, .*, staged",
                 "doubling": r"^recursive doubling over MPI messages of fp32, staged",
                 "mpi": r"^MPI_Allreduce, staged"}
        for name, description in found.items():
            with self.subTest(name):
                results = self.train(self.folder / name, ranks=3, precision="fp32", all_reduce=name, max_steps=3)
                self.assertRegex(results["all_reduce"], description)
                self.assertLess(self.farthest(self.folder / "auto/checkpoint.h5", self.folder / name / "checkpoint.h5"),
                                1e-5)

    def test_nccl(self):
        # Two summands are added in one order only.
        for name in ("nccl", "ring"):
            results = self.train(self.folder / name, ranks=2, all_reduce=name, environment=gpus(2))
            self.assertRegex(results["all_reduce"], "^NCCL's all-reduce" if name == "nccl" else "^ring over")
        self.assert_same_state(self.folder / "nccl/checkpoint.h5", self.folder / "ring/checkpoint.h5")

    def test_nccl_on_a_shared_gpu(self):
        result = run(*self.training(self.folder / "out", all_reduce="nccl"), ranks=2)
        self.assert_refused(result, r"NCCL does not support two ranks on one GPU: ranks 0 and 1 share GPU .*"
                                    r"use --all-reduce auto, or fewer ranks")

    def test_on_two_ranks_buckets_and_deferring_are_bit_identical(self):
        whole = self.folder / "whole"
        small = {"ranks": 2, "global_batch": 4, "max_steps": 5}
        self.train(whole, **small)
        for name, options in {"small": {"bucket": "8KiB"}, "deferred": {"defer": 0.5}}.items():
            with self.subTest(name):
                self.train(self.folder / name, **small, **options)
                self.assert_same_state(whole / "checkpoint.h5", self.folder / name / "checkpoint.h5")

    def test_deferring_with_each_optimizer(self):
        for optimizer in ("lars", "adamw", "muon"):
            with self.subTest(optimizer):
                outs = [self.folder / optimizer / f"deferred-{share}" for share in (0, 0.5)]
                for out, share in zip(outs, (0, 0.5)):
                    self.train(out, ranks=3, optimizer=optimizer, bucket="16KiB", defer=share)
                self.assert_same_state(*(out / "checkpoint.h5" for out in outs))

    def test_deferring_in_fp16_is_refused(self):
        result = run(*self.training(self.folder / "out", defer=0.5, precision="fp16"), ranks=2)
        self.assert_refused(result, r"--defer does not go with --precision fp16, because", status=2)


class Sharded(GpuTest):
    def assert_same_as_synchronous(self, **options):
        outs = [self.folder / strategy for strategy in ("synchronous", "sharded")]
        found = [self.train(out, strategy=out.name, bucket="16KiB", **options) for out in outs]
        self.assert_same_state(*(out / "checkpoint.h5" for out in outs))
        for key in "train_loss", "test_loss":
            self.assertEqual(*([epoch[key] for epoch in results["epochs"]] for results in found))
        return outs

    def test_the_bits_of_synchronous_steps(self):
        for ranks, options in ((2, {"precision": "bf16", "ema": 0.9, "environment": gpus(2)}),
                               (3, {"precision": "fp32", "optimizer": "adamw", "lr": 0.001}),
                               (0, {"optimizer": "muon", "lr": 0.01}),
                               (2, {"optimizer": "muon", "lr": 0.01, "precision": "fp16", "ema": 0.9, "environment": gpus(2)}),
                               (3, {"optimizer": "muon", "lr": 0.01, "all_reduce": "ring", "model": "resnet20", "weight_decay": 0.01,
                                    "epochs": 1}),
                               (3, {"all_reduce": "direct", "defer": 0.5, "accumulate": 2})):
            with self.subTest(ranks=ranks, **options):
                self.folder = self.folder / f"ranks-{ranks}-{len(options)}"
                self.assert_same_as_synchronous(ranks=ranks, **options)

    def test_nccl(self):
        self.assert_same_as_synchronous(ranks=2, all_reduce="nccl", environment=gpus(2))

    def assert_close_to_synchronous(self, **options):
        """Norms are added in another order than by one rank."""
        outs = [self.folder / strategy for strategy in ("synchronous", "sharded")]
        for out in outs:
            self.train(out, ranks=3, strategy=out.name, precision="fp32", bucket="16KiB", **options)
        self.assertLess(self.farthest(*(out / "checkpoint.h5" for out in outs)), 1e-5)
        return outs

    def test_clipping(self):
        outs = self.assert_close_to_synchronous(clip_norm=0.1, metrics_every=2)
        norms = [[line["gradient_norm"] for line in helper.metrics(out) if line["kind"] == "train"] for out in outs]
        self.assertTrue(norms[0])
        for one, other in zip(*norms, strict=True):
            self.assertAlmostEqual(one, other, delta=1e-4 * one)

    def test_lars(self):
        self.assert_close_to_synchronous(optimizer="lars,trust=0.01", lr=1)

    def test_fp16(self):
        """Ranks skip the same steps, also if gradients overflow in the chunks of some ranks only."""
        options = {"ranks": 3, "precision": "fp16"}
        outs = self.assert_same_as_synchronous(max_steps=2, **options)
        for out in outs:
            helper.edit_checkpoint(out / "checkpoint.h5", lambda file: file.attrs.modify("loss_scale", np.uint64(2 ** 24)))
        self.assert_same_as_synchronous(max_steps=12, resume=True, **options)
        for out in outs:
            self.assertLess(self.scaling(read_checkpoint(out / "checkpoint.h5"))[0], 2 ** 24)
            self.assert_finite(out / "checkpoint.h5")

    def test_resuming_elsewhere(self):
        options = {"model": "mlp", "precision": "fp32", "optimizer": "adamw", "lr": 0.001, "ema": 0.9,
                   "global_batch": 6}
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train(whole, ranks=3, max_steps=8, **options)
        self.train(parts, ranks=3, max_steps=4, strategy="sharded", **options)
        self.train(parts, ranks=2, max_steps=6, strategy="sharded", resume=True, **options)
        self.train(parts, ranks=2, max_steps=8, strategy="sharded", resume=True, device="cpu", **options)
        self.assertLess(self.farthest(whole / "checkpoint.h5", parts / "checkpoint.h5"), 1e-4)

    def test_refusals(self):
        result = run(*self.training(self.folder / "out", strategy="sharded", all_reduce="mpi"), ranks=2)
        self.assert_refused(result, "needs an all-reduce of reduce-scatter and all-gather, such as ring, direct or nccl")


class Local(GpuTest):
    def train_local(self, name, ranks=2, **options):
        """Rounds of 3 steps: of 3 and 2 in each epoch."""
        out = self.folder / name
        return out, self.train(out, ranks=ranks, strategy="local", sync_every=3, bucket="16KiB", **options)

    def test_the_weights_of_the_cpu(self):
        for ranks, environment, options in (
                (0, None, {"outer": "nesterov"}), (2, gpus(2), {"all_reduce": "direct", "ema": 0.9, "clip_norm": 1}),
                (2, gpus(2), {"all_reduce": "nccl", "optimizer": "adamw", "lr": 0.001}),
                (3, None, {"all_reduce": "message-ring", "wire": "bf16"}),
                (4, gpus(4), {"all_reduce": "ring", "outer": "nesterov", "global_batch": 20})):
            with self.subTest(ranks=ranks, **options):
                options = {"precision": "fp32", "epochs": 2, "metrics_every": 1, **options}
                narrow = "wire" in options
                on_cpu = {**options, "all_reduce": "message-ring" if narrow else None}
                (cpu, of_cpu), (gpu, of_gpu) = (
                    self.train_local(f"{ranks}-{options.get('all_reduce')}/{device}", ranks, device=device, environment=environment,
                                     **how) for device, how in (("cpu", on_cpu), ("cuda", options)))
                self.assert_same_losses(of_cpu, of_gpu, 1e-3 if narrow else 1e-4)
                self.assertLess(self.farthest(cpu / "checkpoint.h5", gpu / "checkpoint.h5"), 1e-2 if narrow else 1e-4)
                self.assertEqual(*([line["step"] for line in helper.metrics(out)] for out in (cpu, gpu)))
                states = [read_checkpoint(out / "checkpoint.h5") for out in (cpu, gpu)]
                for group in states[0]:
                    self.assertEqual(states[0][group].keys() - {"milliseconds", "crossover"},
                                     states[1][group].keys() - {"milliseconds", "crossover"}, group)

    def test_every_precision_learns(self):
        for precision in ("bf16", "fp16"):
            with self.subTest(precision):
                _, results = self.train_local(precision, model="mlp", precision=precision, epochs=3, outer="nesterov")
                losses = [epoch["train_loss"] for epoch in results["epochs"]]
                self.assertLess(losses[2], 0.5 * losses[0])

    def test_resumed_runs_are_bit_identical(self):
        for name, options in (("bf16", {"model": "resnet20", "outer": "nesterov", "ema": 0.9}),
                              ("fp16", {"precision": "fp16"})):
            with self.subTest(name):
                options = {"ranks": 3, "epochs": 3, "checkpoint_every": 3, "eval_every": "end", **options}
                whole, _ = self.train_local(f"{name}/whole", max_steps=13, **options)
                for steps in (3, 13):
                    parts, _ = self.train_local(f"{name}/parts", max_steps=steps, resume=True, **options)
                self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_resuming_elsewhere(self):
        options = {"precision": "fp32", "epochs": 3, "outer": "nesterov"}
        out, _ = self.train_local("out", max_steps=5, **options)
        for ranks, device in ((2, "cuda"), (2, "cpu"), (3, "cuda"), (3, "cpu")):
            shutil.copytree(out, self.folder / f"{ranks}-{device}")
            self.train_local(f"{ranks}-{device}", ranks, device=device, max_steps=10, resume=True, **options)
        for ranks in (2, 3):
            found = [self.folder / f"{ranks}-{device}/checkpoint.h5" for device in ("cuda", "cpu")]
            self.assertLess(self.farthest(*found), 1e-4)
        self.train(out, ranks=3, precision="fp32", epochs=3, max_steps=7, resume=True)  # with synchronous steps

    def test_repeated_runs_are_bit_identical(self):
        outs = [self.train_local(name, 3, model="resnet20")[0] for name in ("a", "b")]
        self.assert_same_state(*(out / "checkpoint.h5" for out in outs))

    def test_the_ledger_adds_up(self):
        _, results = self.train_local("out", epochs=2)
        self.assert_adds_up(results["ledger"], "optimizer")

    def test_timeline(self):
        file = self.folder / "timeline.json"
        self.train_local("out", epochs=4, timeline=file)
        names = [event["name"] for event in json.loads(file.read_text()) if event["ph"] == "X" and event["pid"] == 1]
        self.assertEqual(names.count("step"), 3)  # the rounds from the sixth on, of 2, 3 and 2 steps
        self.assertEqual(names.count("forward"), 7)

    def test_a_network_with_shared_embeddings(self):
        options = {"model": "gpt-tiny", "data": self.import_texts(), "length": 16, "global_batch": 4, "max_steps": 6,
                   "precision": "fp32"}
        found = [self.train_local(device, device=device, **options) for device in ("cpu", "cuda")]
        for name in ("train_loss", "validation_loss"):
            cpu, gpu = (results["epochs"][0][name] for _, results in found)
            self.assertAlmostEqual(cpu, gpu, delta=1e-4 * cpu)
        self.assertLess(self.farthest(*(out / "checkpoint.h5" for out, _ in found)), 1e-4)

    def test_refusals(self):
        # Of several ranks with --survive one may end because of another's error, and mpirun then ends that one, too.
        for ranks, change, why in ((0, {"survive": True}, "--survive does not go with --device cuda, .* use --device cpu"),
                                   (0, {"strategy": "async", "survive": True}, "--survive does not go with --device cuda")):
            with self.subTest(**change):
                result = run(*self.training(self.folder / "out", **{"strategy": "local", **change}), ranks=ranks)
                self.assertEqual(result.status, 2, str(result))
                self.assertRegex(result.err, why)


class Async(GpuTest):
    def train_async(self, name, ranks=2, **options):
        """Rounds of 3 steps: of 3 and 2 in each epoch."""
        out = self.folder / name
        return out, self.train(out, ranks=ranks, **{"strategy": "async", "sync_every": 3, "bucket": "16KiB", **options})

    def test_without_staleness(self):
        """The weights of the CPU, and of synchronous steps."""
        for ranks, options in ((0, {"model": "mlp"}), (2, {"ema": 0.9, "environment": gpus(2)}),
                               (3, {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01}),
                               (2, {"servers": 1}), (3, {"servers": 2, "model": "resnet20", "max_steps": 3})):
            with self.subTest(ranks=ranks, **options):
                options = {"precision": "fp32", "epochs": 2, "metrics_every": 1, **options}
                name = f"{ranks}-" + "-".join(options)
                runs = [self.train_async(f"{name}/{device}", ranks, device=device, staleness=0, **options)
                        for device in ("cuda", "cpu")]
                workers = max(ranks, 1) - options.pop("servers", 0)
                runs.append(self.train_async(f"{name}/synchronous", workers, strategy="synchronous", sync_every=None, **options))
                (gpu, of_gpu), *others = runs
                for other, of_other in others:
                    self.assert_same_losses(of_gpu, of_other, 1e-4)
                    self.assertLess(self.farthest(gpu / "checkpoint.h5", other / "checkpoint.h5"), 1e-4)
                self.assertEqual(*([line["step"] for line in helper.metrics(out)] for out, _ in runs[:2]))
                found, expected = (read_checkpoint(out / "checkpoint.h5") for out, _ in runs[:2])
                for group in helper.STATE:
                    self.assertEqual(found[group].keys(), expected[group].keys(), group)
                    for array, values in expected[group].items():
                        np.testing.assert_allclose(found[group][array], values, rtol=1e-3, atol=1e-5, err_msg=array)

    def test_staleness_in_every_precision(self):
        for precision, options in (("fp32", {}), ("bf16", {"servers": 1}), ("fp16", {})):
            with self.subTest(precision):
                _, results = self.train_async(precision, 3, model="mlp", precision=precision, epochs=3, staleness=2, **options)
                losses = [epoch["train_loss"] for epoch in results["epochs"]]
                self.assertLess(losses[2], 0.5 * losses[0])
                histogram = results["ledger"]["staleness"]["histogram"]
                self.assertLessEqual(len(histogram), 3)
                self.assertEqual(sum(histogram), 15 * (3 - options.get("servers", 0)))

    def test_timed_rounds(self):
        out, results = self.train_async("out", 3, model="mlp", sync_every="1s", servers=1, epochs=3)
        self.assertLess(results["epochs"][2]["train_loss"], 0.5 * results["epochs"][0]["train_loss"])
        self.assert_finite(out / "checkpoint.h5")

    def test_servers_compute_nothing(self):
        _, results = self.train_async("out", 3, servers=2, epochs=2)
        compute = results["ledger"]["ranks"]["compute"]
        self.assertTrue(all(seconds < 0.5 * compute[0] for seconds in compute[1:]), compute)

    def test_overflowing_gradients_are_dropped(self):
        out, _ = self.train_async("out", 3, model="resnet20", precision="fp16", max_steps=3)
        helper.edit_checkpoint(out / "checkpoint.h5", lambda file: file.attrs.modify("loss_scale", np.uint64(2 ** 24)))
        before = read_checkpoint(out / "checkpoint.h5")
        self.train_async("out", 3, model="resnet20", precision="fp16", epochs=4, resume=True)
        after = read_checkpoint(out / "checkpoint.h5")
        self.assertLess(self.scaling(after)[0], 2 ** 24)
        self.assert_finite(out / "checkpoint.h5")
        for name, values in after["parameters"].items():
            if name.endswith("variance"):
                self.assertGreater(np.min(values / before["parameters"][name]), 0.2, name)

    def test_resumed_runs_are_bit_identical(self):
        for name, options in (("bf16", {"model": "resnet20", "ema": 0.9}), ("fp16", {"precision": "fp16", "servers": 1})):
            with self.subTest(name):
                options = {"ranks": 3, "epochs": 3, "checkpoint_every": 3, "eval_every": "end", "staleness": 0, **options}
                whole, _ = self.train_async(f"{name}/whole", max_steps=13, **options)
                for steps in (3, 13):
                    parts, _ = self.train_async(f"{name}/parts", max_steps=steps, resume=True, **options)
                self.assert_same_state(whole / "checkpoint.h5", parts / "checkpoint.h5")

    def test_resuming_elsewhere(self):
        options = {"precision": "fp32", "epochs": 3, "ema": 0.9, "staleness": 0}
        out, _ = self.train_async("out", 3, servers=1, max_steps=5, **options)
        for ranks, device in ((2, "cuda"), (2, "cpu"), (3, "cuda"), (3, "cpu")):
            shutil.copytree(out, self.folder / f"{ranks}-{device}")
            self.train_async(f"{ranks}-{device}", ranks, device=device, max_steps=10, resume=True, **options)
        for ranks in (2, 3):
            found = [self.folder / f"{ranks}-{device}/checkpoint.h5" for device in ("cuda", "cpu")]
            self.assertLess(self.farthest(*found), 1e-4)
        self.train(out, ranks=2, precision="fp32", epochs=3, ema=0.9, max_steps=7, resume=True)  # with synchronous steps

    def test_the_ledger_adds_up(self):
        _, results = self.train_async("out", epochs=2)
        self.assert_adds_up(results["ledger"], "exposed_communication")

    def test_timeline(self):
        file = self.folder / "timeline.json"
        self.train_async("out", epochs=4, timeline=file)
        names = [event["name"] for event in json.loads(file.read_text()) if event["ph"] == "X" and event["pid"] == 1]
        self.assertEqual(names.count("step"), 3)  # the rounds from the sixth on, of 2, 3 and 2 steps
        self.assertEqual(names.count("forward"), 7)
        self.assertEqual(names.count("wait for steps"), 10)  # before each step, and at the end of a round

    def test_a_network_with_shared_embeddings(self):
        options = {"model": "gpt-tiny", "data": self.import_texts(), "length": 16, "global_batch": 4, "max_steps": 6,
                   "precision": "fp32", "staleness": 0}
        found = [self.train_async(device, device=device, **options) for device in ("cpu", "cuda")]
        self.assertLess(self.farthest(*(out / "checkpoint.h5" for out, _ in found)), 1e-4)


class Pipeline(GpuTest):
    def run_with(self, name, ranks, stages, **options):
        out = self.folder / name
        return out, self.train(out, ranks=ranks, pipeline=stages, accumulate=4, **options)

    def test_the_bits_of_the_whole_network(self):
        for model, ranks, stages, options in (("lenet", 2, 2, {"precision": "fp32", "environment": gpus(2)}),
                                              ("resnet20", 4, 2, {"precision": "bf16", "environment": gpus(4)}),
                                              ("lenet", 3, 3, {"precision": "bf16", "ema": 0.9})):
            with self.subTest(model=model, ranks=ranks, stages=stages):
                options = {"model": model, "max_steps": 4, **options}
                (whole, of_whole), (piped, of_piped) = (
                    self.run_with(f"{model}-{stages}/{name}", *how, **options)
                    for name, how in (("whole", (ranks // stages, 1)), ("piped", (ranks, stages))))
                self.assert_same_state(whole / "checkpoint.h5", piped / "checkpoint.h5")
                self.assertEqual(self.losses(of_whole), self.losses(of_piped))
                self.assertEqual(of_piped["pipeline"]["stages"], stages)

    def test_fp16(self):
        """All stages skip the same steps, also if the gradients of some of them only overflow."""
        options = {"precision": "fp16", "resume": True, "epochs": 3}
        for name, how in (("whole", (0, 1)), ("piped", (2, 2))):
            out, _ = self.run_with(name, *how, max_steps=2, **options)
            helper.edit_checkpoint(out / "checkpoint.h5",
                                   lambda file: file.attrs.modify("loss_scale", np.uint64(2 ** 24)))
            self.run_with(name, *how, max_steps=12, **options)
        self.assert_same_state(*(self.folder / name / "checkpoint.h5" for name in ("whole", "piped")))
        self.assertLess(self.scaling(read_checkpoint(self.folder / "piped/checkpoint.h5"))[0], 2 ** 24)

    def test_norms(self):
        options = {"precision": "fp32", "max_steps": 4, "metrics_every": 2, "clip_norm": 0.5}
        outs = [self.run_with(name, *how, **options)[0] for name, how in (("whole", (0, 1)), ("piped", (2, 2)))]
        norms = [[line["gradient_norm"] for line in helper.metrics(out) if line["kind"] == "train"] for out in outs]
        self.assertEqual(len(norms[0]), 2)
        np.testing.assert_allclose(norms[1], norms[0], rtol=1e-5)
        self.assertLess(self.farthest(*(out / "checkpoint.h5" for out in outs)), 1e-5)

    def test_resuming_elsewhere(self):
        options = {"precision": "fp32", "optimizer": "adamw", "lr": 0.001, "epochs": 2}
        whole, _ = self.run_with("whole", 0, 1, max_steps=9, device="cpu", **options)
        for steps, ranks, device in ((3, 2, "cuda"), (6, 2, "cpu"), (9, 3, "cuda")):
            parts, _ = self.run_with("parts", ranks, ranks, max_steps=steps, device=device, resume=True, **options)
        self.assertLess(self.farthest(whole / "checkpoint.h5", parts / "checkpoint.h5"), 1e-4)

    def test_a_shared_embedding(self):
        options = {"data": self.import_texts(), "model": "gpt-tiny", "length": 16, "precision": "fp32", "max_steps": 6,
                   "global_batch": 8}
        found = [self.run_with(name, *how, **options) for name, how in (("whole", (0, 1)), ("piped", (3, 3)))]
        for name in ("train_loss", "validation_loss"):
            whole, piped = (results["epochs"][0][name] for _, results in found)
            self.assertAlmostEqual(whole, piped, delta=1e-5 * whole)

    def test_a_killed_stage_ends_the_job(self):
        result = run(*self.training(self.folder / "out", pipeline=2, accumulate=4, epochs=20), "--inject",
                     "kill:rank=0,step=7", ranks=2)
        self.assertEqual(result.status, 128 + signal.SIGKILL, str(result))
        self.assertLess(result.seconds, 15)


def jpeg(pixels, mode="RGB", **options):
    """A JPEG file. With all colours, because those at a crop's edge are interpolated from less."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels, mode).save(file, "JPEG", quality=95, subsampling=0, **options)
    return file.getvalue()


class Decoding(GpuTest):
    """JPEG images are decoded by the emulated GPU, to the pixels of libjpeg."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = cls.write_jpegs(cls.shared / "plain.h5")
        inks = np.full((30, 30, 4), 90, np.uint8)
        pixels = helper.images(8, 3, 30, channels=3)[0]
        cls.mixed = cls.write_jpegs(cls.shared / "mixed.h5", {
            3: jpeg(pixels[0], progressive=True), 4: jpeg(inks, "CMYK"), 5: jpeg(pixels[1][:12]), 6: jpeg(pixels[2]) + b"x"})
        whole = jpeg(pixels[3])
        cls.bad = cls.write_jpegs(cls.shared / "bad.h5", {
            7: whole[:len(whole) // 2], 9: b"", 11: whole.replace(b"\xff\xda", b"\xff\xd9"), 12: b"no image"})

    @staticmethod
    def write_jpegs(path, others={}, train=48):
        """A data file of JPEG images; `others`: {training image: another file}."""
        encoded = {}
        for split, count, seed in (("train", train, 1), ("test", 16, 2)):
            pixels, labels = helper.images(count, seed, 30, channels=3)
            files = [jpeg(image[:, :30 - number % 3]) for number, image in enumerate(pixels)]
            if split == "train":
                for number, other in others.items():
                    files[number] = other
            encoded[split] = files, labels
        return helper.write_encoded(path, encoded)

    def options(self, data, **options):
        return {"data": data, "image": 24, "global_batch": 16, "model": "mlp", "workers": 2, "seed": 3, **options}

    def test_the_bits_of_the_cpu(self):
        for data in (self.plain, self.mixed):
            for decode in ("cpu", "gpu"):
                result = self.succeed(*self.training(self.folder / data.stem / decode, **self.options(data, decode=decode)),
                                      ranks=2)
                self.assertEqual("2 threads on each rank and the GPU's JPEG decoder, 3 batches ahead" in result.out,
                                 decode == "gpu", result)
            self.assert_same_state(*(self.folder / data.stem / decode / "checkpoint.h5" for decode in ("cpu", "gpu")))

    def test_bench_input_counts_the_images_that_the_gpu_decoded(self):
        for data, least, most in ((self.plain, 1, 1), (self.mixed, 0.85, 0.95)):
            file = self.folder / "input.json"
            out = self.succeed("bench", "input", "--data", data, "--image", 24, "--seconds", 0.2, "--batch", 16,
                               "--decode", "gpu", "--json", file).out
            self.assertRegex(out, r"JPEG images are decoded by the GPU\n.* and the GPU's JPEG decoder, .*\n.*images/s.*\n"
                                  r"the GPU decoded [0-9.]+ % of the images\n")
            found = json.loads(file.read_text())
            self.assertGreaterEqual(found["images_by_gpu"], least * found["images"] - 16)
            self.assertLessEqual(found["images_by_gpu"], most * found["images"] + 16)

    def test_bad_images_are_those_of_the_cpu(self):
        found = []
        for decode in ("cpu", "gpu"):
            out = self.folder / decode
            arguments = self.training(out, **self.options(self.bad, decode=decode, on_bad_sample="skip"))
            result = self.succeed(*arguments)
            epochs = json.loads((out / "results.json").read_text())["epochs"]
            found.append(([epoch["skipped"] for epoch in epochs], sorted(result.messages)))
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0][0], [4])
        self.assertRegex("\n".join(found[0][1]), r"bad.h5: train sample 7: a damaged JPEG image: Premature end")
        self.assert_same_state(self.folder / "cpu/checkpoint.h5", self.folder / "gpu/checkpoint.h5")
        result = run(*self.training(self.folder / "fails", **self.options(self.bad, decode="gpu")))
        self.assertEqual(result.status, 1)
        self.assertRegex("\n".join(result.messages), r"bad.h5: train sample \d+: .*use --on-bad-sample skip")

    def test_auto_measures_and_a_resumed_run_keeps_the_choice(self):
        out = self.folder / "out"
        options = self.options(self.plain, epochs=2)
        result = self.succeed(*self.training(out, **options, max_steps=2), ranks=2)
        measured = re.search(r"JPEG images are decoded by the (GPU|CPU): preparing an image takes a thread [0-9.]+ ms with "
                             r"the GPU's decoder, [0-9.]+ ms without", result.out)
        self.assertTrue(measured, result)
        chosen = measured[1] == "GPU"
        self.assertEqual(read_checkpoint(out / "checkpoint.h5")["attributes"]["gpu_decodes"], chosen)
        helper.edit_checkpoint(out / "checkpoint.h5",
                               lambda file: file.attrs.modify("gpu_decodes", np.uint64(not chosen)))
        result = self.succeed(*self.training(out, **options, resume=True), ranks=2)
        self.assertIn(f"JPEG images are decoded by the {'CPU' if chosen else 'GPU'} as before", result.out)
        self.assertEqual(read_checkpoint(out / "checkpoint.h5")["attributes"]["gpu_decodes"], not chosen)
        result = self.succeed("eval", "--data", self.plain, "--checkpoint", out, "--device", "cuda")
        test_loss = json.loads((out / "results.json").read_text())["test_loss"]
        self.assertIn(f"loss {test_loss:.4f}", result.out)

    def test_a_gpu_without_a_decoder(self):
        options = self.options(self.plain, max_steps=1)
        for kind, why in (("missing", "nvJPEG cannot be loaded: "),
                          ("unsupported", "this GPU has no hardware decoder for JPEG images")):
            environment = {"ANNULUS_EMULATED_NVJPEG": kind}
            result = self.succeed(*self.training(self.folder / kind, **options), environment=environment)
            self.assertIn(f"JPEG images are decoded by the CPU: {why}", result.out)
            self.assert_refused(run(*self.training(self.folder / "refused", **options, decode="gpu"),
                                    environment=environment), f"--decode gpu: {why}")
            self.assertRegex(self.succeed("doctor", environment=environment).out, f"jpeg decoder +no: {why}")
        self.assertRegex(self.succeed("doctor").out, "jpeg decoder +yes: the GPU's")
        for other, why in (({"device": "cpu"}, "the device is a CPU"),
                           ({"data": self.color, "image": None}, "the data has no JPEG images; remove the option")):
            self.assert_refused(run(*self.training(self.folder / "refused", **{**options, **other}, decode="gpu")),
                                f"--decode gpu: {why}")

    def test_images_that_the_decoder_skips(self):
        for kind in ("complete", "skipping"):
            self.train(self.folder / kind, **self.options(self.plain, decode="gpu"),
                       environment={"ANNULUS_EMULATED_NVJPEG": kind})
        self.assert_same_state(self.folder / "complete/checkpoint.h5", self.folder / "skipping/checkpoint.h5")


class Devices(GpuTest):
    SHARED = r"warning +ranks 0, 1 share a GPU .*start one rank per GPU"

    def test_ranks_that_share_a_gpu_are_warned(self):
        for count in (1, 2):
            with self.subTest(gpus=count):
                result = self.succeed(*self.training(self.folder / str(count), max_steps=1), ranks=2,
                                      environment=gpus(count))
                (self.assertRegex if count == 1 else self.assertNotRegex)(result.out, self.SHARED)

    def test_no_gpu(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = run(*self.training(self.folder / "out"), ranks=ranks, environment=gpus(0))
                self.assert_refused(result, r"cannot use a GPU: no CUDA-capable device is detected; use --device cpu")
                self.assertFalse((self.folder / "out").exists(), "it began to write")

    def test_auto_is_the_cpu_without_a_gpu(self):
        results = self.train(self.folder / "out", ranks=2, device="auto", max_steps=2, environment=gpus(0))
        self.assertRegex(results["device"], r"^cpu, ")

    def test_a_cpu_refuses_16_bit_precisions(self):
        for count, why in ((0, r"no CUDA-capable device is detected"), (1, r"--device cuda")):
            with self.subTest(gpus=count):
                result = run(*self.training(self.folder / "out", device="cpu", precision="bf16"), ranks=2,
                             environment=gpus(count))
                self.assert_refused(result, r"device cpu supports only fp32, not bf16: leave out --precision.*" + why)

    def mixed(self, first, second, **options):
        """Two ranks that see different numbers of GPUs."""
        arguments = self.training(self.folder / f"mixed-{first}-{second}", max_steps=2, **options)
        count = "ANNULUS_EMULATED_GPUS"
        start = command(arguments, 1)
        start[-len(arguments) - 1:-len(arguments) - 1] = ["-x", f"{count}={first}"]
        return run(*arguments, prefix=start + [":", "-np", "1", "-x", f"{count}={second}"])

    def test_nodes_with_and_without_a_gpu(self):
        for counts in ((1, 0), (0, 1)):
            with self.subTest(gpus=counts):
                result = self.mixed(*counts, device="auto")
                self.assertEqual(result.status, 0, str(result))
                self.assertIn("lenet on 2 ranks, cpu, ", result.out)
                self.assertRegex(result.out, r"warning +1 of 2 ranks have a GPU, which is not used")
                without = "" if counts[0] == 0 else "rank 1: "
                self.assert_refused(self.mixed(*counts), without + r"cannot use a GPU: no CUDA-capable device")

    def test_doctor(self):
        for count, ranks in ((0, 0), (1, 2), (2, 2)):
            with self.subTest(gpus=count, ranks=ranks):
                result = self.succeed("doctor", ranks=ranks, environment=gpus(count))
                found = re.findall(r"yes: 0000:\w\w:00\.0, emulated GPU$", result.out, re.M)
                self.assertEqual(len(found), count, str(result))
                self.assertEqual("share a GPU (" in result.out, count == 1 and ranks == 2, str(result))
                if ranks == 0:
                    continue
                for name in ("auto", "shm", "ring", "message-ring", "doubling", "mpi", "direct"):
                    self.assertRegex(result.out, rf"(?m)^  {name} +yes: ")
                nccl = r"no: NCCL does not support two ranks on one GPU" if count == 1 else r"yes: NCCL's all-reduce"
                self.assertRegex(result.out, r"(?m)^  nccl +" + nccl)


class Nodes(GpuTest, hosts_test.HostsTest):
    def test_all_reduces_between_hosts(self):
        options = {"precision": "fp32", "max_steps": 3}
        self.train(self.folder / "one", ranks=3, **options)
        for name, description in {
                "auto": r"NCCL's all-reduce \(the ranks are on several nodes, and each has a GPU of its own\)",
                "ring": r".*, staged through pinned memory .*"
                        r"\(the ranks are on several nodes, and MPI does not support GPU memory; "}.items():
            with self.subTest(name):
                out = self.folder / name
                result = helper.finish(self.launch(self.training(out, all_reduce=name, **options)))
                self.assertEqual(result.status, 0, str(result))
                self.assertRegex(result.out, "all-reduce +" + description)
                self.assertNotIn("share a GPU", result.out)
                self.assertLess(self.farthest(self.folder / "one/checkpoint.h5", out / "checkpoint.h5"), 1e-5)


class Faults(GpuTest):
    def inject(self, fault, ranks=2, **options):
        return run(*self.training(self.folder / "out", stall_timeout=STALL, epochs=2, **options), "--inject", fault,
                   ranks=ranks)

    def test_a_killed_rank_ends_the_job_and_the_checkpoint_is_complete(self):
        result = self.inject("kill:rank=1,step=7", ranks=3, checkpoint_every=3)
        self.assertEqual(result.status, 128 + signal.SIGKILL, str(result))
        self.assertLess(result.seconds, 10)
        self.assertEqual(read_checkpoint(self.folder / "out/checkpoint.h5")["attributes"]["step"], 6)
        self.train(self.folder / "out", ranks=3, epochs=2, resume=True)
        self.train(self.folder / "whole", ranks=3, epochs=2)
        self.assert_same_state(self.folder / "out/checkpoint.h5", self.folder / "whole/checkpoint.h5")

    def test_a_hanging_rank_is_named(self):
        result = self.inject("hang:rank=1,step=3", all_reduce="direct")
        self.assertEqual(result.status, 1, str(result))
        self.assertLess(result.seconds, STALL + 10)
        stands = (r"in step 3: waiting for bucket 1 of (\d+); all-reduce: bucket 1 of \1, all arrays are ready, "
                  r"step 1 of 1, waiting for rank 1$")
        self.assertRegex(result.err, r"(?m)rank 0: no progress .* " + stands)
        self.assertRegex(result.err, r"rank 1: no progress .* in step 3: beginning the step")

    def test_a_slow_rank_is_no_stall(self):
        result = self.inject("delay:rank=1,step=3,seconds=0.7", max_steps=5)
        self.assertEqual(result.status, 0, str(result))

    def test_a_signal_leaves_a_checkpoint(self):
        out = self.folder / "out"
        process = helper.start(*self.training(out, epochs=1000000, precision="fp16"))
        self.await_checkpoint(process, out)
        process.send_signal(signal.SIGTERM)
        result = helper.finish(process)
        self.assertEqual(result.status, helper.STOPPED, str(result))
        self.assertLess(result.seconds, 10)
        step = int(read_checkpoint(out / "checkpoint.h5")["attributes"]["step"])
        self.train(self.folder / "whole", precision="fp16", epochs=1000000, max_steps=step)
        self.assert_same_state(self.folder / "whole/checkpoint.h5", out / "checkpoint.h5")

    def test_a_non_finite_loss_ends_the_run(self):
        for options in ({"precision": "fp32", "defer": 0.5}, {"precision": "fp16"},
                        {"precision": "bf16", "optimizer": "adamw", "lr": 1e36}):
            with self.subTest(**options):
                out = self.folder / options["precision"]
                result = run(*self.training(out, **{"lr": 1e30, "checkpoint_every": 1, **options}), ranks=2)
                self.assert_refused(result, r"step \d+ \(epoch 1\): the loss is -?(nan|inf).*lower --lr|"
                                            r"(no longer|not) finite.*lower --lr")
                if (out / "checkpoint.h5").exists():
                    self.assert_finite(out / "checkpoint.h5")


class Measuring(GpuTest):
    def test_the_ledger_adds_up(self):
        ledger = self.train(self.folder / "out", ranks=2, epochs=2)["ledger"]
        self.assert_adds_up(ledger, "compute", "optimizer")
        for rank, wall in enumerate(ledger["ranks"]["wall"]):
            self.assertAlmostEqual(sum(ledger["ranks"][part][rank] for part in PARTS), wall, delta=1e-6 * wall)
            self.assertGreaterEqual(ledger["ranks"]["rest"][rank], -0.02 * wall)

    def test_timeline(self):
        file = self.folder / "timeline.json"
        # On the GPU: the host's thread would begin each all-reduce before the GPU has computed the gradients.
        options = {"epochs": 2, "bucket": "64KiB", "timeline": file, "timeline_steps": 3, "all_reduce": "direct"}
        result = self.succeed(*self.training(self.folder / "out", **options), ranks=2)
        wall = 1e6 * result.seconds
        lanes = {}
        for event in json.loads(file.read_text()):
            if event["ph"] == "X":
                self.assertTrue(0 <= event["ts"] and 0 <= event["dur"] and event["ts"] + event["dur"] <= wall, event)
                lanes.setdefault((event["pid"], event["tid"]), []).append(event)
        self.assertEqual(set(lanes), {(rank, lane) for rank in range(2) for lane in (RUN, STEP, ALL_REDUCE)})
        for rank in range(2):
            self.check_steps(lanes[rank, STEP], lanes[rank, ALL_REDUCE])

    def check_steps(self, events, sums):
        steps = [event for event in events if event["name"] == "step"]
        self.assertEqual([event["args"]["step"] for event in steps], [6, 7, 8])
        end = 0
        for step in steps:
            self.assertGreaterEqual(step["ts"], end)
            of_step = [e for e in events if e["args"].get("step") == step["args"]["step"]]
            forward, backward = (self.only(of_step, name) for name in ("forward", "backward"))
            self.assertGreaterEqual(backward["ts"], forward["ts"] + forward["dur"] - 0.002)
            layers = [e for e in of_step if e["name"].startswith("conv1")]
            for layer, around in zip(sorted(layers, key=lambda e: e["ts"]), (forward, backward), strict=True):
                self.assertGreaterEqual(layer["ts"], around["ts"] - 0.002)
                self.assertLessEqual(layer["ts"] + layer["dur"], around["ts"] + around["dur"] + 0.002)
            self.check_sums(of_step, [e for e in sums if e["args"].get("step") == step["args"]["step"]], backward)
            end = step["ts"]

    def only(self, events, name):
        found = [event for event in events if event["name"] == name]
        self.assertEqual(len(found), 1, name)
        return found[0]

    def check_sums(self, events, sums, backward):
        of_buckets = [event for event in sums if event["name"].startswith("all-reduce of bucket")]
        self.assertGreater(len(of_buckets), 1)
        self.assertLess(min(e["ts"] for e in of_buckets), backward["ts"] + backward["dur"], "none ran beside backward")
        for event in of_buckets:
            self.assertGreaterEqual(event["ts"], backward["ts"])
        self.assertEqual(sum(e["name"].startswith("update of bucket") for e in events), len(of_buckets))

    def test_memory_energy_and_utilization(self):
        without_others = {"ANNULUS_SYSFS": str(self.folder)}
        result = self.succeed(*self.training(self.folder / "out", epochs=20), ranks=2, environment=without_others)
        results = json.loads((self.folder / "out/results.json").read_text())
        self.assertTrue(results["deterministic"])
        memory = results["gpu_memory_bytes"]
        self.assertAlmostEqual(memory["states"], 4 * 61706, delta=16384)  # lenet's parameters, with padded channels
        self.assertAlmostEqual(memory["gradients"], memory["states"], delta=4096)
        self.assertAlmostEqual(memory["weights"], 1.5 * memory["states"], delta=4096)
        self.assertGreater(memory["activations"], 8 * 28 * 28 * 2)
        self.assertGreater(memory["workspaces"], 0)
        self.assertLessEqual(sum(memory.values()) - memory["in_use"], memory["in_use"])
        # The emulated GPU, which both ranks share, takes 100 W.
        energy, wall = results["energy"], results["ledger"]["wall"]
        self.assertEqual(energy["source"], "NVML")
        self.assertAlmostEqual(energy["joules_per_step"] * results["ledger"]["steps"], 100 * wall, delta=30 * wall + 1)
        self.assertLessEqual(energy["kilowatt_hours"] * 3.6e6, 100 * result.seconds)
        self.assertGreater(results["train_mfu"], 0)
        for text in (r"of arrays on a GPU \(weights 38\d\.\d KiB, gradients 25\d\.\d KiB, states 25\d\.\d KiB, activations ",
                     r"energy of the GPUs: [\d.]+ J a step, ", r"MFU .* measured peak of matrix products on all GPUs"):
            self.assertRegex(result.out, text)
        row, = self.rows("step", "--model", "mlp", "--batch", 4, "--seconds", 1, ranks=0, environment=without_others)
        self.assertAlmostEqual(row["energy"]["joules_per_step"], 100 * row["median_seconds"], delta=row["median_seconds"] * 50)

    def test_tuned_plans_are_kept_if_the_passes_are_faster(self):
        file = self.folder / "plans.json"
        file.write_text('{"format": "annulus convolution tuning 1", "platforms": {}}')
        step = ["bench", "step", "--device", "cuda", "--model", "lenet", "--batch", 4, "--seconds", 0.01, "--tune", file]
        times = r"annulus: forward and backward take (\S+) ms, with tuned plans (\S+) ms: (these|the former) are used"
        plain, tuned, used = re.fullmatch(times, self.succeed(*step).messages[0]).groups()
        self.assertEqual(used, "these" if float(tuned) <= float(plain) else "the former")
        content = json.loads(file.read_text())
        known, = content["passes"].values()
        known.update({"plain_seconds": 0.25, "tuned_seconds": 0.5})
        file.write_text(json.dumps(content))
        self.assertEqual(re.fullmatch(times, self.succeed(*step).messages[0]).groups(), ("250.000", "500.000", "the former"))

    def test_unknown_energy(self):
        results = self.train(self.folder / "out", model="mlp", max_steps=2, environment={"ANNULUS_EMULATED_NVML": "missing"})
        self.assertEqual(results["energy"], "unknown")

    def test_a_batch_that_does_not_fit(self):
        small = {"ANNULUS_EMULATED_MEMORY": "48"}
        step = ["bench", "step", "--device", "cuda", "--model", "lenet", "--seconds", 0.01]
        result = run(*step, "--batch", 4096, environment=small)
        self.assert_refused(result, r"takes at least [\d.]+ GiB of memory with a batch of 4096 images of 28x28x1, and this "
                                    r"rank's share of the GPU's free memory has 0\.0 GiB: a batch of (\d+) would fit; use")
        batch = int(re.search(r"a batch of (\d+) would fit", result.err)[1])
        self.assertEqual(run(*step, "--batch", batch, environment=small).status, 0)
        self.assert_refused(run(*step, "--batch", batch + batch // 4, environment=small), "would fit")

    def rows(self, *arguments, ranks=2, environment=None):
        file = self.folder / "bench.json"
        self.succeed("bench", *arguments, "--device", "cuda", "--json", file, ranks=ranks, environment=environment)
        return json.loads(file.read_text())["rows"]

    def test_bench_step(self):
        rows = self.rows("step", "--model", "lenet", "--batch", 4, "--seconds", 0.2, "--all-reduce", "auto,none")
        self.assertEqual([row["algorithm"] for row in rows], ["auto", "none"])
        for row in rows:
            self.assertGreater(row["compute_seconds"], 0)
            self.assertLessEqual(row["compute_seconds"], row["median_seconds"])
            self.assertAlmostEqual(row["images_per_second"] * row["median_seconds"], 8, delta=1e-6)
        self.assertEqual(rows[1]["ledger"]["exposed_communication"], 0)

    def test_bench_all_reduce(self):
        rows = self.rows("all-reduce", "--sizes", "4KiB,64KiB", "--seconds", 0.2, "--algorithms", "auto,mpi")
        self.assertEqual({(row["algorithm"], row["bytes"]) for row in rows},
                         {(a, b) for a in ("auto", "mpi") for b in (4096, 65536)})
        for row in rows:
            self.assertTrue(0 < row["min_seconds"] <= row["median_seconds"] and math.isfinite(row["median_seconds"]))


if __name__ == "__main__":
    helper.main()
