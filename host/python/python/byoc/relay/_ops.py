"""Functions that create operator calls, generated from the operator table, under Relay's names and argument orders."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _byoc
from ._core import Call, Constant, Expr, Op, Tuple, TupleType, TupleWrapper, as_expr, const, dtype_name

# Orders of arguments that differ from the table's: arguments, then attributes. `name=target` renames.
_ORDERS = {
    "clip": "a=data a_min a_max",
    "take": "data indices axis batch_dims mode",
    "strided_slice": "data begin end strides axes slice_mode",
    "gather": "data axis indices",
    "unravel_index": "indices=data shape",
    "sparse_to_dense": "sparse_indices output_shape sparse_values default_value",
    "unique": "data is_sorted=sorted return_counts",
    "stft": "data n_fft hop_length win_length window normalized onesided",
    "nn.max_pool2d_grad": "out_grad=grad data pool_size strides padding layout out_layout ceil_mode",
    "nn.avg_pool2d_grad": "out_grad=grad data pool_size strides padding layout out_layout ceil_mode count_include_pad",
    "nn.contrib_dense_pack": "data weight weight_layout units out_dtype",
    "nn.pad": "data pad_width pad_value pad_mode",
    "nn.dilate": "data=x strides dilation_value",
    "nn.mirror_pad": "data pad_width mode",
    "nn.cross_entropy": "predictions=x targets=y",
    "nn.cross_entropy_with_logits": "predictions=x targets=y",
    "nn.conv1d_transpose": "data weight strides padding dilation groups channels kernel_size data_layout kernel_layout "
    "out_layout output_padding out_dtype",
    "nn.bitserial_conv2d": "data weight strides padding channels kernel_size activation_bits weight_bits data_layout "
    "kernel_layout pack_dtype out_dtype unipolar",
    "vision.get_valid_counts": "data score_threshold id_index score_index",
    "vision.all_class_non_max_suppression": "boxes scores max_output_boxes_per_class iou_threshold score_threshold "
    "output_format",
    "qnn.quantize": "data output_scale output_zero_point axis out_dtype",
    "qnn.simulated_quantize": "data output_scale output_zero_point axis out_dtype",
    "qnn.simulated_dequantize": "data input_scale input_zero_point axis in_dtype",
    "qnn.conv2d": "data kernel=weight input_zero_point kernel_zero_point input_scale kernel_scale kernel_size channels "
    "strides padding dilation groups data_layout kernel_layout out_layout out_dtype",
    "qnn.conv2d_transpose": "data weight input_zero_point kernel_zero_point input_scale kernel_scale strides padding "
    "dilation groups channels kernel_size data_layout kernel_layout out_layout output_padding out_dtype",
    "qnn.contrib_dense_pack": "data weight input_zero_point kernel_zero_point input_scale kernel_scale "
    "kernel_layout=weight_layout units out_dtype",
    "qnn.leaky_relu": "x alpha input_scale input_zero_point output_scale output_zero_point",
    "qnn.avg_pool2d": "data input_scale input_zero_point output_scale output_zero_point pool_size strides padding "
    "dilation ceil_mode count_include_pad layout out_layout",
    "random.threefry_generate": "key shape=out_shape",
    "random.uniform": "key shape=out_shape dtype=out_dtype low high",
    "random.normal": "key shape=out_shape dtype=out_dtype mean scale",
}
_ORDERS["nn.conv2d_transpose"] = _ORDERS["nn.conv3d_transpose"] = _ORDERS["nn.conv1d_transpose"]

# Defaults of Relay's functions where the operator has another default or none.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "nn.pad": {"pad_value": 0},
    "nn.conv1d_transpose": {"kernel_layout": "IOW"},
    "nn.conv2d_transpose": {"kernel_layout": "IOHW"},
    "nn.conv3d_transpose": {"kernel_layout": "IODHW"},
    "nn.upsampling3d": {"scale_d": 1, "scale_h": 1, "scale_w": 1},
    "nn.leaky_relu": {"alpha": 0.01},
    "nn.lrn": {"alpha": 1e-5},
    "nn.batch_matmul": {"transpose_b": True},
    "nn.bitpack": {"bit_axis": 2, "pack_type": "uint32"},
    "nn.bitserial_conv2d": {"pack_dtype": "uint32", "out_dtype": "int16"},
    "nn.bitserial_dense": {"pack_dtype": "uint32", "out_dtype": "int16"},
    "nn.nll_loss": {"ignore_index": -100},
    "nn.contrib_conv2d_NCHWc": {"data_layout": "NCHW8c"},
    "nn.contrib_depthwise_conv2d_NCHWc": {"data_layout": "NCHW8c"},
    "sparse_to_dense": {"default_value": 0},
    "image.affine_grid": {"target_shape": None},
    "image.resize1d": {"rounding_method": ""},
    "image.resize3d": {"rounding_method": ""},
    "image.crop_and_resize": {"method": "bilinear"},
    "vision.non_max_suppression": {"max_output_size": -1, "iou_threshold": 0.5},
    "vision.all_class_non_max_suppression": {
        "max_output_boxes_per_class": -1,
        "iou_threshold": -1.0,
        "score_threshold": -1.0,
    },
    "random.uniform": {"out_dtype": "float32", "low": 0.0, "high": 1.0},
    "random.normal": {"out_dtype": "float32", "mean": 0.0, "scale": 1.0},
    "qnn.conv2d": {"out_dtype": "int32"},
    "qnn.conv2d_transpose": {"out_dtype": "int32", "kernel_layout": "IOHW"},
    "qnn.dense": {"out_dtype": "int32"},
    "qnn.batch_matmul": {"out_dtype": "int32", "transpose_b": True},
    "qnn.avg_pool2d": {"count_include_pad": True, "layout": "NHWC"},
    "qnn.simulated_quantize": {"out_dtype": "int8"},
    "qnn.simulated_dequantize": {"in_dtype": "int8"},
    "shape_of": {"dtype": "int32"},
    "ndarray_size": {"dtype": "int32"},
    "full": {"shape": (), "dtype": ""},
}
for _rank_of_pool in (1, 2, 3):
    for _kind in ("max", "avg"):
        _DEFAULTS[f"nn.{_kind}_pool{_rank_of_pool}d"] = {"pool_size": (1,) * _rank_of_pool}
_DEFAULTS["nn.max_pool2d_grad"] = _DEFAULTS["nn.avg_pool2d_grad"] = _DEFAULTS["nn.max_pool2d"]

_MISSING = object()


class _Parameter:
    """Parameter of a function: its name, and the argument or attribute that it sets."""

    def __init__(self, name: str, target: str, kind: str | None, default: Any) -> None:
        self.name = name
        self.target = target
        self.kind = kind
        self.default = default


def _parameters(name: str, row: tuple) -> list[_Parameter]:
    _, inputs, min_args, attrs, _, _ = row
    overrides = _DEFAULTS.get(name, {})
    known: dict[str, _Parameter] = {}
    for index, item in enumerate(inputs):
        default = overrides.get(item, _MISSING if index < min_args else None)
        known[item] = _Parameter(item, item, None, default)
    for item, kind, required, default, _ in attrs:
        if item not in known:
            known[item] = _Parameter(item, item, kind, overrides.get(item, _MISSING if required else default))
    listed = []
    for part in _ORDERS.get(name, " ".join(known)).split():
        shown, _, target = part.partition("=")
        parameter = known.pop(target or shown)
        parameter.name = shown
        listed.append(parameter)
    return listed + list(known.values())


def _rank(name: str) -> int:
    return next((n for n in (1, 2, 3) if f"{n}d" in name), 0)


def _spatial(name: str, target: str, value: Any) -> Any:
    """Returns one number per axis, and two for padding, as Relay's functions pass them."""
    rank = _rank(name)
    if isinstance(value, (int, np.integer)):
        return [value] * (2 * rank if target == "padding" else rank)
    if target == "padding" and len(value) == rank:
        return [*value, *value]
    return value


_SPATIAL = {"strides", "padding", "dilation", "kernel_size", "pool_size", "output_padding"}


def _attr(name: str, parameter: _Parameter, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Constant):
        value = value.data.numpy().tolist()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if parameter.kind == "dtype":
        return dtype_name(value) if value != "" else ""
    if parameter.target == "kernel_layout" and name in ("nn.conv1d_transpose", "nn.conv3d_transpose"):
        # The operators name the channels of the data O, Relay's functions I.
        return value.translate(str.maketrans("IO", "OI"))
    if parameter.target in _SPATIAL and ("conv" in name or "pool" in name) and _rank(name):
        return _spatial(name, parameter.target, value)
    if parameter.kind == "ints" and isinstance(value, (int, np.integer)):
        return [value]
    return value


def _call(name: str, args: list[Expr], attrs: dict[str, Any]) -> Any:
    call = Call(name, args, attrs)
    found = call.known_type
    is_wrapped = isinstance(found, TupleType) and not name.startswith("annotation.") and name not in _IDENTITIES
    return TupleWrapper(call, len(found.fields)) if is_wrapped else call


# Operators that return their argument, of any type.
_IDENTITIES = ("copy", "device_copy", "on_device")


def _function(name: str, row: tuple, public: str) -> Callable:
    parameters = _parameters(name, row)
    by_name = {parameter.name: parameter for parameter in parameters}
    inputs = row[1]
    dynamic = f"dyn.{name}"

    def create(*args: Any, **named: Any) -> Any:
        if len(args) > len(parameters):
            raise TypeError(f"{public}: expected at most {len(parameters)} arguments, found {len(args)}")
        given = {parameter.name: value for parameter, value in zip(parameters, args)}
        for key, value in named.items():
            if key not in by_name or key in given:
                problem = "given twice" if key in given else "unknown"
                raise TypeError(f"{public}: argument {key} is {problem}; expected ({', '.join(by_name)})")
            given[key] = value
        exprs: dict[str, Expr] = {}
        attrs: dict[str, Any] = {}
        is_dynamic = False
        for parameter in parameters:
            value = given.get(parameter.name, parameter.default)
            if value is _MISSING:
                raise TypeError(f"{public}: expected the argument {parameter.name}, found none")
            if parameter.kind is None:
                if value is not None:
                    exprs[parameter.target] = as_expr(value)
            elif isinstance(value, (Expr, TupleWrapper)) and not isinstance(value, Constant):
                exprs[parameter.target] = as_expr(value)
                is_dynamic = True
            else:
                attrs[parameter.target] = _attr(name, parameter, value)
        if is_dynamic:
            return _dynamic(dynamic, exprs, attrs)
        return _call(name, [exprs[item] for item in inputs if item in exprs], attrs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    shown = []
    has_default = False
    for p in parameters:
        has_default = has_default or p.default is not _MISSING
        default = inspect.Parameter.empty if not has_default else None if p.default is _MISSING else p.default
        shown.append(inspect.Parameter(p.name, kind, default=default))
    create.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    create.__name__ = create.__qualname__ = public
    lines = [row[4], ""] + [f"{attr[0]}: {attr[4]}" for attr in row[3]]
    create.__doc__ = "\n".join(lines).strip()
    return create


def _dynamic(name: str, exprs: dict[str, Expr], attrs: dict[str, Any]) -> Any:
    row = Op.get(name)._row
    args = []
    for item in row[1]:
        if item in exprs:
            args.append(exprs[item])
        elif item in attrs:
            args.append(const(np.asarray(attrs.pop(item), "int64")))
    kept = {attr[0] for attr in row[3]}
    return _call(name, args, {key: value for key, value in attrs.items() if key in kept})


def namespaces() -> dict[str, types.ModuleType]:
    """Returns a module of functions for each prefix of operators; those without a prefix are under the empty name."""
    prefixes = {name.partition(".")[0] for name in Op.list_op_names() if "." in name}
    found = {prefix: types.ModuleType(f"byoc.relay.{prefix}".rstrip(".")) for prefix in ("", *sorted(prefixes))}
    for row in _byoc.operators():
        name = row[0]
        prefix, _, rest = name.partition(".")
        if not rest:
            prefix, rest = "", name
        public = rest.replace(".", "_")
        public = public.lower() if public.startswith("contrib_") else public
        setattr(found[prefix], public, _function(name, row, public))
    for prefix, module in found.items():
        for name, function in _compound(found).get(prefix, {}).items():
            setattr(module, name, function)
        module.__all__ = [name for name in vars(module) if not name.startswith("_")]  # type: ignore[attr-defined]
    return found


def _shape(shape: Any) -> Any:
    return [shape] if isinstance(shape, (int, np.integer)) else shape


def _compound(modules: dict[str, types.ModuleType]) -> dict[str, dict[str, Callable]]:
    """Returns the functions of Relay that are more than one call of an operator with its arguments."""
    op, nn = modules[""], modules["nn"]
    raw = {name: getattr(op, name) for name in ("zeros", "ones", "full", "split", "topk", "variance", "transpose")}
    raw_nn = {name: getattr(nn, name) for name in ("batch_norm", "dropout")}

    def zeros(shape: Any, dtype: Any) -> Expr:
        """Tensor of zeros."""
        return raw["zeros"](_shape(shape), dtype)

    def ones(shape: Any, dtype: Any) -> Expr:
        """Tensor of ones."""
        return raw["ones"](_shape(shape), dtype)

    def full(fill_value: Any, shape: Any = (), dtype: str = "") -> Expr:
        """Tensor filled with a scalar."""
        return raw["full"](fill_value, shape=_shape(shape), dtype=dtype)

    def split(data: Any, indices_or_sections: Any, axis: int = 0) -> TupleWrapper:
        """Parts of a tensor along an axis."""
        parts = indices_or_sections
        result = raw["split"](data, list(parts) if isinstance(parts, (list, tuple)) else parts, axis)
        size = len(parts) + 1 if isinstance(parts, (list, tuple)) else int(parts)
        return result if isinstance(result, TupleWrapper) else TupleWrapper(result, size)

    def topk(data, k=1, axis=-1, ret_type="both", is_ascend=False, dtype="int32") -> Any:
        """Largest or smallest elements along an axis, and their indices."""
        result = raw["topk"](data, k=k, axis=axis, ret_type=ret_type, is_ascend=is_ascend, dtype=dtype)
        is_pair = ret_type == "both" and not isinstance(result, TupleWrapper)
        return TupleWrapper(result, 2) if is_pair else result

    def arange(start: Any, stop: Any = None, step: Any = None, dtype: str = "float32") -> Expr:
        """Numbers in equal steps."""
        if stop is None:
            start, stop = None, start
        values = [const(default, dtype) if value is None else value for value, default in ((start, 0), (step, 1))]
        values = [value if isinstance(value, Expr) else const(value, dtype) for value in (values[0], stop, values[1])]
        return Call("arange", values, {"dtype": dtype})

    def transpose(data: Any, axes: Any = None) -> Expr:
        """Tensor with its axes permuted, by default reversed."""
        return raw["transpose"](data, axes=axes)

    def meshgrid(data: Any, indexing: str = "ij") -> TupleWrapper:
        """Coordinate grids of vectors."""
        fields = list(data)
        return TupleWrapper(Call("meshgrid", [as_expr(fields)], {"indexing": indexing}), len(fields))

    def variance(data, axis=None, keepdims=False, exclude=False, unbiased=False, with_mean=None) -> Expr:
        """Variance over axes."""
        mean = op.mean(data, axis, True, exclude) if with_mean is None else with_mean
        return raw["variance"](data, mean, axis=axis, keepdims=keepdims, exclude=exclude, unbiased=unbiased)

    def std(data: Any, axis=None, keepdims=False, exclude=False, unbiased=False) -> Expr:
        """Standard deviation over axes."""
        return op.sqrt(variance(data, axis, keepdims, exclude, unbiased))

    def mean_variance(data, axis=None, keepdims=False, exclude=False, unbiased=False) -> TupleWrapper:
        """Mean and variance over axes."""
        mean = op.mean(data, axis, True, exclude)
        spread = variance(data, axis, keepdims, exclude, unbiased, mean)
        shown = mean if keepdims else op.squeeze(mean, axis=axis if axis is None else _shape(axis))
        return TupleWrapper(Tuple([shown, spread]), 2)

    def mean_std(data: Any, axis=None, keepdims=False, exclude=False) -> TupleWrapper:
        """Mean and standard deviation over axes."""
        mean, spread = mean_variance(data, axis, keepdims, exclude)
        return TupleWrapper(Tuple([mean, op.sqrt(spread)]), 2)

    def logsumexp(data: Any, axis=None, keepdims: bool = False) -> Expr:
        """Logarithm of the sum of exponentials over axes."""
        highest = op.max(data, axis, True)
        result = op.add(op.log(op.sum(op.exp(op.subtract(data, highest)), axis, True)), highest)
        return result if keepdims else op.squeeze(result, axis=axis if axis is None else _shape(axis))

    def gather_nd(data: Any, indices: Any, batch_dims: int = 0, index_rank: int | None = None) -> Expr:
        """Slices at multi-dimensional indices."""
        return Call("gather_nd", [data, as_expr(indices)], {"batch_dims": batch_dims, "index_rank": index_rank})

    def strided_set(data: Any, v: Any, begin: Any, end: Any, strides: Any = None) -> Expr:
        """Tensor with a slice replaced."""
        wanted = [[1] * len(begin) if strides is None and isinstance(begin, (list, tuple)) else strides]
        parts = [as_expr(list_const(part)) for part in (begin, end, *wanted)]
        return Call("strided_set", [data, v, *parts])

    def list_const(value: Any) -> Any:
        is_numbers = isinstance(value, (list, tuple)) and not any(isinstance(v, Expr) for v in value)
        return const(np.asarray(value, "int32")) if is_numbers else value

    def batch_norm(data, gamma, beta, moving_mean, moving_var, axis=1, epsilon=1e-5, center=True, scale=True):
        """Batch normalization: the result, and the mean and variance."""
        attrs = {"axis": axis, "epsilon": epsilon, "center": center, "scale": scale}
        result = raw_nn["batch_norm"](data, gamma, beta, moving_mean, moving_var, **attrs)
        return result if isinstance(result, TupleWrapper) else TupleWrapper(result, 3)

    def dropout_raw(data: Any, rate: float = 0.5) -> TupleWrapper:
        """Dropout: the result and the mask."""
        result = raw_nn["dropout"](data, rate)
        return result if isinstance(result, TupleWrapper) else TupleWrapper(result, 2)

    def dropout(data: Any, rate: float = 0.5) -> Expr:
        """Dropout, which inference leaves out."""
        return dropout_raw(data, rate)[0]

    def global_pool(name: str, rank: int, layout: str) -> Callable:
        def pool(data: Any, layout: str = layout, out_layout: str = "") -> Expr:
            return Call(name, [data], {"output_size": [1] * rank, "layout": layout, "out_layout": out_layout})

        return pool

    def adaptive(name: str, rank: int, layout: str) -> Callable:
        def pool(data: Any, output_size: Any = None, layout: str = layout, out_layout: str = "") -> Expr:
            size = [output_size] * rank if isinstance(output_size, int) else list(output_size or [])
            return Call(name, [data], {"output_size": size, "layout": layout, "out_layout": out_layout})

        return pool

    def sparse(name: str, first: bool) -> Callable:
        def create(*args: Any, **attrs: Any) -> Any:
            dense, matrix = (args[0], args[1]) if first else (None, args[0])
            parts = (
                [getattr(matrix, key) for key in ("data", "indices", "indptr")] if hasattr(matrix, "indptr") else matrix
            )
            exprs = [as_expr(part) if isinstance(part, Expr) else const(np.asarray(part)) for part in parts]
            return _call(f"nn.{name}", ([as_expr(dense)] if first else []) + exprs, attrs)

        return create

    layouts = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
    pools: dict[str, Callable] = {}
    for rank, layout in layouts.items():
        for kind in ("max", "avg"):
            name = f"nn.adaptive_{kind}_pool{rank}d"
            pools[f"adaptive_{kind}_pool{rank}d"] = adaptive(name, rank, layout)
            if rank != 2:
                pools[f"global_{kind}_pool{rank}d"] = global_pool(name, rank, layout)

    def matrix_set_diag(data: Any, diagonal: Any, k: Any = 0, align: str = "RIGHT_LEFT") -> Expr:
        """Matrices with diagonals replaced."""
        low, high = (k, k) if isinstance(k, int) else (k[0], k[-1])
        sides = align.split("_")
        attrs = {"k1": low, "k2": high, "super_diag_right_align": sides[0] == "RIGHT"}
        return Call("matrix_set_diag", [data, diagonal], {**attrs, "sub_diag_right_align": sides[1] == "RIGHT"})

    def threefry_key(seed: int) -> Expr:
        """Key of random numbers for a seed."""
        return const(np.array([0, 0, 0, 0, 0, 0, 0, 0, 1 << 63, seed], dtype="uint64"))

    def on_device(body: Expr, device: Any = None, constrain_result: bool = False, constrain_body: bool = True) -> Expr:
        """Leaves the expression as it is: the host has one device."""
        return body

    def concatenated(name: str) -> Callable:
        def join(data: Any, axis: int = 0) -> Expr:
            if not isinstance(axis, int):
                raise ValueError(f"{name}: expected an integer axis, found {axis!r}")
            fields = data if isinstance(data, Expr) else list(data)
            if isinstance(fields, list) and not fields:
                raise ValueError(f"{name}: expected at least one tensor, found none")
            return Call(name, [as_expr(fields)], {"axis": axis})

        return join

    def concatenate(data: Any, input_scales, input_zero_points, output_scale, output_zero_point, axis: int) -> Expr:
        """Concatenation of quantized tensors."""
        data = list(data) if isinstance(data, TupleWrapper) else data
        args = [as_expr(arg) for arg in (data, input_scales, input_zero_points, output_scale, output_zero_point)]
        return Call("qnn.concatenate", args, {"axis": axis})

    @contextlib.contextmanager
    def requantize_config(**_: Any):
        """Context that leaves requantization as it is: each call names its rounding."""
        yield

    def reverse_reshape(data: Any, newshape: Any) -> Expr:
        """Tensor with another shape, inferred from the right."""
        return Call("contrib_reverse_reshape", [data], {"newshape": _shape(newshape)})

    general = {
        "zeros": zeros, "ones": ones, "full": full, "split": split, "topk": topk, "arange": arange,
        "transpose": transpose, "meshgrid": meshgrid, "variance": variance, "std": std,
        "mean_variance": mean_variance, "mean_std": mean_std, "logsumexp": logsumexp, "gather_nd": gather_nd,
        "concatenate": concatenated("concatenate"), "stack": concatenated("stack"), "strided_set": strided_set,
        "matrix_set_diag": matrix_set_diag, "reverse_reshape": reverse_reshape,
    }  # fmt: skip
    neural = {
        "batch_norm": batch_norm, "dropout": dropout, "dropout_raw": dropout_raw, **pools,
        "sparse_dense": sparse("sparse_dense", True), "sparse_add": sparse("sparse_add", True),
        "sparse_transpose": sparse("sparse_transpose", False),
    }  # fmt: skip
    return {
        "": general,
        "nn": neural,
        "random": {"threefry_key": threefry_key},
        "annotation": {"on_device": on_device, "function_on_device": lambda function, *_: function},
        "qnn": {"concatenate": concatenate, "requantize_config": requantize_config},
    }
