"""Training steps of JAX on the CPU (see step_rank.py); several ranks are processes, over gloo."""
import os

import step_rank
from step_rank import INPUTS, LEARNING_RATE, MEAN, MOMENTUM, RESNET20_BLOCKS, STD, stage_blocks

os.environ["JAX_PLATFORMS"] = "cpu"
import jax  # noqa: E402, after its settings
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec  # noqa: E402


class Layers:
    """A network's layers: the first pass creates their parameters, later ones receive them in the same order. Batch norm's
    running means and variances are collected separately."""

    def __init__(self, parameters=None, running=None):
        self.first = parameters is None
        self.parameters, self.running, self.moved = parameters or [], running or [], []
        self.key, self.used, self.used_running = jax.random.key(1), 0, 0

    def parameter(self, shape, fan_in=None, value=0.0):
        if self.first:
            self.key, key = jax.random.split(self.key)
            self.parameters.append(jnp.full(shape, value) if fan_in is None
                                   else jax.random.normal(key, shape) * (2 / fan_in) ** 0.5)
        self.used += 1
        return self.parameters[self.used - 1]

    def convolution(self, x, channels, kernel, stride=1, padding=None, bias=False):
        padding = kernel // 2 if padding is None else padding
        weights = self.parameter((kernel, kernel, x.shape[-1], channels), kernel * kernel * x.shape[-1])
        y = lax.conv_general_dilated(x, weights, (stride, stride), [(padding, padding)] * 2,
                                     dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y + self.parameter((channels,)) if bias else y

    def batch_norm(self, x):
        scale, shift = self.parameter(x.shape[-1:], value=1.0), self.parameter(x.shape[-1:])
        if self.first:
            self.running += [jnp.zeros(x.shape[-1:]), jnp.ones(x.shape[-1:])]
        of_batch = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        for value in of_batch:
            self.moved.append(0.9 * self.running[self.used_running] + 0.1 * lax.stop_gradient(value))
            self.used_running += 1
        mean, variance = of_batch
        return (x - mean) * (scale * lax.rsqrt(variance + 1e-5)) + shift

    def dense(self, x, units):
        return x @ self.parameter((x.shape[-1], units), x.shape[-1]) + self.parameter((units,))

    def basic_block(self, x, channels, stride):
        y = jax.nn.relu(self.batch_norm(self.convolution(x, channels, 3, stride)))
        y = self.batch_norm(self.convolution(y, channels, 3))
        if x.shape[-1] != channels:
            x = self.batch_norm(self.convolution(x, channels, 1, stride))
        return jax.nn.relu(x + y)

    def bottleneck(self, x, channels, stride):
        y = jax.nn.relu(self.batch_norm(self.convolution(x, channels, 1)))
        y = jax.nn.relu(self.batch_norm(self.convolution(y, channels, 3, stride)))
        y = self.batch_norm(self.convolution(y, 4 * channels, 1))
        if x.shape[-1] != 4 * channels:
            x = self.batch_norm(self.convolution(x, 4 * channels, 1, stride))
        return jax.nn.relu(x + y)


def max_pool(x, kernel=2, stride=2, padding=0):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, kernel, kernel, 1), (1, stride, stride, 1),
                             [(0, 0), (padding, padding), (padding, padding), (0, 0)])


def lenet(use, x):
    x = max_pool(jax.nn.relu(use.convolution(x, 6, 5, bias=True)))
    x = max_pool(jax.nn.relu(use.convolution(x, 16, 5, padding=0, bias=True)))
    x = jax.nn.relu(use.dense(x.reshape(x.shape[0], -1), 120))
    return use.dense(jax.nn.relu(use.dense(x, 84)), 10)


def cnn(use, x):
    x = max_pool(jax.nn.relu(use.convolution(x, 32, 3, bias=True)))
    x = max_pool(jax.nn.relu(use.convolution(x, 64, 3, bias=True)))
    return use.dense(jax.nn.relu(use.dense(x.reshape(x.shape[0], -1), 128)), 10)


def resnet20(use, x):
    x = jax.nn.relu(use.batch_norm(use.convolution(x, 16, 3)))
    for channels, stride in RESNET20_BLOCKS:
        x = use.basic_block(x, channels, stride)
    return use.dense(jnp.mean(x, (1, 2)), 10)


def imagenet_resnet(model):
    def network(use, x):
        block = {"resnet18": use.basic_block, "resnet50": use.bottleneck}[model]
        x = jax.nn.relu(use.batch_norm(use.convolution(x, 64, 7, 2)))
        x = max_pool(x, 3, 2, 1)
        for channels, stride in stage_blocks(model):
            x = block(x, channels, stride)
        return use.dense(jnp.mean(x, (1, 2)), 1000)
    return network


NETWORKS = {"lenet": lenet, "cnn": cnn, "resnet20": resnet20, "resnet18": imagenet_resnet("resnet18"),
            "resnet50": imagenet_resnet("resnet50")}


def normalized(images):
    return (images.astype(jnp.float32) - MEAN) / STD


def initial_state(network, images):
    def first_pass():
        layers = Layers()
        network(layers, normalized(images))
        return layers.parameters, layers.running
    parameters, running = jax.jit(first_pass)()
    return parameters, [jnp.zeros_like(p) for p in parameters], running


def make_step(options):
    """Returns step(state) -> state, and the initial state."""
    network = NETWORKS[options.model]
    (channels, height, width), classes = INPUTS[options.model]
    key = jax.random.key(options.rank)
    images = jax.random.randint(key, (options.batch, height, width, channels), 0, 256).astype(jnp.uint8)
    labels = jax.random.randint(key, (options.batch,), 0, classes)

    def loss(parameters, running, images, labels):
        layers = Layers(parameters, running)
        logits = network(layers, normalized(images))
        right = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -jnp.mean(right), layers.moved

    def update(state, images, labels):
        parameters, momenta, running = state
        (_, running), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, running, images, labels)
        if options.ranks > 1:
            gradients = lax.pmean(gradients, "ranks")
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, gradients)]
        return [p - LEARNING_RATE * m for p, m in zip(parameters, momenta)], momenta, running

    state = initial_state(network, images)
    if options.ranks > 1:
        mesh = jax.make_mesh((options.ranks,), ("ranks",))
        shared, split = PartitionSpec(), PartitionSpec("ranks")
        update = jax.shard_map(update, mesh=mesh, in_specs=(shared, split, split), out_specs=shared, check_vma=False)
        of_ranks = jax.sharding.NamedSharding(mesh, split)
        images, labels = (jax.make_array_from_process_local_data(of_ranks, a) for a in (images, labels))
        state = jax.device_put(state, jax.sharding.NamedSharding(mesh, shared))
    compiled = jax.jit(update, donate_argnums=0)
    return lambda state: compiled(state, images, labels), state


def main():
    options = step_rank.parse_options()
    if options.ranks > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(options.meet, options.ranks, options.rank)
    step, state = make_step(options)
    states = [state]
    del state  # the first step reuses its memory

    def make_one():
        states[0] = step(states[0])
    step_rank.answer(options, make_one, lambda: jax.block_until_ready(states[0]), jax.__version__)


main()
