"""Training steps of TensorFlow on the CPU (see step_rank.py); several ranks use MultiWorkerMirroredStrategy's ring."""
import json
import os

import step_rank
from step_rank import INPUTS, LEARNING_RATE, MEAN, MOMENTUM, RESNET20_BLOCKS, STD, stage_blocks

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")

import tensorflow as tf  # noqa: E402, after its settings

layers = tf.keras.layers


def convolution(x, channels, kernel, stride=1):
    """Padded equally on both sides, like PyTorch; "same" is not with a stride."""
    if stride > 1 and kernel > 1:
        x = layers.ZeroPadding2D(kernel // 2)(x)
    padding = "valid" if stride > 1 and kernel > 1 else "same"
    return layers.Conv2D(channels, kernel, stride, padding=padding, use_bias=False)(x)


def batch_norm(x):
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def basic_block(x, channels, stride):
    y = layers.ReLU()(batch_norm(convolution(x, channels, 3, stride)))
    y = batch_norm(convolution(y, channels, 3))
    if x.shape[-1] != channels:
        x = batch_norm(convolution(x, channels, 1, stride))
    return layers.ReLU()(layers.Add()([x, y]))


def bottleneck(x, channels, stride):
    y = layers.ReLU()(batch_norm(convolution(x, channels, 1)))
    y = layers.ReLU()(batch_norm(convolution(y, channels, 3, stride)))
    y = batch_norm(convolution(y, 4 * channels, 1))
    if x.shape[-1] != 4 * channels:
        x = batch_norm(convolution(x, 4 * channels, 1, stride))
    return layers.ReLU()(layers.Add()([x, y]))


def lenet(x):
    x = layers.MaxPool2D()(layers.Conv2D(6, 5, padding="same", activation="relu")(x))
    x = layers.MaxPool2D()(layers.Conv2D(16, 5, activation="relu")(x))
    x = layers.Dense(120, activation="relu")(layers.Flatten()(x))
    return layers.Dense(10)(layers.Dense(84, activation="relu")(x))


def cnn(x):
    x = layers.MaxPool2D()(layers.Conv2D(32, 3, padding="same", activation="relu")(x))
    x = layers.MaxPool2D()(layers.Conv2D(64, 3, padding="same", activation="relu")(x))
    return layers.Dense(10)(layers.Dense(128, activation="relu")(layers.Flatten()(x)))


def resnet20(x):
    x = layers.ReLU()(batch_norm(convolution(x, 16, 3)))
    for channels, stride in RESNET20_BLOCKS:
        x = basic_block(x, channels, stride)
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def imagenet_resnet(x, model):
    block = {"resnet18": basic_block, "resnet50": bottleneck}[model]
    x = layers.ReLU()(batch_norm(convolution(x, 64, 7, 2)))
    x = layers.MaxPool2D(3, 2)(layers.ZeroPadding2D(1)(x))  # 0 is the minimum after ReLU
    for channels, stride in stage_blocks(model):
        x = block(x, channels, stride)
    return layers.Dense(1000)(layers.GlobalAveragePooling2D()(x))


def make_network(model, mean=MEAN, std=STD):
    (channels, height, width), _ = INPUTS[model]
    images = tf.keras.Input((height, width, channels), dtype=tf.uint8)
    x = layers.Rescaling(1 / std, -mean / std)(images)
    networks = {"lenet": lenet, "cnn": cnn, "resnet20": resnet20}
    return tf.keras.Model(images, networks[model](x) if model in networks else imagenet_resnet(x, model))


def addresses(options, first):
    """Returns an address for each rank: rank 0's with the port numbers that begin with the given one of its ports."""
    host, port = options.meet.split(":")
    return [f"{host}:{int(port) + first + rank}" for rank in range(options.ranks)]


def use_threads(options):
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    # A second one lets all-reduces overlap with computation.
    tf.config.threading.set_inter_op_parallelism_threads(2 if options.ranks > 1 else 1)


def join_ring(options):
    """Returns the strategy of a rank of MultiWorkerMirroredStrategy."""
    if options.ranks == 1:
        return tf.distribute.get_strategy()
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses(options, 0)},
                                          "task": {"type": "worker", "index": options.rank}})
    communication = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)


def losses(network, images, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(images, training=True))


def make_step(strategy, options):
    (channels, height, width), classes = INPUTS[options.model]
    xla = "XLA" in options.settings
    with strategy.scope():
        network = make_network(options.model)
        optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        optimizer.build(network.trainable_variables)
    images = tf.cast(tf.random.uniform((options.batch, height, width, channels), 0, 256, tf.int32), tf.uint8)
    labels = tf.random.uniform((options.batch,), 0, classes, tf.int32)

    @tf.function(jit_compile=xla)
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(network, images, labels))
        return loss, tape.gradient(loss, network.trainable_variables)

    def replica_step():
        loss, computed = gradients()
        optimizer.apply(computed, network.trainable_variables)  # all-reduces first
        return loss

    @tf.function(jit_compile=xla and options.ranks == 1)
    def step():
        return replica_step() if options.ranks == 1 else strategy.run(replica_step)
    return step


def main():
    options = step_rank.parse_options()
    use_threads(options)
    strategy = join_ring(options)
    step = make_step(strategy, options)
    last = []

    def make_one():
        last[:] = [step()]

    def finish():
        strategy.experimental_local_results(last[0])[0].numpy()
    step_rank.answer(options, make_one, finish, tf.__version__)


if __name__ == "__main__":
    main()
