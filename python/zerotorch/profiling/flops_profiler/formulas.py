"""What functions of torch cost: floating-point operations, and the multiply-accumulates among them.

The rules are DeepSpeed's: a product is two operations a multiply-accumulate, activations and poolings one an element of
their input, normalisations four, or five with weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Cost = tuple[int, int]


def _product(macs: int, more: int = 0) -> Cost:
    return 2 * macs + more, macs


def _linear(input: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Cost:
    return _product(input.numel() * weight.shape[0])


def _matmul(input: torch.Tensor, other: torch.Tensor, **_: Any) -> Cost:
    return _product(input.numel() * other.shape[-1])


def _addmm(input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, **_: Any) -> Cost:
    return _product(mat1.numel() * mat2.shape[-1], input.numel())


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> Cost:
    rows = q.numel() // q.shape[-1]
    return _product(q.numel() * k.shape[-2] + rows * k.shape[-2] * v.shape[-1])


def _einsum(equation: Any, *operands: Any) -> Cost:
    """By the best order of contractions, as NumPy finds it."""
    import numpy

    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    shapes = [numpy.broadcast_to(numpy.zeros(()), tuple(tensor.shape)) for tensor in tensors]
    report = numpy.einsum_path(equation.replace(" ", ""), *shapes, optimize="optimal")[1]
    line = next(line for line in report.splitlines() if "optimized flop" in line.lower())
    return int(float(line.rpartition(":")[2])), 0


def _elements(input: torch.Tensor, *_: Any, **__: Any) -> Cost:
    return input.numel(), 0


def _broadcast(input: Any, other: Any, **_: Any) -> Cost:
    shapes = [one.shape for one in (input, other) if isinstance(one, torch.Tensor)]
    return math.prod(torch.broadcast_shapes(*shapes)), 0  # type: ignore[no-untyped-call]


def _norm(at: int) -> Callable[..., Cost]:
    """`at`: which argument is the weight."""

    def cost(input: torch.Tensor, *args: Any, **kwargs: Any) -> Cost:
        weight = kwargs.get("weight", args[at - 1] if len(args) >= at else None)
        return input.numel() * (4 if weight is None else 5), 0

    return cost


def _batch_norm(input: torch.Tensor, *args: Any, **kwargs: Any) -> Cost:
    given = dict(zip(("running_mean", "running_var", "weight", "bias", "training"), args, strict=False)) | kwargs
    affine = given.get("weight") is not None
    if given.get("training", False):
        return input.numel() * (5 if affine else 4), 0
    return input.numel() * (2 if affine else 1), 0


def _interpolate(input: torch.Tensor, size: Any = None, scale_factor: Any = None, *_: Any, **__: Any) -> Cost:
    if size is not None:
        return int(math.prod(size) if isinstance(size, (tuple, list)) else size), 0
    scales = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * (input.ndim - 2)
    return int(input.numel() * math.prod(scales)), 0


def _by_dimension(value: Any, dimensions: int) -> list[int]:
    return list(value) if isinstance(value, (tuple, list)) else [value] * dimensions


def _convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Cost:
    kernel = weight.shape[2:]
    strides, dilations = (_by_dimension(one, len(kernel)) for one in (stride, dilation))
    spans = [(size - 1) * step for size, step in zip(kernel, dilations, strict=True)]
    if padding == "same":
        around = [span // 2 * 2 for span in spans]
    else:
        around = [2 * one for one in _by_dimension(0 if padding == "valid" else padding, len(kernel))]
    out = [
        (size + margin - span - 1) // step + 1
        for size, margin, span, step in zip(input.shape[2:], around, spans, strides, strict=True)
    ]
    places = input.shape[0] * math.prod(out)
    macs = math.prod(kernel) * input.shape[1] * (weight.shape[0] // groups) * places
    return _product(macs, 0 if bias is None else weight.shape[0] * places)


def _transposed_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Cost:
    kernel = weight.shape[2:]
    four = (stride, padding, dilation, output_padding)
    strides, paddings, dilations, more = (_by_dimension(one, len(kernel)) for one in four)
    out = [
        (size - 1) * strides[i] - 2 * paddings[i] + dilations[i] * (kernel[i] - 1) + more[i] + 1
        for i, size in enumerate(input.shape[2:])
    ]
    macs = math.prod(kernel) * input.shape[1] * weight.shape[1] * input.shape[0] * math.prod(input.shape[2:])
    return _product(macs, 0 if bias is None else weight.shape[1] * groups * input.shape[0] * math.prod(out))


#: Where functions are, their names, and what they cost.
FUNCTIONS: tuple[tuple[Any, str, Callable[..., Cost]], ...] = tuple(
    (owner, name, cost)
    for owner, names, cost in (
        (F, "linear", _linear),
        (F, "conv1d conv2d conv3d", _convolution),
        (F, "conv_transpose1d conv_transpose2d conv_transpose3d", _transposed_convolution),
        (F, "relu prelu elu leaky_relu relu6 silu gelu softmax", _elements),
        (F, "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d", _elements),
        (F, "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", _elements),
        (F, "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", _elements),
        (F, "batch_norm", _batch_norm),
        (F, "layer_norm group_norm", _norm(2)),
        (F, "instance_norm", _norm(3)),
        (F, "interpolate upsample", _interpolate),
        (F, "scaled_dot_product_attention", _attention),
        (torch, "matmul mm bmm", _matmul),
        (torch.Tensor, "matmul __matmul__ mm bmm", _matmul),
        (torch, "addmm baddbmm", _addmm),
        (torch.Tensor, "addmm", _addmm),
        (torch, "mul add", _broadcast),
        (torch.Tensor, "mul add", _broadcast),
        (torch, "einsum", _einsum),
    )
    for name in names.split()
)


def recurrent(module: Any, batch: int, length: int) -> int:
    """Of torch's RNN, GRU, LSTM and their cells, whose inside is one function."""
    hidden = module.hidden_size
    extra = {"RNN": 1, "GRU": 7, "LSTM": 10}[type(module).__name__.removesuffix("Cell")] * hidden
    suffixes = [f"_l{layer}" for layer in range(module.num_layers)] if hasattr(module, "num_layers") else [""]
    total = 0
    for suffix in suffixes:
        for side in ("ih", "hh"):
            weight = getattr(module, f"weight_{side}{suffix}")
            total += 2 * weight.numel() - weight.shape[0]
            total += getattr(module, f"bias_{side}{suffix}").shape[0] if module.bias else 0
        total += extra
    return total * batch * length * (2 if getattr(module, "bidirectional", False) else 1)


RECURRENT = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM, torch.nn.RNNCell, torch.nn.GRUCell, torch.nn.LSTMCell)
