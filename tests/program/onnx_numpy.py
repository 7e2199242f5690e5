"""Computes an ONNX model with numpy: the operations, of version 17, that `annulus export` writes, following the
specification (onnx.ai, Operators.md)."""
import math

import numpy as np
import onnx
import onnx.numpy_helper


def windows(x, kernel_shape, strides, pads, border):
    """{batch, channels, rows, columns, kernel rows, kernel columns}"""
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=border)
    view = np.lib.stride_tricks.sliding_window_view(padded, kernel_shape, (2, 3))
    return view[:, :, ::strides[0], ::strides[1]]


def convolution(x, weight, bias=None, *, group, dilations, **window):
    assert group == 1 and list(dilations) == [1, 1]
    products = np.tensordot(windows(x, border=0, **window), weight, ((1, 4, 5), (1, 2, 3)))
    return np.moveaxis(products, 3, 1) + (0 if bias is None else bias[:, None, None])


def average_pool(x, count_include_pad, **window):
    assert count_include_pad == 1
    return windows(x, border=0, **window).mean((4, 5))


def batch_normalization(x, scale, shift, mean, variance, epsilon, momentum):
    factor = scale / np.sqrt(variance + epsilon)
    return (x - mean[:, None, None]) * factor[:, None, None] + shift[:, None, None]


def gemm(x, weight, bias, transB):
    assert transB == 1
    return x @ weight.T + bias


def layer_normalization(x, scale, shift, axis, epsilon):
    axes = tuple(range(axis, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(axes, keepdims=True) + epsilon) * scale + shift


def reshape(x, shape):
    return x.reshape([x.shape[i] if extent == 0 else extent for i, extent in enumerate(shape)])


def cut(x, begins, ends, axes):
    for begin, end, axis in zip(begins, ends, axes, strict=True):
        x = np.take(x, range(begin, end), axis)
    return x


def softmax(x, axis):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


OPERATIONS = {
    "Add": np.add,
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "Cast": lambda x, to: x.astype(onnx.helper.mapping.TENSOR_TYPE_TO_NP_TYPE[to]),
    "Constant": lambda value: onnx.numpy_helper.to_array(value),
    "Clip": np.clip,
    "Concat": lambda *x, axis: np.concatenate(x, axis),
    "Conv": convolution,
    "Erf": np.vectorize(math.erf, otypes=[np.float32]),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Flatten": lambda x, axis: x.reshape(np.prod(x.shape[:axis], dtype=int), -1),
    "Gemm": gemm,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
    "Identity": lambda x: x,
    "LayerNormalization": layer_normalization,
    "MatMul": np.matmul,
    "MaxPool": lambda x, **window: windows(x, border=-np.inf, **window).max((4, 5)),
    "Mul": np.multiply,
    "Relu": lambda x: np.maximum(x, 0),
    "Reshape": reshape,
    "Shape": lambda x, end: np.array(x.shape[:end]),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Slice": cut,
    "Softmax": softmax,
    "Transpose": lambda x, perm: x.transpose(perm),
}


def run(model, images):
    """The outputs, by name."""
    values = all_values(model, images)
    return {output.name: values[output.name] for output in model.graph.output}


def all_values(model, images):
    """Every value of the network, by name."""
    graph = model.graph
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    values[graph.input[0].name] = images
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        values[node.output[0]] = OPERATIONS[node.op_type](*(values[name] for name in node.input), **attributes)
    return values
