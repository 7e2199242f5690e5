"""Training steps of TensorFlow on the CPU (see step_rank.py); several ranks use MultiWorkerMirroredStrategy's ring."""
import json
import os

import step_rank
from step_rank import INPUTS, LEARNING_RATE, MEAN, MOMENTUM, RESNET20_BLOCKS, STD, stage_blocks

os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="")
OPTIONS = step_rank.parse_options()
if OPTIONS.ranks > 1:
    HOST, PORT = OPTIONS.meet.split(":")
    WORKERS = [f"{HOST}:{int(PORT) + rank}" for rank in range(OPTIONS.ranks)]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": WORKERS},
                                          "task": {"type": "worker", "index": OPTIONS.rank}})

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


def imagenet_resnet(x):
    block = {"resnet18": basic_block, "resnet50": bottleneck}[OPTIONS.model]
    x = layers.ReLU()(batch_norm(convolution(x, 64, 7, 2)))
    x = layers.MaxPool2D(3, 2)(layers.ZeroPadding2D(1)(x))  # 0 is the minimum after ReLU
    for channels, stride in stage_blocks(OPTIONS.model):
        x = block(x, channels, stride)
    return layers.Dense(1000)(layers.GlobalAveragePooling2D()(x))


def make_network(shape):
    images = tf.keras.Input(shape, dtype=tf.uint8)
    x = layers.Rescaling(1 / STD, -MEAN / STD)(images)
    networks = {"lenet": lenet, "cnn": cnn, "resnet20": resnet20}
    return tf.keras.Model(images, networks.get(OPTIONS.model, imagenet_resnet)(x))


def make_strategy():
    if OPTIONS.ranks == 1:
        return tf.distribute.get_strategy()
    communication = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)


def make_step(strategy):
    (channels, height, width), classes = INPUTS[OPTIONS.model]
    shape = (height, width, channels)
    xla = "XLA" in OPTIONS.settings
    with strategy.scope():
        network = make_network(shape)
        optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        optimizer.build(network.trainable_variables)
    images = tf.cast(tf.random.uniform((OPTIONS.batch, *shape), 0, 256, tf.int32), tf.uint8)
    labels = tf.random.uniform((OPTIONS.batch,), 0, classes, tf.int32)

    @tf.function(jit_compile=xla)
    def gradients():
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return loss, tape.gradient(loss, network.trainable_variables)

    def replica_step():
        loss, computed = gradients()
        optimizer.apply(computed, network.trainable_variables)  # all-reduces first
        return loss

    @tf.function(jit_compile=xla and OPTIONS.ranks == 1)
    def step():
        return replica_step() if OPTIONS.ranks == 1 else strategy.run(replica_step)
    return step


def main():
    tf.config.threading.set_intra_op_parallelism_threads(OPTIONS.threads)
    # A second one lets all-reduces overlap with computation.
    tf.config.threading.set_inter_op_parallelism_threads(2 if OPTIONS.ranks > 1 else 1)
    strategy = make_strategy()
    step = make_step(strategy)
    losses = []

    def make_one():
        losses[:] = [step()]

    def finish():
        strategy.experimental_local_results(losses[0])[0].numpy()
    step_rank.answer(OPTIONS, make_one, finish, tf.__version__)


main()
