"""Node generators, one per operator: each returns a valid node for a builder (fuzz_build.Builder), or refuses."""

import numpy as np
import onnx
from onnx import helper

from fuzz_graph import (
    BF16,
    BOOL,
    BY_NAME,
    DTYPES,
    F16,
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    SIGNED,
    UNSIGNED,
    Refused,
    tensor_proto,
)

MAKERS = {}


def makes(names):
    def register(make):
        for name in names.split():
            MAKERS[name] = make
        return make

    return register


# Elementwise operators.


@makes(
    "Abs Asinh Atan Ceil Cos Erf Floor Identity IsNaN Mish Neg Not Relu Round Sigmoid Sign Sin Softplus Softsign Tanh"
    " BitwiseNot HardSwish"
)
def unary(b):
    return b.done([b.any(0)])


RANGES = {
    "Acos": (-1, 1),
    "Asin": (-1, 1),
    "Acosh": (1, 6),
    "Atanh": (-0.9, 0.9),
    "Cosh": (-4, 4),
    "Sinh": (-4, 4),
    "Exp": (-5, 5),
    "Log": (0.1, 20),
    "Sqrt": (0, 50),
    "Reciprocal": (0.2, 9),
    "Tan": (-1.3, 1.3),
}


@makes(" ".join(RANGES))
def unary_in_range(b):
    if not b.graph.finite:
        return b.done([b.any(0)])
    return b.done([b.within(0, *RANGES[b.op])])


ATTRIBUTES = {
    "Celu": {"alpha": (0.3, 3)},
    "Elu": {"alpha": (0, 3)},
    "HardSigmoid": {"alpha": (-0.5, 1), "beta": (-0.5, 1)},
    "LeakyRelu": {"alpha": (-0.5, 1.5)},
    "Selu": {"alpha": (0, 3), "gamma": (0.5, 2)},
    "Shrink": {"lambd": (0, 2), "bias": (-1, 1)},
    "Swish": {"alpha": (-2, 2)},
    "ThresholdedRelu": {"alpha": (-1, 2)},
}


@makes(" ".join(ATTRIBUTES))
def activation(b):
    attrs = {}
    for key, (low, high) in ATTRIBUTES[b.op].items():
        attrs[key] = b.maybe(lambda: round(float(b.rng.uniform(low, high)), 2), 0.6)
    return b.done([b.any(0)], **attrs)


@makes("Gelu")
def gelu(b):
    return b.done([b.any(0)], approximate=b.maybe(lambda: b.pick(["none", "tanh"])))


@makes("IsInf")
def is_inf(b):
    return b.done(
        [b.any(0)], detect_negative=b.maybe(lambda: b.int(0, 1)), detect_positive=b.maybe(lambda: b.int(0, 1))
    )


@makes("Add And BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterOrEqual Less LessOrEqual Mul Or Sub Xor")
def binary(b):
    x = b.any(0)
    y = b.like(1, b.grown(b.shape(x)))
    return b.done([x, y] if b.some(0.6) else [y, x])


@makes("Div Mod")
def division(b):
    x = b.any(0)
    kind = b.array(x).dtype
    shape = b.grown(b.shape(x))
    fmod = None
    if b.op == "Mod":
        fmod = 1 if kind in FLOATS else b.maybe(lambda: b.int(0, 1))
    if kind in FLOATS and not b.graph.finite:
        return b.done([x, b.like(1, shape)], fmod=fmod)
    y = b.array(b.new(1, shape, 1, 9, 0.5))
    if kind not in UNSIGNED and b.some(0.6):
        y = (y * b.rng.choice([-1, 1], y.shape)).astype(kind)
    if kind in SIGNED and (b.array(x) == np.iinfo(kind).min).any():
        y = np.abs(y)
    return b.done([x, b.add(y, 0.5)], fmod=fmod)


@makes("Pow")
def power(b):
    x = b.within(0, 0.1, 4) if b.some(0.5) else b.any(0)
    shape = b.grown(b.shape(x))
    if b.since < 12:
        kinds = [b.array(x).dtype]
    else:
        kinds = b.allowed(1)
    kind = b.pick(kinds)
    small(b, x)
    whole = kind not in FLOATS or b.array(x).dtype not in FLOATS or bool((b.array(x) < 0).any())
    y = b.rng.integers(0, 4, shape) if whole else b.rng.uniform(-2, 3, shape)
    return b.done([x, b.add(np.asarray(y).astype(F32).astype(kind), 0.6)])


@makes("BitShift")
def bit_shift(b):
    x = b.any(0)
    bits = b.array(x).dtype.itemsize * 8
    y = b.new(1, b.grown(b.shape(x)), 0, bits - 1, 0.5)
    return b.done([x, y], direction=b.pick(["LEFT", "RIGHT"]))


@makes("Max Min Mean Sum")
def variadic(b):
    first = b.any(0)
    # Shapes that broadcast with the first one also broadcast with each other.
    rest = [b.like(0, b.broadcast(b.shape(first))) for _ in range(b.int(0, 3))]
    return b.done([first, *rest])


@makes("PRelu")
def prelu(b):
    x = b.any(0)
    return b.done([x, b.like(1, b.broadcast(b.shape(x)))])


@makes("Where")
def where(b):
    x = b.any(1)
    y = b.like(2, b.grown(b.shape(x)))
    shape = list(np.broadcast_shapes(tuple(b.shape(x)), tuple(b.shape(y))))
    return b.done([b.like(0, b.broadcast(shape)), x, y])


@makes("Clip")
def clip(b):
    x = b.any(0)
    if b.since < 11:
        low, high = sorted(b.rng.uniform(-3, 3, 2).round(2).tolist())
        return b.done([x], min=b.maybe(lambda: low), max=b.maybe(lambda: high))
    low = b.maybe(lambda: b.new(1, [], -5, 1, 0.6))
    high = b.maybe(lambda: b.new(2, [], 0, 5, 0.6))
    return b.done([x, low, high])


@makes("Cast")
def cast(b):
    x = b.any(0)
    outputs = [
        BY_NAME[n]
        for c in b.schema.type_constraints
        if c.type_param_str == "T2"
        for n in c.allowed_type_strs
        if n in BY_NAME
    ]
    to = b.pick(outputs)
    castable(b, x, to)
    return b.done(
        [x],
        to=helper.np_dtype_to_tensor_dtype(to),
        saturate=b.maybe(lambda: b.int(0, 1), 0.1) if b.since >= 19 else None,
    )


def castable(b, x, to):
    """Refuses casts from floating point whose result ONNX does not specify."""
    array = b.array(x)
    if array.dtype not in FLOATS or to in FLOATS or to == BOOL:
        return
    info = np.iinfo(to)
    wide = array.astype(np.float64)
    if not (np.isfinite(wide) & (wide > max(info.min, -(2**62)) - 1) & (wide < min(info.max, 2**62) + 1)).all():
        raise Refused(f"{b.op}: value out of range for {np.dtype(to).name}")


@makes("CastLike")
def cast_like(b):
    x, target = b.any(0), b.any(1)
    castable(b, x, b.array(target).dtype)
    return b.done([x, target])


@makes("Dropout")
def dropout(b):
    x = b.any(0)
    outputs = b.int(1, 2)
    if b.since < 12:
        return b.done([x], outputs, ratio=b.maybe(lambda: 0.25))
    ratio = b.maybe(lambda: b.new(1, [], 0, 0.9))
    training = b.maybe(lambda: b.add(np.array(False), 0.6), 0.3)
    if training and b.some(0.3):
        ratio, training = b.new(1, [], 0, 0, 1.0), b.add(np.array(True), 1.0)
    return b.done([x, ratio, training], outputs, seed=b.maybe(lambda: 3, 0.2))


# Shapes and data movement.


@makes("Shape")
def shape(b):
    x = b.any(0)
    start = end = None
    if b.since >= 15:
        start, end = b.maybe(lambda: b.int(-4, 4)), b.maybe(lambda: b.int(-4, 6))
    return b.done([x], start=start, end=end)


@makes("Size")
def size(b):
    return b.done([b.any(0)])


@makes("Constant")
def constant(b):
    kind = b.pick([k for k in DTYPES if b.opset >= 13 or k != BF16])
    array = b.random(kind, b.dims(0, 3))
    choice = b.int(0, 4) if b.since >= 12 else 0
    if choice == 1:
        return b.done([], value_float=float(np.float32(b.rng.normal())))
    if choice == 2:
        return b.done([], value_int=b.int(-9, 9))
    if choice == 3:
        return b.done([], value_floats=[float(np.float32(v)) for v in b.rng.normal(size=b.int(1, 4))])
    if choice == 4:
        return b.done([], value_ints=[b.int(-9, 9) for _ in range(b.int(1, 4))])
    return b.done([], value=tensor_proto(array, "value"))


@makes("ConstantOfShape")
def constant_of_shape(b):
    dims = b.dims(0, 4)
    kinds = [k for k in DTYPES if b.since >= 20 or k != BF16]
    value = b.maybe(lambda: tensor_proto(b.random(b.pick(kinds), [1]), "value"), 0.8)
    return b.done([b.ints(0, dims)], value=value)


@makes("EyeLike")
def eye_like(b):
    x = b.any(0, 2, 2)
    kinds = [BY_NAME[n] for n in b.schema.type_constraints[1].allowed_type_strs if n in BY_NAME]
    dtype = b.maybe(lambda: helper.np_dtype_to_tensor_dtype(b.pick(kinds)))
    return b.done([x], dtype=dtype, k=b.maybe(lambda: b.int(-4, 4)))


@makes("Range")
def range_(b):
    kind = b.dtype(0)
    whole = kind not in FLOATS
    start, delta = b.int(-5, 5), b.pick([-3, -2, -1, 1, 2, 3])
    limit = start + delta * b.int(-1, 8) + b.int(0, 1)
    scale = 1 if whole else 0.5
    return b.done([b.add(np.array(v * scale).astype(kind), 0.6) for v in (start, limit, delta)])


@makes("Reshape")
def reshape(b):
    x = b.any(0)
    shape = split_factors(b, b.array(x).size)
    if b.some(0.3) and b.rank(x) > 1:
        shape = b.shape(x)[:1] + split_factors(b, int(np.prod(b.shape(x)[1:])))
        shape[0] = 0
    allowzero = None
    if b.since >= 14 and b.some(0.25):
        allowzero = b.int(0, 1)
        if allowzero and 0 in shape and b.array(x).size:
            shape[0] = b.shape(x)[0]
    if shape and b.some(0.5) and 0 not in shape:
        shape[b.int(0, len(shape) - 1)] = -1
    return b.done([x, b.ints(1, shape)], allowzero=allowzero)


def split_factors(b, n):
    """Returns dimensions with the given product."""
    dims = [n]
    for _ in range(b.int(0, 3)):
        d = dims.pop(b.int(0, len(dims) - 1))
        factors = [f for f in range(1, min(d, 64) + 1) if d % f == 0] if d else [1, 2]
        f = b.pick(factors)
        dims += [f, d // f]
    return [] if n == 1 and b.some(0.3) else [int(d) for d in b.rng.permutation(dims)]


@makes("Flatten")
def flatten(b):
    x = b.any(0, 1)
    low = -b.rank(x) if b.since >= 11 else 0
    return b.done([x], axis=b.maybe(lambda: b.int(low, b.rank(x)), 0.7))


@makes("Transpose")
def transpose(b):
    x = b.any(0)
    return b.done([x], perm=b.maybe(lambda: [int(i) for i in b.rng.permutation(b.rank(x))], 0.8 if b.rank(x) else 0))


@makes("Squeeze")
def squeeze(b):
    x = b.any(0, 1, accepts=lambda a: 1 in a.shape) if b.some(0.9) else b.any(0)
    ones = [i for i, d in enumerate(b.shape(x)) if d == 1]
    count = b.int(0, len(ones))
    axes = [int(a) for a in b.rng.permutation(ones)[:count]]
    if b.since >= 11:
        axes = [a - b.rank(x) if b.some(0.3) else a for a in axes]
    if not axes or b.some(0.2):
        return b.done([x])
    return b.done([x, b.ints(1, axes)]) if b.since >= 13 else b.done([x], axes=axes)


@makes("Unsqueeze")
def unsqueeze(b):
    x = b.any(0, 0, 4)
    count = b.int(1, 2)
    axes = [int(a) for a in b.rng.permutation(b.rank(x) + count)[:count]]
    if b.since >= 11:
        axes = [a - b.rank(x) - count if b.some(0.3) else a for a in axes]
    return b.done([x, b.ints(1, axes)]) if b.since >= 13 else b.done([x], axes=axes)


@makes("Expand")
def expand(b):
    x = b.any(0, 0, 4)
    return b.done([x, b.ints(1, b.grown(b.shape(x)))])


@makes("Tile")
def tile(b):
    x = b.any(0, 1, 4)
    repeats = [b.pick([0, 1, 2, 3] if b.style.zeros else [1, 1, 2, 3]) for _ in b.shape(x)]
    return b.done([x, b.ints(1, repeats)])


@makes("Concat")
def concat(b):
    x = b.any(0, 1)
    axis = b.int(0, b.rank(x) - 1)
    inputs = [x]
    for _ in range(b.int(0, 3)):
        shape = b.shape(x)
        shape[axis] = b.pick([shape[axis], b.dim()])
        inputs.append(b.like(0, shape))
    return b.done(inputs, axis=axis - b.rank(x) if b.since >= 11 and b.some(0.4) else axis)


@makes("Split")
def split(b):
    x = b.any(0, 1)
    axis = b.axis(b.rank(x), b.since >= 11)
    size, parts = b.shape(x)[axis], b.int(1, 3)
    cuts = (
        sorted(b.int(0, size) for _ in range(parts - 1))
        if b.some(0.2)
        else sorted(b.rng.permutation(range(1, size))[: parts - 1].tolist()) if size else [0] * (parts - 1)
    )
    sizes = [int(v) for v in np.diff([0, *cuts, size])]
    named = axis if axis or b.some(0.5) else None
    if b.some(0.4):
        if b.since >= 18:
            parts = b.int(1, max(1, min(size, 4)))
            return b.done([x], parts, axis=named, num_outputs=parts)
        equal = [p for p in (1, 2, 3) if size % p == 0]
        return b.done([x], b.pick(equal), axis=named)
    if b.since >= 13:
        return b.done([x, b.ints(1, sizes)], len(sizes), axis=named)
    return b.done([x], len(sizes), axis=named, split=sizes)


@makes("Slice")
def slice_(b):
    x = b.any(0, 1)
    axes = b.axes(b.rank(x), 1, b.since >= 10)
    starts, ends, steps = [], [], []
    for axis in axes:
        d = b.shape(x)[axis]
        start, end = sorted([b.int(0, d), b.int(0, d)])
        step = 1
        if b.since >= 10 and b.some(0.5):
            step = b.pick([2, 3, -1, -2])
        if step < 0:
            start, end = end, start - 1 if start else -d - 1
        elif b.some(0.2):
            end = b.pick([2**31 - 1, d + 3])
        if b.some(0.3) and d and start:
            start -= d if start < d else 0
        starts.append(start), ends.append(end), steps.append(step)
    if b.since < 10:
        return b.done([x], starts=starts, ends=ends, axes=axes)
    everything = axes == list(range(b.rank(x))) and b.some(0.5)
    given = None if everything else axes
    stepped = any(s != 1 for s in steps) or b.some(0.2)
    b.dtype(1, [I32, I64])
    return b.done(
        [
            x,
            b.ints(1, starts),
            b.ints(2, ends),
            b.ints(3, given) if given else None,
            b.ints(4, steps) if stepped else None,
        ]
    )


@makes("Pad")
def pad(b):
    x = b.any(0, 1, 4)
    rank = b.rank(x)
    modes = ["constant", "reflect", "edge"] + (["wrap"] if b.since >= 19 else [])
    mode = b.pick(modes)
    axes = b.axes(rank) if b.since >= 18 and b.some(0.4) else None
    of = [b.shape(x)[a] for a in axes] if axes else b.shape(x)
    if mode != "constant" and 0 in b.shape(x):
        mode = "constant"
    if mode == "reflect":
        pads = [b.int(0, min(3, d - 1)) for d in of + of]
    else:
        pads = [b.int(0, 3) for _ in of + of]
    if b.some(0.25):
        # A negative pad crops.
        i = b.int(0, len(of) - 1)
        pads[i] = -b.int(0, min(of[i], 2))
    named = mode if mode != "constant" or b.some(0.3) else None
    if b.since < 11:
        return b.done([x], pads=pads, mode=named, value=b.maybe(lambda: 1.5))
    fill = b.maybe(lambda: b.new(2, [], -5, 5, 0.6), 0.5 if mode == "constant" else 0.1)
    return b.done([x, b.ints(1, pads), fill, b.ints(3, axes) if axes else None], mode=named)


@makes("DepthToSpace SpaceToDepth")
def depth(b):
    block = b.int(1, 3)
    n, c, h, w = b.dims(4)
    shape = [n, c * block**2, h, w] if b.op == "DepthToSpace" else [n, c, h * block, w * block]
    x = b.like(0, shape)
    mode = b.maybe(lambda: b.pick(["DCR", "CRD"])) if b.op == "DepthToSpace" and b.since >= 11 else None
    return b.done([x], blocksize=block, mode=mode)


@makes("Trilu")
def trilu(b):
    x = b.any(0, 2)
    k = b.maybe(lambda: b.add(np.array(b.int(-4, 4)), 0.6), 0.7)
    return b.done([x, k], upper=b.maybe(lambda: b.int(0, 1), 0.7))


# Indexing.


def indices(b, i, shape, size, negative=True):
    """Returns indices into an axis of the given size."""
    if size == 0 and np.prod(shape):
        raise Refused(f"{b.op}: indices into an empty axis")
    kind = b.dtype(i)
    low = -size if negative and b.some(0.5) else 0
    return b.add(b.rng.integers(low, max(size, 1), shape).astype(kind), 0.5)


@makes("Gather")
def gather(b):
    x = b.any(0, 1)
    axis = b.axis(b.rank(x))
    shape = b.dims(0, 2)
    return b.done(
        [x, indices(b, 1, shape, b.shape(x)[axis], b.since >= 11)], axis=axis if axis or b.some(0.5) else None
    )


@makes("GatherElements")
def gather_elements(b):
    x = b.any(0, 1)
    axis = b.axis(b.rank(x))
    shape = [b.int(min(1, d), d) for d in b.shape(x)]
    shape[axis] = b.dim()
    return b.done([x, indices(b, 1, shape, b.shape(x)[axis])], axis=axis if axis or b.some(0.5) else None)


@makes("Scatter ScatterElements")
def scatter_elements(b):
    x = b.any(0, 1)
    axis = b.axis(b.rank(x), b.since >= 11)
    size = b.shape(x)[axis]
    shape = [b.int(min(1, d), d) for d in b.shape(x)]
    reductions = ["none"] + (["add", "mul"] if b.since >= 16 else []) + (["max", "min"] if b.since >= 18 else [])
    reduction = b.pick(reductions)
    if size == 0:
        raise Refused(f"{b.op}: indices into an empty axis")
    if reduction == "none":
        # The order of updates to the same element is unspecified.
        rows = b.rng.permuted(
            np.broadcast_to(np.arange(size), [d for i, d in enumerate(shape) if i != axis % b.rank(x)] + [size]),
            axis=-1,
        )
        index = np.moveaxis(rows[..., : shape[axis]], -1, axis)
        if b.since >= 11 and b.some(0.3):
            index = index - size
        index = b.add(index.astype(b.dtype(1)), 0.5)
    else:
        index = indices(b, 1, shape, size)
    updates = b.like(2, shape)
    return b.done(
        [x, index, updates],
        axis=axis if axis or b.some(0.5) else None,
        reduction=reduction if reduction != "none" else None,
    )


@makes("GatherND")
def gather_nd(b):
    x = b.any(0, 1)
    rank = b.rank(x)
    batch = b.int(0, min(1, rank - 1)) if b.since >= 12 else 0
    depth = b.int(1, rank - batch)
    dims = b.shape(x)[batch : batch + depth]
    shape = b.shape(x)[:batch] + b.dims(0, 2)
    return b.done([x, tuples(b, 1, shape, dims)], batch_dims=batch if batch or b.some(0.2) else None)


def tuples(b, i, shape, dims, negative=True):
    if 0 in dims and np.prod(shape):
        raise Refused(f"{b.op}: indices into an empty axis")
    columns = [b.rng.integers(-d if negative and b.some(0.3) else 0, max(d, 1), shape) for d in dims]
    return b.add(np.stack(columns, axis=-1).astype(b.dtype(i)), 0.5)


@makes("ScatterND")
def scatter_nd(b):
    x = b.any(0, 1)
    depth = b.int(1, b.rank(x))
    dims = b.shape(x)[:depth]
    reductions = ["none"] + (["add", "mul"] if b.since >= 16 else []) + (["max", "min"] if b.since >= 18 else [])
    reduction = b.pick(reductions)
    if 0 in dims:
        raise Refused(f"{b.op}: indices into an empty axis")
    if reduction == "none":
        places = b.rng.permutation(int(np.prod(dims)))[: b.int(1, 4)]
        index = b.add(np.stack(np.unravel_index(places, dims), axis=-1).astype(I64), 0.5)
    else:
        index = tuples(b, 1, b.dims(1, 2), dims)
    updates = b.like(2, b.shape(index)[:-1] + b.shape(x)[depth:])
    return b.done([x, index, updates], reduction=reduction if reduction != "none" else None)


@makes("OneHot")
def one_hot(b):
    depth = b.int(1, 6)
    kind = b.dtype(0)
    low = 0 if kind in UNSIGNED else -depth - 1
    x = b.add(b.rng.integers(low, depth + 1, b.dims(0, 3)).astype(kind), 0.3)
    n = b.add(np.array(depth if b.some(0.7) else [depth]).astype(b.dtype(1)), 0.7)
    values = b.new(2, [2], constant=0.6)
    rank = b.rank(x) + 1
    return b.done([x, n, values], axis=b.maybe(lambda: b.axis(rank), 0.7))


@makes("ReverseSequence")
def reverse_sequence(b):
    x = b.any(0, 2)
    batch = b.int(0, 1)
    lengths = [b.int(1, d) if d else 0 for d in [b.shape(x)[1 - batch]] * b.shape(x)[batch]]
    named = b.some(0.6) or batch == 0
    return b.done([x, b.ints(1, lengths)], batch_axis=batch if named else None, time_axis=1 - batch if named else None)


@makes("TopK")
def top_k(b):
    # The elements are distinct; the order of equal elements is tested separately.
    x = b.any(0, 1, accepts=lambda a: a.size and a.dtype not in (F16, BF16))
    axis = b.axis(b.rank(x), b.since >= 11)
    k = b.int(1, max(b.shape(x)[axis], 1))
    attrs = {"axis": axis if axis != -1 or b.some(0.5) else None}
    if b.since >= 11:
        attrs |= {"largest": b.maybe(lambda: b.int(0, 1)), "sorted": b.maybe(lambda: 1)}
    return b.done([x, b.ints(1, [k])], 2, **attrs)


# Reductions.


def small(b, name):
    """Refuses integers whose product overflows."""
    array = b.array(name)
    if array.dtype not in FLOATS and (np.abs(array.astype(np.float64)) > 40).any():
        raise Refused(f"{b.op}: expected integers from -40 to 40, found larger ones")


@makes(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
def reduce(b):
    x = b.within(0, 0.1, 4) if b.op == "ReduceLogSum" else b.any(0)
    small(b, x)
    rank = b.rank(x)
    axes = b.axes(rank, 1, b.since >= 11) if rank and b.some(0.75) else None
    keep = b.maybe(lambda: b.int(0, 1), 0.7)
    if b.since >= (13 if b.op == "ReduceSum" else 18):
        if axes is None and b.some(0.3):
            axes = []
        noop = b.maybe(lambda: b.int(0, 1))
        given = None if axes is None else b.add(np.array(axes, I64), 0.65)
        return b.done([x, given], keepdims=keep, noop_with_empty_axes=noop)
    return b.done([x], axes=axes, keepdims=keep)


@makes("ArgMax ArgMin")
def arg(b):
    x = b.any(0, 1)
    axis = b.maybe(lambda: b.axis(b.rank(x), b.since >= 11), 0.8)
    last = b.maybe(lambda: b.int(0, 1)) if b.since >= 12 else None
    return b.done([x], axis=axis, keepdims=b.maybe(lambda: b.int(0, 1), 0.7), select_last_index=last)


@makes("CumSum CumProd")
def cumulate(b):
    x = b.any(0, 1)
    axis = np.array(b.axis(b.rank(x))).reshape([] if b.some(0.7) else [1]).astype(b.dtype(1))
    if b.op == "CumProd":
        axis = axis.reshape([])
    return b.done([x, b.add(axis, 0.65)], exclusive=b.maybe(lambda: b.int(0, 1)), reverse=b.maybe(lambda: b.int(0, 1)))


# Matrix products.


@makes("MatMul")
def mat_mul(b):
    x, y = factors(b, 0, 1)
    return b.done([x, y])


def factors(b, i, j):
    """Returns two operands of a matrix product."""
    x = b.any(i, 1, 4, accepts=lambda a: a.size < 5000)
    shape = b.shape(x)
    k = shape[-1]
    if b.some(0.15):
        return x, b.like(j, [k])
    batch = b.broadcast(shape[:-2]) if len(shape) > 2 else []
    if b.some(0.1):
        batch = [b.int(1, 3), *batch] if len(batch) == len(shape[:-2]) else batch
    return x, b.like(j, [*batch, k, b.dim()])


@makes("Gemm")
def gemm(b):
    x = b.any(0, 2, 2)
    small(b, x)
    ta, tb = b.maybe(lambda: b.int(0, 1)), b.maybe(lambda: b.int(0, 1))
    m, k = b.shape(x) if not ta else b.shape(x)[::-1]
    n = b.dim()
    y = b.like(1, [n, k] if tb else [k, n])
    c = None
    if b.since < 11 or b.some(0.7):
        c = b.like(2, b.pick([[m, n], [1, n], [m, 1], [n], [1], []]))
    alpha, beta = (b.maybe(lambda: round(float(b.rng.uniform(-2, 2)), 2)) for _ in range(2))
    if b.array(x).dtype not in FLOATS:
        alpha = beta = None
    return b.done([x, y, c], transA=ta, transB=tb, alpha=alpha, beta=beta)


# Convolutions and pooling.


class Window:
    """Kernel, strides, dilations and padding over the spatial dimensions of a value of shape [n, c, ...]."""

    def __init__(self, b, dilated=True, ceil=False):
        self.rank = b.pick([1, 2, 2, 2, 3])
        self.kernel = [b.int(1, 3) for _ in range(self.rank)]
        self.strides = b.maybe(lambda: [b.int(1, 3) for _ in range(self.rank)])
        self.dilations = b.maybe(lambda: [b.int(1, 2) for _ in range(self.rank)], 0.35 if dilated else 0)
        self.extent = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations or [1] * self.rank)]
        self.auto_pad = b.maybe(lambda: b.pick(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]), 0.4)
        self.pads = None
        if self.auto_pad in (None, "NOTSET") and b.some(0.5):
            self.pads = [b.int(0, k - 1) for k in self.kernel * 2]
        self.ceil_mode = b.maybe(lambda: b.int(0, 1)) if ceil else None

    def space(self, b):
        """Returns spatial dimensions at least as large as the dilated kernel."""
        return [e + b.int(0, 20 if b.style.large else 5) for e in self.extent]

    def attrs(self, pads=True):
        attrs = {"strides": self.strides, "dilations": self.dilations, "auto_pad": self.auto_pad}
        return (
            attrs
            | ({"pads": self.pads} if pads else {})
            | ({"ceil_mode": self.ceil_mode} if self.ceil_mode is not None else {})
        )


def image(b, i, window, channels=None):
    """Returns a value of shape [n, c, ...] at least as large as the window."""

    def fits(a):
        return (
            a.ndim == window.rank + 2
            and a.size
            and all(d >= e for d, e in zip(a.shape[2:], window.extent))
            and (channels is None or a.shape[1] == channels)
        )

    found = b.old(i, fits)
    return found or b.new(
        i, [b.int(1, 2), channels or b.int(1, 16 if b.style.large else 4), *window.space(b)], constant=0.05
    )


@makes("Conv ConvInteger")
def conv(b):
    window = Window(b)
    x = image(b, 0, window)
    c = b.shape(x)[1]
    group = b.pick([g for g in range(1, c + 1) if c % g == 0]) if b.some(0.4) else 1
    out = group * b.int(1, 8 if b.style.large else 3)
    w = (
        b.like(1, [out, c // group, *window.kernel])
        if b.some(0.4)
        else b.new(1, [out, c // group, *window.kernel], constant=0.9)
    )
    attrs = window.attrs() | {
        "group": group if group > 1 or b.some(0.3) else None,
        "kernel_shape": b.maybe(lambda: window.kernel, 0.6),
    }
    if b.op == "Conv":
        bias = b.maybe(lambda: b.new(2, [out], constant=0.8))
        return b.done([x, w, bias], **attrs)
    zx = b.maybe(lambda: b.new(2, [], 0, 9, 0.7), 0.7)
    zw = b.maybe(lambda: b.new(3, b.pick([[], [], [out]]), 0, 3, 0.7), 0.6 if zx else 0)
    return b.done([x, w, zx, zw], **attrs)


@makes("ConvTranspose")
def conv_transpose(b):
    window = Window(b)
    x = image(b, 0, window)
    c = b.shape(x)[1]
    group = b.pick([g for g in range(1, c + 1) if c % g == 0]) if b.some(0.4) else 1
    out = b.int(1, 3)
    w = b.new(1, [c, out, *window.kernel], constant=0.8)
    bias = b.maybe(lambda: b.new(2, [out * group], constant=0.8))
    strides = window.strides or [1] * window.rank
    extra = b.maybe(lambda: [b.int(0, s - 1) for s in strides], 0.3)
    attrs = window.attrs() | {"output_padding": extra, "group": group if group > 1 else None}
    if b.some(0.15):
        natural = [
            s * (d - 1) + e + (p or 0)
            for s, d, e, p in zip(strides, b.shape(x)[2:], window.extent, extra or [0] * window.rank)
        ]
        attrs |= {"output_shape": [max(1, n - b.int(0, 1)) for n in natural], "pads": None}
    return b.done([x, w, bias], kernel_shape=b.maybe(lambda: window.kernel, 0.6), **attrs)


@makes("AveragePool LpPool MaxPool")
def pool(b):
    since = b.since
    dilated = {"MaxPool": since >= 10, "AveragePool": since >= 19, "LpPool": since >= 18}[b.op]
    ceil = {"MaxPool": since >= 10, "AveragePool": since >= 10, "LpPool": since >= 18}[b.op]
    window = Window(b, dilated, ceil)
    x = image(b, 0, window)
    attrs = window.attrs() | {"kernel_shape": window.kernel}
    outputs = 1
    if b.op == "MaxPool":
        outputs = b.int(1, 2)
        attrs["storage_order"] = b.maybe(lambda: b.int(0, 1), 0.3)
    elif b.op == "AveragePool":
        attrs["count_include_pad"] = b.maybe(lambda: b.int(0, 1))
    else:
        attrs["p"] = b.maybe(lambda: b.int(1, 4))
    return b.done([x], outputs, **attrs)


@makes("GlobalAveragePool GlobalLpPool GlobalMaxPool")
def global_pool(b):
    x = b.any(0, 3, 5, accepts=lambda a: a.size)
    return b.done([x], p=b.maybe(lambda: b.int(1, 4)) if b.op == "GlobalLpPool" else None)


# Normalization.


def epsilon(b):
    return b.maybe(lambda: b.pick([1e-5, 1e-3, 0.1]))


@makes("BatchNormalization")
def batch_normalization(b):
    x = b.any(0, 2, 5)
    c = b.shape(x)[1]
    scale, bias, mean = (b.new(i, [c], -2, 2, 0.8) for i in (1, 2, 3))
    variance = b.new(4, [c], 0.2, 3, 0.8)
    training = b.maybe(lambda: b.int(0, 1), 0.2) if b.since >= 14 else None
    return b.done(
        [x, scale, bias, mean, variance],
        3 if training else 1,
        epsilon=epsilon(b),
        momentum=b.maybe(lambda: 0.8),
        training_mode=training,
    )


@makes("InstanceNormalization")
def instance_normalization(b):
    x = b.any(0, 3, 5, accepts=lambda a: np.prod(a.shape[2:]) > 1)
    c = b.shape(x)[1]
    return b.done([x, b.new(1, [c], constant=0.7), b.new(2, [c], constant=0.7)], epsilon=epsilon(b))


@makes("GroupNormalization")
def group_normalization(b):
    groups = b.int(1, 3)
    x = b.any(0, 3, 5, accepts=lambda a: a.size and a.shape[1] % groups == 0)
    if not b.shape(x)[1] or b.shape(x)[1] % groups:
        groups = 1
    c = b.shape(x)[1] if b.since >= 21 else groups
    return b.done([x, b.new(1, [c], constant=0.7), b.new(2, [c], constant=0.7)], epsilon=epsilon(b), num_groups=groups)


@makes("LayerNormalization RMSNormalization")
def layer_normalization(b):
    x = b.any(0, 1, 5)
    axis = b.maybe(lambda: b.axis(b.rank(x)), 0.7)
    shape = b.shape(x)[-1 if axis is None else axis :]
    if b.some(0.15):
        shape = b.broadcast(shape)
    scale = b.new(1, shape, constant=0.7)
    if b.op == "RMSNormalization":
        return b.done([x, scale], axis=axis, epsilon=epsilon(b))
    bias = b.maybe(lambda: b.new(2, shape, constant=0.7))
    return b.done([x, scale, bias], b.pick([1, 1, 3]), axis=axis, epsilon=epsilon(b))


@makes("LRN")
def lrn(b):
    x = b.any(0, 4, 4) if b.some(0.9) else b.any(0, 3, 5)
    attrs = {"alpha": b.maybe(lambda: 0.5), "beta": b.maybe(lambda: 0.5), "bias": b.maybe(lambda: 2.0)}
    return b.done([x], size=b.pick([1, 3, 3, 5, 7, 2]), **attrs)


@makes("LpNormalization")
def lp_normalization(b):
    x = b.any(0, 1)
    return b.done([x], axis=b.maybe(lambda: b.axis(b.rank(x))), p=b.maybe(lambda: b.int(1, 2)))


@makes("MeanVarianceNormalization")
def mean_variance_normalization(b):
    x = b.any(0, 4, 4)
    return b.done([x], axes=b.maybe(lambda: b.axes(4, 1, b.since >= 13)))


@makes("Softmax LogSoftmax Hardmax")
def softmax(b):
    x = b.any(0, 1)
    return b.done([x], axis=b.maybe(lambda: b.axis(b.rank(x), b.since >= 11), 0.75))


# Quantization.


def scale(b, i, shape=()):
    if b.dtype(i, of=[F32, F16, I32]) == I32:
        return b.new(i, list(shape), 1, 4, 0.7)
    return b.new(i, list(shape), 0.02, 0.6, 0.7, of=[F32, F16])


@makes("QuantizeLinear")
def quantize_linear(b):
    x = b.any(0, 0, 4)
    axis = None
    shape = []
    if b.since >= 13 and b.rank(x) and b.some(0.4):
        axis = b.axis(b.rank(x))
        shape = [b.shape(x)[axis]]
    block = None
    if b.since >= 21 and axis is not None and shape[0] and b.some(0.3):
        block = b.int(1, shape[0])
        shape = b.shape(x)
        shape[axis] = -(-shape[axis] // block)
    s = scale(b, 1, shape)
    zero = b.maybe(lambda: b.new(2, shape, 0, 20, 0.7), 0.7)
    output = None
    if b.since >= 21 and zero is None and b.some(0.4):
        output = b.pick(
            [onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT16, onnx.TensorProto.UINT16]
        )
    return b.done([x, s, zero], axis=axis, block_size=block, output_dtype=output)


@makes("DequantizeLinear")
def dequantize_linear(b):
    x = b.any(0, 0, 4)
    axis, shape, block = None, [], None
    if b.since >= 13 and b.rank(x) and b.some(0.4):
        axis = b.axis(b.rank(x))
        shape = [b.shape(x)[axis]]
        if b.since >= 21 and shape[0] and b.some(0.4):
            block = b.int(1, shape[0])
            shape = b.shape(x)
            shape[axis] = -(-shape[axis] // block)
    s = scale(b, 1, shape)
    low, high = (0, 0) if b.array(x).dtype == I32 else (0, 20)
    return b.done([x, s, b.maybe(lambda: b.new(2, shape, low, high, 0.7), 0.7)], axis=axis, block_size=block)


@makes("DynamicQuantizeLinear")
def dynamic_quantize_linear(b):
    return b.done([b.any(0, 0, 4, accepts=lambda a: a.size)], 3)


@makes("MatMulInteger")
def mat_mul_integer(b):
    x, y = factors(b, 0, 1)
    zx = b.maybe(lambda: b.new(2, [], 0, 9, 0.7), 0.6)
    columns = [b.shape(y)[-1]] if b.rank(y) == 2 and b.some(0.3) else []
    zy = b.maybe(lambda: b.new(3, columns, 0, 9, 0.7), 0.6)
    return b.done([x, y, zx, zy])


@makes("QLinearMatMul")
def q_linear_mat_mul(b):
    x, y = factors(b, 0, 3)
    columns = [b.shape(y)[-1]] if b.rank(y) == 2 and b.some(0.2) else []
    zero = lambda i, shape=(): b.new(i, list(shape), 0, 9, 0.8)
    return b.done([x, scale(b, 1), zero(2), y, scale(b, 4, columns), zero(5, columns), scale(b, 6), zero(7)])


@makes("QLinearConv")
def q_linear_conv(b):
    window = Window(b)
    x = image(b, 0, window)
    c = b.shape(x)[1]
    group = b.pick([g for g in range(1, c + 1) if c % g == 0]) if b.some(0.4) else 1
    out = group * b.int(1, 8 if b.style.large else 3)
    w = b.new(3, [out, c // group, *window.kernel], constant=0.9)
    channels = [out] if b.some(0.3) else []
    zw = b.new(5, channels, 0, 0 if channels else 5, 0.9)
    inputs = [
        x,
        scale(b, 1),
        b.new(2, [], 0, 9, 0.9),
        w,
        scale(b, 4, channels),
        zw,
        scale(b, 6),
        b.new(7, [], 0, 9, 0.9),
    ]
    bias = b.maybe(lambda: b.new(8, [out], -50, 50, 0.9))
    attrs = window.attrs() | {
        "group": group if group > 1 else None,
        "kernel_shape": b.maybe(lambda: window.kernel, 0.6),
    }
    return b.done([*inputs, bias], **attrs)


# Losses.


@makes("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss")
def loss(b):
    x = b.any(0, 2, 4, accepts=lambda a: a.size)
    n, c, *rest = b.shape(x)
    if not c:
        raise Refused(f"{b.op}: expected at least one class, found none")
    ignore = b.maybe(lambda: b.pick([-1, 0, c]), 0.4)
    target = b.rng.integers(0, c, [n, *rest])
    if ignore is not None:
        target[b.rng.random(target.shape) < 0.3] = ignore
    target = b.add(target.astype(b.dtype(1)), 0.3)
    weight = b.maybe(lambda: b.new(2, [c], 0.1, 2, 0.7), 0.4)
    reduction = b.maybe(lambda: b.pick(["none", "mean", "sum"]), 0.7)
    outputs = b.int(1, 2) if b.op == "SoftmaxCrossEntropyLoss" else 1
    return b.done([x, target, weight], outputs, ignore_index=ignore, reduction=reduction)


# Resampling.


@makes("Upsample")
def upsample(b):
    x = b.any(0, 2, 5)
    mode = b.pick(["nearest", "linear", None])
    scales = [1.0, 1.0] + [b.pick([1.0, 2.0, 3.0, 1.5]) for _ in range(b.rank(x) - 2)]
    if mode != "linear" and b.some(0.2):
        scales = [b.pick([1.0, 2.0]) for _ in scales]
    return b.done([x, b.add(np.array(scales, F32), 0.7)], mode=mode)


@makes("Resize")
def resize(b):
    x = b.any(0, 3, 5, accepts=lambda a: a.size) if b.some(0.8) else b.any(0, 1, 5, accepts=lambda a: a.size)
    rank = b.rank(x)
    mode = b.pick(["nearest", "linear", "cubic"])
    fixed = 2 if rank > 2 and b.some(0.8) else 0
    if b.since < 11:
        scales = [1.0] * fixed + [b.pick([1.0, 2.0, 0.5, 1.5, 0.7]) for _ in range(rank - fixed)]
        return b.done([x, b.add(np.array(scales, F32), 0.7)], mode=b.pick(["nearest", "linear", None]))
    axes = b.axes(rank) if b.since >= 18 and b.some(0.3) else None
    if axes and b.some(0.5):
        axes = list(range(fixed, rank)) or None
    named = list(range(rank)) if axes is None else [a % rank for a in axes]
    free = [a >= fixed for a in named]
    coordinates = b.pick(
        ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
        + (["half_pixel_symmetric"] if b.since >= 19 else [])
    )
    attrs = {"mode": mode, "axes": axes, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attrs["nearest_mode"] = b.maybe(lambda: b.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    if mode == "cubic":
        attrs["cubic_coeff_a"] = b.maybe(lambda: -0.5)
    if mode != "nearest" and b.since >= 18:
        attrs["antialias"] = b.maybe(lambda: b.int(0, 1), 0.3)
    if mode != "nearest":
        attrs["exclude_outside"] = b.maybe(lambda: b.int(0, 1), 0.3)
    roi = None
    if coordinates == "tf_crop_and_resize":
        starts = [float(b.pick([0.0, 0.1, 0.25])) if f else 0.0 for f in free]
        ends = [float(b.pick([1.0, 0.8, 1.25])) if f else 1.0 for f in free]
        roi = b.add(np.array(starts + ends).astype(b.dtype(1, [F32])), 0.8)
        attrs["extrapolation_value"] = b.maybe(lambda: 2.5)
    elif b.since < 13:
        roi = b.add(np.zeros(0, b.dtype(1, [F32])), 1.0)
    if b.some(0.5):
        scales = b.add(np.array([b.pick([1.0, 2.0, 0.5, 1.5, 0.7, 2.3]) if f else 1.0 for f in free], F32), 0.75)
        return b.done([x, roi, scales], **attrs)
    sizes = [max(1, b.shape(x)[a] + b.int(-2, 4)) if f else b.shape(x)[a] for a, f in zip(named, free)]
    if b.since >= 18 and b.some(0.2):
        attrs["keep_aspect_ratio_policy"] = b.pick(["stretch", "not_larger", "not_smaller"])
    scales = b.add(np.zeros(0, F32), 1.0) if b.since < 13 else None
    return b.done([x, roi, scales, b.ints(3, sizes, 0.75)], **attrs)


# Recurrent networks.


@makes("RNN GRU LSTM")
def recurrent(b):
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[b.op]
    direction = b.maybe(lambda: b.pick(["forward", "reverse", "bidirectional"]), 0.7)
    d = 2 if direction == "bidirectional" else 1
    layout = b.maybe(lambda: b.int(0, 1), 0.15) if b.since >= 14 else None
    x = b.any(0, 3, 3, accepts=lambda a: a.size and a.size < 2000)
    if not b.array(x).size:
        raise Refused(f"{b.op}: expected a nonempty sequence, found an empty one")
    steps, batch, size = b.shape(x)
    if layout:
        steps, batch = batch, steps
    hidden = b.int(1, 4)
    w = b.new(1, [d, gates * hidden, size], -1, 1, 0.9)
    r = b.new(2, [d, gates * hidden, hidden], -1, 1, 0.9)
    bias = b.maybe(lambda: b.new(3, [d, 2 * gates * hidden], -1, 1, 0.9))
    lengths = b.maybe(lambda: b.ints(4, [b.int(1, steps) for _ in range(batch)]), 0.3)
    state = [batch, d, hidden] if layout else [d, batch, hidden]
    initial = b.maybe(lambda: b.new(5, state, constant=0.4), 0.4)
    inputs = [x, w, r, bias, lengths, initial]
    attrs = {"hidden_size": hidden, "direction": direction, "layout": layout, "clip": b.maybe(lambda: 1.5, 0.2)}
    if b.op == "LSTM":
        inputs += [
            b.maybe(lambda: b.new(6, state, constant=0.4), 0.4),
            b.maybe(lambda: b.new(7, [d, 3 * hidden], -1, 1, 0.9), 0.3),
        ]
        attrs["input_forget"] = b.maybe(lambda: b.int(0, 1), 0.15)
    if b.op == "GRU":
        attrs["linear_before_reset"] = b.maybe(lambda: b.int(0, 1))
    if b.some(0.25):
        per = {"RNN": 1, "GRU": 2, "LSTM": 3}[b.op]
        attrs["activations"] = [
            b.pick(["Tanh", "Sigmoid", "Relu", "Softsign", "HardSigmoid", "LeakyRelu", "Elu"]) for _ in range(per * d)
        ]
    node = b.done(inputs, 3 if b.op == "LSTM" else 2, **attrs)
    keep = b.int(1, len(node.outputs))
    node.outputs = node.outputs[:keep]
    if keep == 2 and b.some(0.4):
        node.outputs[0] = ""
    return node


@makes("Attention")
def attention(b):
    batch, heads, groups = b.int(1, 2), b.int(1, 2), b.int(1, 2)
    queries, keys, size, value_size = b.int(1, 5), b.int(1, 5), b.int(1, 5), b.int(1, 5)
    kv, q = heads, heads * groups
    flat = b.some(0.5)

    def tensor(i, n, length, width):
        return b.like(i, [batch, length, n * width] if flat else [batch, n, length, width])

    query, key, value = tensor(0, q, queries, size), tensor(1, kv, keys, size), tensor(2, kv, keys, value_size)
    past_length = b.int(1, 3) if b.some(0.25) else 0
    past = (
        [b.new(4, [batch, kv, past_length, size]), b.new(5, [batch, kv, past_length, value_size])]
        if past_length
        else [None, None]
    )
    mask = None
    if b.some(0.4):
        total = keys + past_length
        mask = b.new(3, b.pick([[queries, total], [1, 1, queries, total], [batch, q, queries, total]]))
        if b.array(mask).dtype == BOOL:
            array = np.array(b.array(mask))
            array[..., 0] = True
            mask = b.add(array, 0.4)
    outputs = 3 if past_length else b.pick([1, 1, 4])
    attrs = {
        "is_causal": b.maybe(lambda: b.int(0, 1)),
        "scale": b.maybe(lambda: 0.5, 0.3),
        "softcap": b.maybe(lambda: 2.0, 0.2),
    }
    if outputs == 4:
        attrs["qk_matmul_output_mode"] = b.maybe(lambda: b.int(0, 3), 0.7)
    node = b.done(
        [query, key, value, mask, *past],
        outputs,
        q_num_heads=q if flat else None,
        kv_num_heads=kv if flat else None,
        **attrs,
    )
    if outputs == 4 and not past_length:
        node.outputs[1:3] = ["", ""]
    return node


# Control flow. Subgraphs consist of one to three elementwise nodes on values of the same shape.


def steps(b, name, kind, outer=None):
    """Returns subgraph nodes that compute, from a value and optionally an outer value, a value of the same shape."""
    options = ["Add", "Mul", "Sub"]
    if kind in (F32, F64):
        options += ["Sigmoid", "Tanh", "Neg", "Relu"]
    nodes, current = [], name
    for i in range(b.int(1, 3)):
        op = b.pick(options)
        other = outer if outer and b.some(0.6) else name
        inputs = [current] if op in ("Sigmoid", "Tanh", "Neg", "Relu") else [current, other]
        output = f"{b.name()}_{i}"
        nodes.append(helper.make_node(op, inputs, [output]))
        current = output
    return nodes, current


# Element types that the subgraph operators support in every opset.
BODY_TYPES = [F32, F64, I32, I64]


def info(name, kind, shape=None):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), shape)


class AnyType:
    """Permits any type for formal inputs, for operators whose schemas do not constrain types usefully."""

    def __init__(self, b):
        self.b, self.allowed, self.bind = b, b.allowed, b.bind

    def __enter__(self):
        self.b.allowed = lambda i, of=None: BODY_TYPES
        self.b.bind = lambda i, kind: kind

    def __exit__(self, *_):
        self.b.allowed, self.b.bind = self.allowed, self.bind


def body_values(b, count, shape=None):
    """Returns values for subgraphs, of the given shape if any."""
    with AnyType(b):
        kind = b.style.main if b.style.main in (F32, F64) and b.some(0.7) else b.pick(BODY_TYPES)
        names = []
        for _ in range(count):

            def fits(a):
                return a.dtype == kind and a.size < 500 and (shape is None or list(a.shape) == list(shape))

            name = b.old(0, fits)
            name = name or b.add(b.random(kind, b.dims(0, 3) if shape is None else shape, -2, 2), 0.2)
            names.append(name)
            shape = b.shape(name)
        return names, kind


@makes("If")
def if_(b):
    (x, y), kind = body_values(b, 2)
    shape = b.shape(x)
    branches = []
    for _ in range(2):
        nodes, out = steps(b, x, kind, y if b.some(0.6) else None)
        branches.append(helper.make_graph(nodes, "branch", [], [info(out, kind, shape)]))
    used = [n for n in (x, y) if any(n in node.input for g in branches for node in g.node)]
    condition = b.old(0, lambda a: a.size == 1 and a.dtype == BOOL and a.ndim == 0) or b.add(np.array(b.some(0.5)), 0.3)
    return b.done([condition], captures=used, then_branch=branches[0], else_branch=branches[1])


@makes("Loop")
def loop(b):
    (start, outer), kind = body_values(b, 2)
    shape = b.shape(start)
    state, iteration, condition = (f"{b.name()}_b" for _ in range(3))
    nodes, out = steps(b, state, kind, outer)
    stop = f"{b.name()}_b"
    limit = b.int(0, 4)
    # Without an initial condition, the condition that the body computes has no effect.
    conditional = b.some(0.6)
    count = b.maybe(
        lambda: b.add(np.array(limit, I64).reshape([] if b.some(0.9) else [1]), 0.5), 0.8 if conditional else 1
    )
    constants = []
    early = conditional and (count is None or b.some(0.3))
    if early:
        last = f"{b.name()}_b"
        constants.append(tensor_proto(np.array(b.int(0, 3), I64), last))
        nodes.append(helper.make_node("Less", [iteration, last], [stop]))
    else:
        nodes.append(helper.make_node("Identity", [condition], [stop]))
    outputs = [info(stop, BOOL, []), info(out, kind, shape)]
    if b.some(0.5):
        scanned = f"{b.name()}_b"
        nodes.append(helper.make_node("Mul", [state, state], [scanned]))
        outputs.append(info(scanned, kind, shape))
    body = helper.make_graph(
        nodes,
        "body",
        [info(iteration, I64, []), info(condition, BOOL, []), info(state, kind, shape)],
        outputs,
        constants,
    )
    first = b.add(np.array(b.some(0.85)).reshape([] if b.some(0.9) else [1]), 0.5) if conditional else None
    used = [outer] if any(outer in node.input for node in nodes) else []
    return b.done([count or "", first or "", start], len(outputs) - 1, captures=used, body=body)


@makes("Scan")
def scan(b):
    shape = b.dims(0, 2)
    (state, outer), kind = body_values(b, 2, shape)
    axis = b.int(0, len(shape))
    length = b.int(1, 4)
    scanned = b.add(b.random(kind, shape[:axis] + [length] + shape[axis:], -2, 2), 0.2)
    into, element = (f"{b.name()}_b" for _ in range(2))
    nodes, out = steps(b, into, kind, element)
    total, result = (f"{b.name()}_b" for _ in range(2))
    nodes.append(helper.make_node("Add", [out, outer if b.some(0.4) else element], [total]))
    nodes.append(helper.make_node("Sub", [total, element], [result]))
    body = helper.make_graph(
        nodes,
        "body",
        [info(into, kind, shape), info(element, kind, shape)],
        [info(total, kind, shape), info(result, kind, shape)],
    )
    rank = len(shape) + 1
    attrs = {"num_scan_inputs": 1, "body": body}
    attrs["scan_input_axes"] = [axis - rank if b.since >= 11 and b.some(0.4) else axis] if axis or b.some(0.3) else None
    attrs["scan_input_directions"] = b.maybe(lambda: [b.int(0, 1)])
    attrs["scan_output_axes"] = b.maybe(lambda: [b.axis(rank, b.since >= 11)])
    attrs["scan_output_directions"] = b.maybe(lambda: [b.int(0, 1)])
    used = [outer] if any(outer in node.input for node in nodes) else []
    return b.done([state, scanned], 2, captures=used, **attrs)
