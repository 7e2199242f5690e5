"""Trains `cnn` on Fashion-MNIST with TensorFlow, epoch by epoch, like `annulus train`; one of several ranks.

  tensorflow_training.py FOLDER --settings "ring, graph" --ranks 2 --rank 0 --meet HOST:PORT [--threads 1]
                         [--batch 128] [--epochs 6] [--lr 0.02] [--seed 1]

FOLDER has the four IDX files. --batch is the global batch. The images are in memory as bytes. The first setting is "ring"
for MultiWorkerMirroredStrategy, or "parameter server" for ParameterServerStrategy: every rank is a worker and a server,
and rank 0 is also the coordinator. The second is "graph" or "XLA". Rank 0 prints one line of JSON after every epoch's
evaluation.
"""
import math
import time

import numpy
import tensorflow_step
from tensorflow_step import tf

import idx_files
import step_rank

STEPS_OF_CALL = 7  # of a worker, ordered at a time by the coordinator; divides the 469 steps of an epoch


def read(folder, split):
    images, labels = idx_files.images_and_labels(folder, split)
    return images[..., None], labels.astype(numpy.int32)


class Network:
    """The network, its optimizer and its updates, made in a strategy's scope."""

    def __init__(self, strategy, options, images):
        tf.keras.utils.set_random_seed(options.seed)
        with strategy.scope():
            self.layers = tensorflow_step.make_network("cnn", float(images.mean()), float(images.std()))
            self.optimizer = tf.keras.optimizers.SGD(options.lr, momentum=0.9)
            self.optimizer.build(self.layers.trainable_variables)
        self.gradients = tf.function(self.gradients, jit_compile="XLA" in options.settings)

    def gradients(self, images, labels, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tensorflow_step.losses(self.layers, images, labels)) / batch
        return tape.gradient(loss, self.layers.trainable_variables)

    def update(self, images, labels, batch):
        """Adds this worker's share of a batch of `batch` images."""
        gradients = self.gradients(images, labels, tf.cast(batch, tf.float32))
        self.optimizer.apply(gradients, self.layers.trainable_variables)

    def accuracy(self, images, labels):
        right = 0
        for begin in range(0, len(images), 500):
            logits = self.classify(tf.constant(images[begin:begin + 500])).numpy()
            right += (logits.argmax(1) == labels[begin:begin + 500]).sum()
        return float(right / len(images))

    @tf.function
    def classify(self, images):
        return self.layers(images, training=False)


def train_in_ring(options):
    strategy = tensorflow_step.join_ring(options)
    images, labels = read(options.folder, "train")
    network = Network(strategy, options, images)
    all_images, all_labels = tf.constant(images), tf.constant(labels)

    @tf.function
    def step(own, batch):
        strategy.run(lambda: network.update(tf.gather(all_images, own), tf.gather(all_labels, own), batch))

    for epoch in range(options.epochs):
        order = numpy.random.default_rng((options.seed, epoch)).permutation(len(images))
        begin = time.perf_counter()
        for start in range(0, len(order), options.batch):
            batch = order[start:start + options.batch]
            step(tf.constant(batch[step_rank.share_of(options, len(batch))]), tf.constant(len(batch)))
        seconds = time.perf_counter() - begin
        yield seconds, network


def images_of_worker(options, all_images, all_labels):
    """Returns the endless batches of a worker, each of which draws from all images in an order of its own."""
    data = tf.data.Dataset.range(len(all_images)).shuffle(len(all_images)).repeat()
    data = data.batch(options.batch // options.ranks, drop_remainder=True)
    return data.map(lambda own: (tf.gather(all_images, own), tf.gather(all_labels, own))).prefetch(2)


def train_by_servers(options):
    """Workers do not wait for each other, so each pushes the sum of its own images' gradients over the global batch."""
    jobs = {"worker": tensorflow_step.addresses(options, 0), "ps": tensorflow_step.addresses(options, options.ranks)}
    cluster = tf.train.ClusterSpec(jobs)
    # With fewer threads than that, workers and servers of a process wait for each other (TensorFlow's guide).
    threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=options.ranks + 2)
    servers = [tf.distribute.Server(cluster, job_name=job, task_index=options.rank, config=threads) for job in jobs]
    if options.rank > 0:
        servers[0].join()
    strategy = tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc"))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    images, labels = read(options.folder, "train")
    network = Network(strategy, options, images)

    @tf.function
    def steps(iterator):
        for _ in tf.range(STEPS_OF_CALL):
            strategy.run(lambda x, y: network.update(x, y, options.batch), args=next(iterator))

    data = iter(coordinator.create_per_worker_dataset(lambda: images_of_worker(options, images, labels)))
    calls = math.ceil(len(images) / options.batch) * options.ranks // STEPS_OF_CALL
    for _ in range(options.epochs):
        begin = time.perf_counter()
        for _ in range(calls):
            coordinator.schedule(steps, args=(data,))
        coordinator.join()
        yield time.perf_counter() - begin, network


def main():
    options = step_rank.parse_training()
    tensorflow_step.use_threads(options)
    train = train_by_servers if "parameter server" in options.settings else train_in_ring
    test_images, test_labels = read(options.folder, "t10k")
    for seconds, network in train(options):
        if options.rank == 0:
            step_rank.report_epoch(options, seconds, network.accuracy(test_images, test_labels))


main()
