"""Predicting more ranks from a step's profile: it reads bench's output, and its numbers are consistent."""
import json

import onnx

import helper
import network_file_test

KIB, MIB = 1 << 10, 1 << 20


def profile(layers=4, gradient_bytes=MIB, batch=8):
    """A step of 60 ms: 20 forward, 40 backward, in equal layers."""
    layer = {"forward_ms": 20 / layers, "backward_ms": 40 / layers, "gradient_bytes": [gradient_bytes]}
    return {"profile": {"model": "made", "batch": batch, "ranks": 1, "input_ms": 0, "optimizer_ms": 0,
                        "layers": [{"name": f"layer{n}", **layer} for n in range(layers)]}}


def text_profile():
    """The step of profile() for windows of 16 tokens, of a vocabulary of 256 with rows of 4 KiB."""
    found = profile()
    found["profile"] |= {"length": 16,
                         "embedding": {"vocabulary": 256, "row_bytes": 4 * KIB, "own_ms": 2, "row_us": 10}}
    return found


def different(tokens, vocabulary=256):
    """Returns the expected number of different tokens among this number of random ones."""
    return vocabulary * (1 - (1 - 1 / vocabulary) ** tokens)


class Predict(helper.ProgramTest):
    def write(self, name, content):
        file = self.folder / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    def predict(self, step, *arguments, **options):
        """Its output, and its predictions by number of ranks."""
        out = self.folder / "prediction.json"
        result = self.succeed("predict-scaling", step, *arguments, "--json", out, **options)
        found = json.loads(out.read_text())
        return result, found, {row["ranks"]: row for row in found["predictions"]}

    def on_a_network(self, *arguments, step=None):
        return self.predict(step or self.write("step.json", profile()), "--latency", "20us", "--bandwidth", "1 Gbit/s",
                            *arguments)

    def test_reads_the_output_of_bench(self):
        step, sums = self.folder / "step.json", self.folder / "sums.json"
        self.succeed("bench", "step", "--model", "lenet", "--batch", 16, "--seconds", 0.3, "--threads", 1, "--json", step)
        self.succeed("bench", "all-reduce", "--sizes", "4KiB,1MiB,16MiB", "--algorithms", "message-ring,mpi", "--seconds",
                     0.05, "--json", sums, ranks=2)
        timed = json.loads(step.read_text())
        found, ledger = timed["profile"], timed["rows"][0]["ledger"]
        self.assertEqual([layer["name"] for layer in found["layers"]][:1], ["input"])
        gradients = sum(sum(layer["gradient_bytes"]) for layer in found["layers"])
        trained = 4 * 61_706
        self.assertGreater(gradients, trained)
        self.assertLess(gradients, 1.2 * trained)  # and padding to a multiple of this processor's vector length
        computed = sum(layer["forward_ms"] + layer["backward_ms"] for layer in found["layers"])
        self.assertGreater(computed, 0)
        self.assertAlmostEqual(computed, 1e3 * ledger["compute"] / ledger["steps"])

        # A busy machine can measure that larger arrays take less time, which no link explains.
        measured = json.loads(sums.read_text())
        self.assertTrue(all(row["median_seconds"] > 0 for row in measured["rows"]))
        for row in measured["rows"]:
            row["median_seconds"] = row["bytes"] / 1e9
        self.write("sums.json", measured)

        result, predicted, rows = self.predict(step, "--fit", sums)
        self.assertEqual(predicted["model"], "lenet")
        self.assertIn("message-ring of 2 ranks on one node, 3 sizes, in sums.json", predicted["link"]["source"])
        self.assertGreaterEqual(predicted["link"]["residual"], 0)
        self.assertGreater(predicted["link"]["bandwidth_gbit_s"], 0)
        self.assertAlmostEqual(rows[1]["compute_ms"], computed)
        self.assertAlmostEqual(rows[1]["step_ms"], computed + found["input_ms"] + found["optimizer_ms"])
        self.assertEqual({ranks: row["extrapolated"] for ranks, row in rows.items()}, {1: False, 2: False})
        self.assertIn("the prediction ends here: 2 ranks were measured on one node", result.out)
        # Two nodes are two links of a network, which more nodes have, too.
        measured["machine"]["ranks_on_root_node"] = 1
        self.write("sums.json", measured)
        result, _, rows = self.predict(step, "--fit", sums, "--ranks", "1,2,4")
        self.assertEqual([rows[ranks]["extrapolated"] for ranks in (1, 2, 4)], [False, False, True])
        self.assertEqual(result.out.count("extrapolated"), 1)

    def test_the_network_of_an_onnx_file(self):
        net, step = self.folder / "net.onnx", self.folder / "step.json"
        onnx.save(network_file_test.small()[0], net)
        self.succeed("bench", "step", "--model", net, "--batch", 8, "--seconds", 0.1, "--json", step)
        _, predicted, rows = self.on_a_network("--ranks", "1,4", step=step)
        self.assertEqual(predicted["model"], "net.onnx")
        self.assertGreater(rows[4]["images_per_second"], rows[1]["images_per_second"])

    def test_numbers_are_consistent(self):
        result, found, rows = self.on_a_network()
        self.assertEqual(list(rows), [2**n for n in range(13)])
        link = found["link"]
        self.assertAlmostEqual(link["latency_us"], 20)
        self.assertAlmostEqual(link["bandwidth_gbit_s"], 1)
        self.assertEqual((link["residual"], link["source"]), (None, "--latency and --bandwidth"))
        self.assertEqual((rows[1]["communication_ms"], rows[1]["exposed_ms"], rows[1]["efficiency"]), (0, 0, 1))
        for ranks, row in rows.items():
            self.assertEqual((row["batch_per_rank"], row["global_batch"], row["nodes"]), (8, 8 * ranks, ranks))
            self.assertAlmostEqual(row["images_per_second"], 8e3 * ranks / row["step_ms"])
            self.assertAlmostEqual(row["efficiency"], rows[1]["step_ms"] / row["step_ms"])
            self.assertAlmostEqual(row["step_ms"], row["compute_ms"] + row["exposed_ms"])
        self.assertRegex(result.out, r"times the 133\.3 images/s predicted for 1 rank at 8 images")

    def test_memory_of_one_node_is_no_network(self):
        step = self.write("step.json", profile())
        def sums(factors, on_node=2):
            return self.write("sums.json", {"machine": {"ranks": 2, "ranks_on_root_node": on_node}, "wire": "fp32", "rows": [
                {"algorithm": "message-ring", "bytes": size, "median_seconds": factor * size / 5e9}
                for size, factor in zip((4 * KIB, 64 * KIB, MIB, 64 * MIB), factors)]})
        _, _, rows = self.predict(step, "--fit", sums((1, 1, 1, 1)))
        self.assertEqual(list(rows), [1, 2])
        error = self.fail_with("predict-scaling", step, "--fit", sums((1, 1, 1, 1)), "--ranks", "2,4096")
        self.assertRegex(error, "--ranks 4096: 2 ranks were measured on one node.*--latency and --bandwidth")
        error = self.fail_with("predict-scaling", step, "--fit", sums((0.4, 1, 1, 2.5), 1))
        self.assertRegex(error, r"sums.json: cannot fit a link: the ring's times are off by \d\d\.\d % .* 20 % is the limit")

    def fail_with(self, *arguments):
        result = helper.run(*arguments)
        self.assertEqual((result.status, len(result.messages)), (1, 1), str(result))
        return result.messages[0]

    def test_an_all_reduce_on_two_ranks(self):
        # 4 MiB in one bucket: a chunk of 2 MiB twice, with consecutive segments; no overlap.
        _, _, rows = self.on_a_network("--ranks", 2, "--bucket", "4MiB")
        self.assertAlmostEqual(rows[2]["communication_ms"], 4 * MIB * 8 / 1e6 + 0.02, delta=1e-6)
        self.assertAlmostEqual(rows[2]["exposed_ms"], rows[2]["communication_ms"])
        # Four buckets: all but the last overlap with backward.
        _, _, four = self.on_a_network("--ranks", 2, "--bucket", "1MiB")
        self.assertAlmostEqual(four[2]["exposed_ms"], MIB * 8 / 1e6 + 0.02, delta=1e-6)
        # Half of them deferred: sent after the last one, and waited for after 5 ms of forward each.
        _, _, deferred = self.on_a_network("--ranks", 2, "--bucket", "1MiB", "--defer", 0.5)
        self.assertAlmostEqual(deferred[2]["exposed_ms"], 3 * four[2]["exposed_ms"] - 10)
        _, _, half = self.on_a_network("--ranks", 2, "--bucket", "4MiB", "--wire", "bf16")
        self.assertAlmostEqual(half[2]["communication_ms"], 2 * MIB * 8 / 1e6 + 0.02, delta=1e-6)

    def test_what_if(self):
        _, _, rows = self.on_a_network("--ranks", "1,16", "--batch", 16)
        self.assertAlmostEqual(rows[1]["compute_ms"], 120)
        self.assertEqual(rows[16]["global_batch"], 256)
        _, _, slow = self.on_a_network("--ranks", "16", "--slow-down", 1.5)
        self.assertGreater(slow[16]["compute_ms"], 60)
        _, _, shared = self.on_a_network("--ranks", "1,4", "--contention", 1.5, "--waiting", 0.12)
        self.assertAlmostEqual(shared[1]["step_ms"], 60)
        self.assertAlmostEqual(shared[4]["compute_ms"], 90)
        self.assertAlmostEqual(shared[4]["waiting_ms"], 90 * 0.12 * (1 / 2 + 1 / 3 + 1 / 4))
        self.assertAlmostEqual(shared[4]["step_ms"], 90 + shared[4]["waiting_ms"] + shared[4]["exposed_ms"])
        nodes = ("--ranks-per-node", 4, "--node-latency", "1us", "--node-bandwidth", "10GB/s")
        result, _, rows = self.on_a_network("--ranks", "4,16", *nodes)
        self.assertIn("hierarchical", result.out)
        self.assertEqual((rows[4]["nodes"], rows[16]["nodes"]), (1, 4))
        self.assertLess(rows[4]["communication_ms"], 0.1 * rows[16]["communication_ms"])

    def test_the_time_to_the_same_loss(self):
        run = self.write("results.json", {"gradient_noise": {"scale": 24, "low": 8, "high": 56}})
        result, found, rows = self.on_a_network("--ranks", "1,2,4,1024", "--contention", 1.25, "--all-reduce", "message-ring",
                                                "--noise", run)
        self.assertEqual([rows[1][f"loss_speedup{end}"] for end in ("", "_low", "_high")], [1, 1, 1])
        two = rows[1]["step_ms"] / rows[2]["step_ms"]  # batches of 8 and 16
        self.assertAlmostEqual(rows[2]["loss_speedup"], two * 4 / 2.5)
        self.assertAlmostEqual(rows[2]["loss_speedup_low"], two * 2 / 1.5)
        self.assertAlmostEqual(rows[2]["loss_speedup_high"], two * 8 / 4.5)
        self.assertEqual(found["noise"], {"scale": 24, "low": 8, "high": 56, "source": str(run), "ranks_worth": 4})
        self.assertRegex(result.out, r"\n4 ranks: 1\.\d\dx \[1\.\d\d, 1\.\d\d\] faster to the same loss; beyond them less than 5 %")
        _, plain, _ = self.on_a_network("--ranks", "1,2")
        self.assertNotIn("noise", plain)
        bad = self.write("bad.json", {"status": "complete"})
        result = helper.run("predict-scaling", self.write("step.json", profile()), "--latency", "1us", "--bandwidth", "1Gbit/s",
                            "--noise", bad)
        self.assertEqual(result.status, 1, str(result))
        self.assertIn("has no gradient noise", result.messages[0])

    def test_a_language_model(self):
        result, found, rows = self.on_a_network("--ranks", "1,2,64", "--bucket", "1MiB",
                                                step=self.write("text.json", text_profile()))
        self.assertIn("made, 8 windows of 16 tokens on each rank: profile of 4 layers, 8 windows of 16 tokens, 1 rank\n",
                      result.out)
        self.assertRegex(result.out, r" tokens/s .*efficiency")
        self.assertRegex(result.out, r"rows of 256 different tokens of 64 ranks")
        self.assertNotIn("images", result.out + json.dumps(found))
        for ranks, row in rows.items():
            different_tokens = round(different(8 * 16 * ranks))
            self.assertAlmostEqual(row["embedding_ms"], 2 + 0.01 * different_tokens)
            self.assertAlmostEqual(row["step_ms"], 60 + row["embedding_ms"] + row["exposed_ms"])
            self.assertAlmostEqual(row["tokens_per_second"], 1e3 * 8 * 16 * ranks / row["step_ms"])
            self.assertAlmostEqual(row["efficiency"], rows[1]["step_ms"] / row["step_ms"])
        self.assertEqual((rows[1]["exposed_ms"], found["baseline"]["tokens_per_second"]), (0, rows[1]["tokens_per_second"]))
        # On two ranks a bucket of 1 MiB is left after backward, then the rows. Meanwhile this rank's rows are added up.
        _, _, ring = self.on_a_network("--ranks", 2, "--bucket", "1MiB", "--all-reduce", "message-ring",
                                       step=self.folder / "text.json")
        sent = MIB + round(different(256)) * 4 * KIB
        self.assertAlmostEqual(ring[2]["exposed_ms"], sent * 8 / 1e6 + 2 * 0.02 - 2, delta=1e-6)
        _, _, deferred = self.on_a_network("--ranks", 2, "--bucket", "1MiB", "--all-reduce", "message-ring", "--defer", 0.25,
                                           step=self.folder / "text.json")
        self.assertAlmostEqual(deferred[2]["communication_ms"], ring[2]["communication_ms"])
        _, _, more = self.on_a_network("--ranks", 1, "--batch", 16, step=self.folder / "text.json")
        self.assertAlmostEqual(more[1]["embedding_ms"], 2 * 2 + 0.01 * round(different(256)))

    def test_gradients_that_are_final_before_backward_ends(self):
        step = profile(layers=1, gradient_bytes=2 * MIB)
        arguments = ("--ranks", 2, "--bucket", "1MiB", "--all-reduce", "message-ring")
        one_bucket = MIB * 8 / 1e6 + 0.02
        _, _, late = self.on_a_network(*arguments, step=self.write("late.json", step))
        self.assertAlmostEqual(late[2]["exposed_ms"], 2 * one_bucket, delta=1e-6)
        step["profile"]["layers"][0]["early"] = [{"gradient_bytes": MIB, "ms": 10}, {"gradient_bytes": 2 * MIB, "ms": 20}]
        _, _, early = self.on_a_network(*arguments, step=self.write("early.json", step))
        self.assertEqual(early[2]["exposed_ms"], 0)
        # Backward takes 20 ms, and the all-reduces run one after the other from its fifth on.
        _, _, half = self.on_a_network(*arguments, "--batch", 4, step=self.folder / "early.json")
        self.assertAlmostEqual(half[2]["exposed_ms"], 2 * one_bucket - 15, delta=1e-6)

    def test_a_measured_language_model(self):
        step = self.folder / "step.json"
        self.succeed("bench", "step", "--model", "gpt-tiny", "--length", 32, "--batch", 4, "--seconds", 0.3, "--threads", 1,
                     "--json", step, ranks=2)
        measured = json.loads(step.read_text())
        found, row = measured["profile"], measured["rows"][0]
        self.assertEqual((found["length"], found["batch"], found["ranks"]), (32, 4, 2))
        layers = {layer["name"]: layer for layer in found["layers"]}
        # The shared weights' gradient is the head's: all-reduced once, and final when backward begins.
        self.assertEqual(layers["wte"]["gradient_bytes"], [])
        vocabulary, width = found["embedding"]["vocabulary"], 64
        self.assertIn(found["embedding"]["row_bytes"], range(4 * width, 4 * width + 64))
        self.assertIn(vocabulary * found["embedding"]["row_bytes"], layers["loss"]["gradient_bytes"])
        # The table is final before the head's backward ends, all of it at the same time because it is small.
        early, = layers["loss"]["early"]
        self.assertEqual(early["gradient_bytes"], sum(layers["loss"]["gradient_bytes"]))
        self.assertLess(0, early["ms"])
        self.assertLess(early["ms"], layers["loss"]["backward_ms"])
        self.assertFalse([layer for layer in found["layers"] if "early" in layer and layer["name"] != "loss"])
        self.assertGreater(found["embedding"]["own_ms"] + found["embedding"]["row_us"], 0)
        self.assertEqual(row["tokens_per_second"], 2 * 4 * 32 / row["median_seconds"])
        _, predicted, rows = self.on_a_network("--ranks", "1,2,4", step=step)
        self.assertEqual(predicted["model"], "gpt-tiny")
        computed = sum(layer["forward_ms"] + layer["backward_ms"] for layer in found["layers"])
        self.assertAlmostEqual(rows[1]["compute_ms"], computed)
        self.assertAlmostEqual(rows[1]["step_ms"],
                               computed + found["input_ms"] + found["optimizer_ms"] + rows[1]["embedding_ms"])
        self.assertGreater(rows[4]["exposed_ms"], rows[2]["exposed_ms"])

    def test_under_mpirun_only_the_root_prints(self):
        result, _, _ = self.predict(self.write("step.json", profile()), "--latency", "1us", "--bandwidth", "10Gbit/s",
                                    "--ranks", 8, ranks=2)
        self.assertEqual(result.out.count("predicted for 1 rank"), 1, str(result))

    def test_invalid_options(self):
        good, network = self.write("step.json", profile()), ("--latency", "1us", "--bandwidth", "1Gbit/s")
        bad = profile()
        bad["profile"]["layers"][2]["backward_ms"] = -1
        odd = profile(gradient_bytes=7)
        late = profile()
        late["profile"]["layers"][1]["early"] = [{"gradient_bytes": MIB, "ms": 11}]
        text, unknown = text_profile(), text_profile()
        text["profile"]["embedding"]["vocabulary"] = 0
        del unknown["profile"]["length"]
        for arguments, word in (((good,), "--fit"),
                                ((good, "--bandwidth", "1Gbit/s"), "--latency"),
                                ((good, "--latency", "1us", "--bandwidth", "10Gbps"), "10Gbit/s.*10Gbps"),
                                ((good, "--latency", "-1us", "--bandwidth", "1Gbit/s"), "--latency"),
                                ((good, "--latency", "1us", "--bandwidth", "0Gbit/s"), "must be above 0"),
                                ((good, *network, "--fit", good), "--fit|--latency|--bandwidth"),
                                ((good, "--fit", good), "cannot fit a link"),
                                ((good, "--fit", self.folder / "nothing.json"), "nothing.json"),
                                ((good, *network, "--ranks", 0), "ranks"),
                                ((good, *network, "--bucket", "tune"), "--bucket"),
                                ((good, *network, "--contention", 0), "--contention"),
                                ((good, *network, "--waiting", -1), "--waiting"),
                                ((good, *network, "--ranks-per-node", 4), "--node-latency"),
                                ((good, *network, "--ranks-per-node", 4, "--node-latency", "1us", "--node-bandwidth", "1GB/s",
                                  "--ranks", 6), "6 ranks do not fill nodes of 4"),
                                ((self.folder / "nothing.json", *network), "nothing.json"),
                                ((self.write("half.json", '{"profile": '), *network), "half.json"),
                                ((self.write("other.json", {"rows": []}), *network), "no profile.*bench step"),
                                ((self.write("bad.json", bad), *network), "backward_ms is -1"),
                                ((self.write("odd.json", odd), *network), "gradient_bytes is 7"),
                                ((self.write("late.json", late), *network), "early gradients of layer1"),
                                ((self.write("text.json", text), *network), "vocabulary is 0"),
                                ((self.write("unknown.json", unknown), *network), "no length")):
            with self.subTest(arguments=arguments):
                result = helper.run("predict-scaling", *arguments)
                self.assertNotEqual(result.status, 0, str(result))
                self.assertEqual(len(result.messages), 1, str(result))
                self.assertRegex(result.messages[0], word)


if __name__ == "__main__":
    helper.main()
