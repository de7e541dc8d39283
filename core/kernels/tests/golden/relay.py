"""Expected results of operators of Relay, computed with NumPy and plain loops: `python3 relay.py > relay.txt`.

A case names the operator, its attributes, its arguments with all elements, and its results. `arg` lines between `tuple` and
`end` are the fields of one argument.
"""
import numpy as np

rng = np.random.default_rng(5)
cases = []


def text(value):
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return '"%s"' % value
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text(v) for v in value) + "]"
    return repr(float(value)) if isinstance(value, (float, np.floating)) else str(int(value))


def elements(array):
    flat = np.asarray(array).reshape(-1)
    as_text = (lambda v: repr(float(v))) if flat.dtype.kind == "f" else (lambda v: str(int(v)))
    return ["  " + " ".join(as_text(v) for v in flat[i : i + 16]) for i in range(0, len(flat), 16)]


def tensor(word, array):
    array = np.asarray(array)
    return ["%s %s [%s]" % (word, array.dtype, ",".join(map(str, array.shape)))] + elements(array)


def case(op, args, outs, **attrs):
    number = sum(1 for c in cases if c[1] == "op " + op)
    lines = ["case %s_%d" % (op, number), "op " + op]
    lines += ["attr %s = %s" % (k, text(v)) for k, v in attrs.items()]
    for arg in args:
        if isinstance(arg, tuple):
            lines += ["tuple"] + [line for field in arg for line in tensor("arg", field)] + ["end"]
        else:
            lines += tensor("arg", arg)
    for out in outs if isinstance(outs, (list, tuple)) else [outs]:
        lines += tensor("out", out)
    cases.append(lines)


def f32(*shape):
    return (rng.integers(-16, 17, shape) / 8).astype("float32")


def ints(low, high, shape, dtype="int64"):
    return rng.integers(low, high, shape).astype(dtype)


# Sequences and windows.
x = f32(4, 3, 2)
lengths = np.array([1, 4, 0], "int32")
y = x.copy()
for b in range(3):
    y[lengths[b] :, b] = -1
case("sequence_mask", [x, lengths], y, mask_value=-1.0)
x, lengths = ints(0, 9, (2, 5), "int32"), np.array([2, 4], "int64")
y = x.copy()
for b in range(2):
    y[b, lengths[b] :] = 0
case("sequence_mask", [x, lengths], y, axis=1)
x, lengths = f32(3, 4, 2), np.array([0, 3, 9], "int32")
y = x.copy()
for b in range(3):
    n = min(lengths[b], 4)
    y[b, :n] = x[b, :n][::-1]
case("reverse_sequence", [x, lengths], y)
x, lengths = f32(4, 3), np.array([1, 3, 4], "int64")
y = x.copy()
for b in range(3):
    y[: lengths[b], b] = x[: lengths[b], b][::-1]
case("reverse_sequence", [x, lengths], y, seq_axis=0, batch_axis=-1)
data, buffer = f32(2, 2, 3), f32(2, 5, 3)
case("nn.fifo_buffer", [data, buffer], np.concatenate([buffer[:, 2:], data], 1), axis=1)
x = f32(2, 6, 7)
windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2), (1, 2))[:, ::2, ::3]
case("sliding_window", [x], windows, axis=1, window_shape=[3, 2], strides=[2, 3])

# Indices.
x = f32(4, 3, 2)
i, j = np.array([[0], [-1]]), np.array([2, 0, 1])
case("adv_index", [(x, i, j)], x[i, j])
case("adv_index", [(x, np.array([3, 0], "int32"))], x[[3, 0]])
flat = np.array([22, 41, 37])
case("unravel_index", [flat, np.array([7, 6])], np.stack(np.unravel_index(flat, (7, 6))))
case("unravel_index", [np.array(5), np.array([2, 2, 2])], np.stack(np.unravel_index(5, (2, 2, 2))))
p = np.array([3, 0, 4, 1, 2], "int32")
case("invert_permutation", [p], np.argsort(p).astype("int32"))
s, v = np.array([1, 3, 3, 5, 8], "float32"), f32(2, 3) * 4
for right in [False, True]:
    found = np.searchsorted(s, v, "right" if right else "left")
    case("searchsorted", [s, v], found.astype("int32"), right=right)
s, v = np.sort(ints(0, 9, (2, 3, 5)), -1), ints(0, 9, (2, 3, 4))
found = np.array([[np.searchsorted(s[a, b], v[a, b]) for b in range(3)] for a in range(2)])
case("searchsorted", [s, v], found.astype("int64"), dtype="int64")
a, b, c = f32(3), f32(2), f32(4)
case("meshgrid", [(a, b, c)], np.meshgrid(a, b, c, indexing="ij"))
case("meshgrid", [(a, b, np.float32(2))], np.meshgrid(a, b, np.float32(2), indexing="xy"), indexing="xy")


def set_diagonals(x, d, k1, k2, upper, lower):
    y = x.copy()
    rows, columns = x.shape[-2:]
    for k in range(k1, k2 + 1):
        positions = [(r, r + k) for r in range(rows) if 0 <= r + k < columns]
        row = d if k1 == k2 else d[..., k2 - k, :]
        shift = row.shape[-1] - len(positions) if (upper if k >= 0 else lower) else 0
        for n, (r, column) in enumerate(positions):
            y[..., r, column] = row[..., n + shift]
    return y


x, d = f32(2, 3, 4), f32(2, 3)
case("matrix_set_diag", [x, d], set_diagonals(x, d, 0, 0, True, False), k1=0, k2=0)
x, d = f32(2, 3, 5), f32(2, 4, 3)
case("matrix_set_diag", [x, d], set_diagonals(x, d, -2, 1, True, False), k1=-2, k2=1)
case(
    "matrix_set_diag", [x, d], set_diagonals(x, d, -2, 1, False, True),
    k1=-2, k2=1, super_diag_right_align=False, sub_diag_right_align=True,
)
x, d = f32(4, 2), f32(2, 2)
case("matrix_set_diag", [x, d], set_diagonals(x, d, -3, -2, True, False), k1=-3, k2=-2)
x, v = f32(4, 5), f32(2, 3)
y = x.copy()
y[3:0:-2, 1:4] = v
case("strided_set", [x, v, np.array([3, 1]), np.array([0, -1]), np.array([-2, 1])], y)
x, i, u = f32(3, 4), np.array([[0, 3], [2, 2], [1, 0]]), f32(3, 2)
y, z = x.copy(), x.copy()
for r in range(3):
    for n in range(2):
        y[r, i[r, n]] = u[r, n]
        z[r, i[r, n]] += u[r, n]
case("scatter", [x, i, u], y, axis=1)
case("scatter_add", [x, i, u], z, axis=-1)
x = np.array([3, 1, 3, 2, 1, 3], "int64")
values, first, inverse, counts = np.unique(x, True, True, True)


def padded(v, dtype="int32"):
    return np.concatenate([v, np.zeros(len(x) - len(v), v.dtype)]).astype(dtype)


count = np.array([len(values)], "int32")
results = [padded(values, "int64"), padded(first), padded(inverse), count]
case("unique", [x], results)
case("unique", [x], results + [padded(counts)], return_counts=True)
order = np.argsort(first)
rank = np.argsort(order)
results = [padded(values[order], "int64"), padded(first[order]), padded(rank[inverse]), count]
case("unique", [x], results, sorted=False)
x = f32(2, 3, 4, 5)
case("contrib_reverse_reshape", [x], x.reshape(6, 4, 5), newshape=[-1, 0, 0])
case("reshape_like", [x, f32(4, 3)], x.reshape(2, 4, 3, 5), lhs_begin=1, lhs_end=3, rhs_end=2)

# Sparse tensors.
i, v = np.array([[0, 1], [2, 3], [0, 1], [5, 0]]), np.array([1, 2, 3, 4], "float32")
y = np.full((3, 4), 0.5, "float32")
for (r, column), value in zip(i, v):
    if r < 3:
        y[r, column] = value
half = np.float32(0.5)
case("sparse_to_dense", [i, v, half], y, output_shape=[3, 4])
case("dyn.sparse_to_dense", [i, v, half, np.array([3, 4])], y)
y = np.zeros(5, "float32")
y[[1, 4]] = 7
case("sparse_to_dense", [np.array([1, 4], "int32"), np.float32(7), np.float32(0)], y, output_shape=[5])
i, v = np.array([[0, 1], [0, 3], [2, 0], [3, 1]]), np.array([1, 2, 3, 4])
filled = np.array([[0, 1], [0, 3], [1, 0], [2, 0], [3, 1], [4, 0]])
case(
    "sparse_fill_empty_rows", [i, v, np.array([5, 6]), np.int64(10)],
    [filled, np.array([1, 2, 10, 3, 4, 10]), np.array([0, 1, 0, 0, 1])],
)
i = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 2, 3]])
flat = np.ravel_multi_index(i.T, (2, 3, 6))
case(
    "sparse_reshape", [i, np.array([2, 3, 6]), np.array([9, -1])],
    [np.stack(np.unravel_index(flat, (9, 4)), 1), np.array([9, 4])],
)


def to_csr(m):
    """Splits a matrix of blocks (rows, columns, block rows, block columns) into values, indices and row pointers."""
    values, indices, pointers = [], [], [0]
    for row in m:
        for column, block in enumerate(row):
            if block.any():
                values.append(block)
                indices.append(column)
        pointers.append(len(values))
    return np.array(values), np.array(indices, "int32"), np.array(pointers, "int32")


w = f32(3, 4) * np.array([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]], "float32") + 0
values, indices, pointers = to_csr(w.reshape(3, 4, 1, 1))
csr = [values.reshape(-1), indices, pointers]
x = f32(2, 4)
case("nn.sparse_dense", [x] + csr, x @ w.T)
case("nn.sparse_dense", [x] + csr, w @ x.T, sparse_lhs=True)
blocks = f32(2, 3, 2, 3) * np.array([[1, 0, 1], [0, 1, 0]], "float32")[:, :, None, None]
dense = blocks.transpose(0, 2, 1, 3).reshape(4, 9)
bsr = list(to_csr(blocks))
x = f32(3, 9)
case("nn.sparse_dense", [x] + bsr, x @ dense.T)
case("nn.sparse_dense", [x] + bsr, dense @ x.T, sparse_lhs=True)
x = f32(3, 4)
case("nn.sparse_add", [x] + csr, x + w)
w = np.array([[1, 0, 2], [0, 0, 3], [4, 5, 0]], "float32")
values, indices, pointers = to_csr(w.reshape(3, 3, 1, 1))
transposed = to_csr(np.ascontiguousarray(w.T).reshape(3, 3, 1, 1))
case(
    "nn.sparse_transpose", [values.reshape(-1), indices, pointers],
    [transposed[0].reshape(-1), transposed[1], transposed[2]],
)
x = f32(1, 3, 2, 9)
case("nn.sparse_conv2d", [x] + bsr, x @ dense.T)
x = f32(1, 9, 3, 2)
case("nn.sparse_conv2d", [x] + bsr, np.einsum("nihw,oi->nohw", x, dense), layout="NCHW")
x = f32(1, 4, 3, 1)
patches = np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)]), (3, 3), (1, 2))
case("nn.sparse_conv2d", [x] + bsr, patches.reshape(1, 4, 3, 9) @ dense.T, kernel_size=[3, 3])

# Padding and blocks.
x = f32(3, 4)
for mode in ["symmetric", "reflect"]:
    case("nn.mirror_pad", [x], np.pad(x, [(2, 1), (0, 3)], mode), mode=mode.upper(), pad_width=[[2, 1], [0, 3]])
x = f32(2, 3)
y = np.full((3, 7), 1.5, "float32")
y[::2, ::3] = x
case("nn.dilate", [x], y, strides=[2, 3], dilation_value=1.5)
x = f32(2, 3, 4, 1)
p = np.pad(x, [(0, 0), (1, 0), (0, 2), (0, 0)], constant_values=2)
parts = [p[:, r::2, c::3] for r in range(2) for c in range(3)]
case("nn.space_to_batch_nd", [x], np.concatenate(parts), block_shape=[2, 3], paddings=[[1, 0], [0, 2]], pad_value=2.0)
x = f32(12, 2, 3, 1)
y = np.zeros((2, 4, 9, 1), "float32")
for n in range(6):
    y[:, n // 3 :: 2, n % 3 :: 3] = x[2 * n : 2 * n + 2]
case("nn.batch_to_space_nd", [x], y[:, 1:, :-2], block_shape=[2, 3], crops=[[1, 0], [0, 2]])
x, w = f32(2, 6), f32(2, 6, 4)
case("nn.contrib_dense_pack", [x, w], x @ w.transpose(1, 0, 2).reshape(6, 8))
w = f32(2, 3, 4, 2)
case("nn.contrib_dense_pack", [x, w], x @ w.transpose(1, 3, 0, 2).reshape(6, 8), units=8)
x, w = ints(-128, 128, (2, 8), "int8"), ints(-128, 128, (2, 2, 3, 4), "int8")
y = (x.astype(int) - 3) @ (w.astype(int) + 2).transpose(1, 3, 0, 2).reshape(8, 6)
zeros = [np.int32(3), np.int32(-2)]
case("qnn.contrib_dense_pack", [x, w] + zeros + [np.float32(0.5), np.float32(2)], y.astype("int32"))

# Gradients.
x = f32(2, 3, 4)
case("collapse_sum_like", [x, f32(3, 1)], x.sum(0).sum(1, keepdims=True))
case("collapse_sum_to", [x, np.array([1, 4])], x.sum((0, 1))[None])


def pool_gradient(g, x, size, stride, pad, average, counts_padding):
    result = np.zeros(x.shape)
    h, w = x.shape[2:]
    for n, c, r, q in np.ndindex(g.shape):
        cells = [
            (r * stride[0] - pad[0] + a, q * stride[1] - pad[1] + b) for a in range(size[0]) for b in range(size[1])
        ]
        cells = [(a, b) for a, b in cells if 0 <= a < h and 0 <= b < w]
        if average:
            for a, b in cells:
                result[n, c, a, b] += g[n, c, r, q] / (size[0] * size[1] if counts_padding else len(cells))
        else:
            best = max(cells, key=lambda cell: x[n, c][cell])
            result[n, c][best] += g[n, c, r, q]
    return result.astype("float32")


x, g = f32(1, 2, 5, 5), f32(1, 2, 3, 4)
window = dict(pool_size=[3, 2], strides=[2, 1], padding=[1, 0])
case("nn.max_pool2d_grad", [g, x], pool_gradient(g, x, (3, 2), (2, 1), (1, 0), False, False), **window)
case("nn.avg_pool2d_grad", [g, x], pool_gradient(g, x, (3, 2), (2, 1), (1, 0), True, False), **window)
case(
    "nn.avg_pool2d_grad", [g, x], pool_gradient(g, x, (3, 2), (2, 1), (1, 0), True, True), count_include_pad=True, **window
)
x, g = f32(2, 4, 5, 6), f32(2, 6, 3, 3)
p = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
y = np.zeros((6, 2, 3, 2))
for o, i, a, b in np.ndindex(y.shape):
    y[o, i, a, b] = (g[:, o] * p[:, o // 3 * 2 + i, a : a + 5 : 2, 2 * b : 2 * b + 5 : 2]).sum()
case(
    "nn.conv2d_backward_weight", [g, x], y.astype("float32"), kernel_size=[3, 2], strides=[2, 2], dilation=[1, 2],
    padding=[1, 1], groups=2, kernel_layout="NCHW", out_layout="OIHW",
)

# Losses.
x, t, w = f32(3, 4, 2), ints(0, 4, (3, 2), "int32"), np.abs(f32(4)) + 0.5
t[1, 0] = -100
loss, weight = np.zeros((3, 2)), 0.0
for n, k in np.ndindex(3, 2):
    if t[n, k] != -100:
        loss[n, k] = -x[n, t[n, k], k] * w[t[n, k]]
        weight += w[t[n, k]]
case("nn.nll_loss", [x, t, w], np.float32(loss.sum() / weight), ignore_index=-100)
case("nn.nll_loss", [x, t, w], np.float32(loss.sum()), reduction="sum", ignore_index=-100)
case("nn.nll_loss", [x, t, w], loss.astype("float32"), reduction="none", ignore_index=-100)
x, t, w = f32(4), np.int64(2), np.ones(4, "float32")
case("nn.nll_loss", [x, t, w], np.float32(-x[2]), ignore_index=-1)
x, t = np.abs(f32(3, 4)) + 0.25, np.abs(f32(3, 4))
case("nn.cross_entropy", [x, t], np.float32(-(np.log(x.astype(float)) * t).sum() / 3))
case("nn.cross_entropy_with_logits", [x, t], np.float32(-(x * t).sum() / 3))

# Elementwise.
x = f32(3, 4)
case("fast_exp", [x], np.exp(x))
case("fast_tanh", [x], np.tanh(x))
erf = [0.8427007929497149, -0.5204998778130465, 0.0, 0.9953222650189527]
case("fast_erf", [np.array([1, -0.5, 0, 2], "float32")], np.array(erf, "float32"))
e = np.exp(x - x.max(1, keepdims=True))
case("nn.fast_softmax", [x], e / e.sum(1, keepdims=True))
a, b = np.array([7, -7, 7, -7], "int32"), np.array([2, 2, -2, -2], "int32")
case("trunc_divide", [a, b], np.array([3, -3, -3, 3], "int32"))
case("trunc_mod", [a, b], np.array([1, -1, 1, -1], "int32"))
case("trunc_divide", [(a / 2).astype("float32"), b.astype("float32")], np.trunc(a / 2 / b).astype("float32"))
case("trunc_mod", [a.astype("float32"), b.astype("float32")], np.fmod(a, b).astype("float32"))

# Transforms.
x, y = f32(2, 7), f32(2, 7)
z = np.fft.fft(x + 1j * y)
case("dft", [x, y], [z.real.astype("float32"), z.imag.astype("float32")])
z = np.fft.ifft(x + 1j * y)
case("dft", [x, y], [z.real.astype("float32"), z.imag.astype("float32")], inverse=True)
x, w = f32(2, 20), f32(8)
frames = np.stack([x[:, s : s + 8] * w for s in range(0, 13, 3)], 1)
z = np.fft.rfft(frames).transpose(0, 2, 1)
case("stft", [x, w], np.stack([z.real, z.imag], -1).astype("float32"), n_fft=8, hop_length=3, win_length=8)
z = np.fft.fft(frames[0]).T / np.sqrt(8)
case(
    "stft", [x[0], w], np.stack([z.real, z.imag], -1).astype("float32"),
    n_fft=8, hop_length=3, win_length=8, normalized=True, onesided=False,
)

# Images.


def lerp_matrix(n, m, coordinate, method):
    a = np.zeros((n, m))
    for r in range(n):
        x = coordinate(r)
        if method == "nearest_neighbor":
            taps = [(int(np.floor(x + 0.5)), 1)]
        else:
            taps = [(int(np.floor(x)), 1 - (x - np.floor(x))), (int(np.floor(x)) + 1, x - np.floor(x))]
        for column, weight in taps:
            a[r, min(max(column, 0), m - 1)] += weight
    return a


def half_pixel(n, m):
    return lambda r: (r + 0.5) * m / n - 0.5


def corners(n, m):
    return lambda r: r * (m - 1) / (n - 1)


x = f32(1, 2, 5)
case("image.resize1d", [x], (x @ lerp_matrix(8, 5, half_pixel(8, 5), "linear").T).astype("float32"), size=[8])
case(
    "image.resize1d", [x.transpose(0, 2, 1)],
    (x @ lerp_matrix(4, 5, corners(4, 5), "nearest_neighbor").T).astype("float32").transpose(0, 2, 1),
    size=[4], layout="NWC", method="nearest_neighbor", coordinate_transformation_mode="align_corners",
)
x = f32(1, 2, 3, 4, 2)
a, b, c = [lerp_matrix(n, m, half_pixel(n, m), "linear") for n, m in [(5, 3), (2, 4), (3, 2)]]
case("image.resize3d", [x], np.einsum("ncdhw,xd,yh,zw->ncxyz", x, a, b, c).astype("float32"), size=[5, 2, 3])
a, b, c = [lerp_matrix(n, m, half_pixel(n, m), "linear") for n, m in [(6, 3), (6, 4), (2, 2)]]
y = np.einsum("ncdhw,xd,yh,zw->ncxyz", x, a, b, c).astype("float32")
case("nn.upsampling3d", [x], y, scale_d=2.0, scale_h=1.5, scale_w=1.0, method="trilinear")
scales = [np.float32(2), np.float32(1.5), np.float32(1)]
case("dyn.nn.upsampling3d", [x] + scales, y, method="trilinear")
a, b, c = [np.repeat(np.eye(m), k, 0) for m, k in [(3, 2), (4, 1), (2, 3)]]
y = np.einsum("ncdhw,xd,yh,zw->ncxyz", x, a, b, c).astype("float32")
asymmetric = dict(scale_d=2.0, scale_h=1.0, scale_w=3.0, coordinate_transformation_mode="asymmetric")
case("nn.upsampling3d", [x], y, **asymmetric)
x = f32(2, 3, 4, 5)
boxes, images = np.array([[0, 0, 1, 1], [0.25, 0.5, 1.5, -0.25]], "float32"), np.array([1, 0], "int32")
for method in ["bilinear", "nearest_neighbor"]:
    y = np.zeros((2, 3, 3, 4))
    for n, r, q in np.ndindex(2, 3, 4):
        y1, x1, y2, x2 = boxes[n].astype(float)
        h, w = (y1 + r * (y2 - y1) / 2) * 3, (x1 + q * (x2 - x1) / 3) * 4
        image = x[images[n]]
        if not (0 <= h <= 3 and 0 <= w <= 4):
            y[n, :, r, q] = 9
        elif method == "bilinear":
            t, l, u, v = int(h), int(w), h - int(h), w - int(w)
            d, e = min(t + 1, 3), min(l + 1, 4)
            y[n, :, r, q] = (image[:, t, l] * (1 - v) + image[:, t, e] * v) * (1 - u) + (
                image[:, d, l] * (1 - v) + image[:, d, e] * v
            ) * u
        else:
            y[n, :, r, q] = image[:, int(h + 0.5), int(w + 0.5)]
    case(
        "image.crop_and_resize", [x, boxes, images], y.astype("float32"),
        crop_size=[3, 4], method=method, extrapolation_value=9.0,
    )
x = f32(2, 2, 3)
grid = np.stack(np.broadcast_arrays(np.linspace(-1, 1, 4)[None], np.linspace(-1, 1, 3)[:, None], np.ones((3, 4))))
case("image.affine_grid", [x], np.einsum("nij,jhw->nihw", x, grid).astype("float32"), target_shape=[3, 4])
x, w = f32(1, 2, 5, 6), f32(2, 2, 3)
p = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 2)])
y = np.full((1, 2, 3, 6), -np.inf, "float32")
for c, r, q, a, b in np.ndindex(2, 3, 6, 2, 3):
    y[0, c, r, q] = max(y[0, c, r, q], p[0, c, 2 * r + 2 * a, q + b] + w[c, a, b])
case("image.dilation2d", [x, w], y, strides=[2, 1], padding=[1, 0, 1, 2], dilations=[2, 1])

# Convolutions at computed positions.
x, o, w = f32(1, 4, 4, 5), (f32(1, 16, 3, 4) * 0.7).astype("float32"), f32(3, 4, 2, 2)


def sample(image, y, x):
    h, w = image.shape
    if not (0 <= y < h and 0 <= x < w):
        return 0
    total = 0
    for r in (int(np.floor(y)), int(np.floor(y)) + 1):
        for q in (int(np.floor(x)), int(np.floor(x)) + 1):
            if r < h and q < w:
                total += image[r, q] * (1 - abs(y - r)) * (1 - abs(x - q))
    return total


y = np.zeros((1, 3, 3, 4))
for k, r, q, c, a, b in np.ndindex(3, 3, 4, 4, 2, 2):
    channel = ((c // 2) * 4 + a * 2 + b) * 2
    dy, dx = o[0, channel, r, q], o[0, channel + 1, r, q]
    y[0, k, r, q] += w[k, c, a, b] * sample(x[0].astype(float)[c], r + a + dy, q + b + dx)
case("nn.deformable_conv2d", [x, o, w], y.astype("float32"), deformable_groups=2)
case(
    "nn.deformable_conv2d", [x.transpose(0, 2, 3, 1), o.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)],
    y.astype("float32").transpose(0, 2, 3, 1),
    deformable_groups=2, kernel_size=[2, 2], channels=3, data_layout="NHWC", kernel_layout="HWIO",
)
x, z = f32(1, 2, 6, 7), f32(1, 2, 6, 7)
p, r = [np.pad(v, [(0, 0), (0, 0), (2, 2), (2, 2)]) for v in (x, z)]
for multiplies in [True, False]:
    y = np.zeros((1, 9, 2, 3))
    for k, i, j, c, a, b in np.ndindex(9, 2, 3, 2, 3, 3):
        u, v = p[0, c, 2 * i + 2 + a, 2 * j + 2 + b], r[0, c, 2 * i + 2 * (k // 3) + a, 2 * j + 2 * (k % 3) + b]
        y[0, k, i, j] += (u * v if multiplies else abs(u - v)) / 18
    case(
        "nn.correlation", [x, z], y.astype("float32"), kernel_size=3, max_displacement=2, stride1=2, stride2=2,
        padding=[2, 2], is_multiply=multiplies,
    )

# Detection.
x = f32(2, 2, 6, 7)
rois = np.array([[0, 1, 0, 5, 4], [1, 4, 9, 2, 11], [1, 0, 0, 13, 11]], "float32")
y = np.zeros((3, 2, 2, 3), "float32")
for n, c, r, q in np.ndindex(y.shape):
    x1, y1, x2, y2 = [np.floor(v / 2 + 0.5) for v in rois[n, 1:]]
    h, w = max(y2 - y1 + 1, 1) / 2, max(x2 - x1 + 1, 1) / 3
    rows = slice(int(np.clip(np.floor(r * h) + y1, 0, 6)), int(np.clip(np.ceil((r + 1) * h) + y1, 0, 6)))
    columns = slice(int(np.clip(np.floor(q * w) + x1, 0, 7)), int(np.clip(np.ceil((q + 1) * w) + x1, 0, 7)))
    part = x[int(rois[n, 0]), c, rows, columns]
    y[n, c, r, q] = part.max() if part.size else 0
case("vision.roi_pool", [x, rois], y, pooled_size=[2, 3], spatial_scale=0.5)
x = f32(1, 8, 2, 4)
flat, y = x.reshape(-1), []
for k, j, i in np.ndindex(8, 2, 4):
    y.append(flat[i * 2 + (k // 2) % 2 + 8 * (j * 2 + (k // 2) // 2 + 4 * (k % 2))])
case("vision.yolo_reorg", [x], np.array(y, "float32").reshape(1, 32, 1, 2), stride=2)
boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [2, 2, 3, 3], [0, 0, 1, 0.9], [2, 2, 3, 3.5]]], "float32")
scores = np.array([[[0, 0.9, 0.3], [0, 0.8, 0.75], [0, 0.6, 0.7], [0, 0.1, 0.2], [0, 0.65, 0.1]]], "float32")


def overlap(a, b):
    h, w = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    area = lambda c: (c[2] - c[0]) * (c[3] - c[1])
    common = max(h, 0) * max(w, 0)
    return common / (area(a) + area(b) - common)


found = []
for k in range(2):
    kept = []
    for i in sorted(range(5), key=lambda i: -scores[0, i, k + 1]):
        s = scores[0, i, k + 1]
        if s >= np.float32(0.25) and len(kept) < 2 and all(overlap(boxes[0, i], boxes[0, j]) <= 0.5 for j in kept):
            kept.append(i)
            found.append((s, boxes[0, i], k))
found = sorted(found, key=lambda f: -f[0])[:5]
rows = [np.zeros((1, 5, 4), "float32"), np.zeros((1, 5), "float32"), np.zeros((1, 5), "float32")]
for n, (s, b, k) in enumerate(found):
    rows[0][0, n], rows[1][0, n], rows[2][0, n] = b, k, s
case(
    "vision.regular_non_max_suppression", [boxes, scores], rows + [np.array([len(found)], "int32")],
    max_detections_per_class=2, max_detections=5, num_classes=2, iou_threshold=0.5, score_threshold=0.25,
)
scores = (np.abs(f32(1, 4, 3, 4)) + ints(0, 9, (1, 4, 3, 4)) / 64).astype("float32")
deltas = f32(1, 8, 3, 4) / 8
info = np.array([[40, 64, 1]], "float32")
candidates = []
for r, q, k in np.ndindex(3, 4, 2):
    size, ratio = (2, 3)[k], 1
    side = 16 * size
    box = [7.5 - (side - 1) / 2 + 16 * q, 7.5 - (side - 1) / 2 + 16 * r]
    dx, dy, dw, dh = deltas[0, 4 * k : 4 * k + 4, r, q].astype(float)
    cx, cy = dx * side + box[0] + (side - 1) / 2, dy * side + box[1] + (side - 1) / 2
    w, h = np.exp(dw) * side, np.exp(dh) * side
    c = np.clip([cx - (w - 1) / 2, cy - (h - 1) / 2, cx + (w - 1) / 2, cy + (h - 1) / 2], 0, [63, 39, 63, 39])
    score = -1 if r >= 2 else scores[0, 2 + k, r, q]
    if c[2] - c[0] + 1 < 20 or c[3] - c[1] + 1 < 20:
        c, score = c + np.array([-10, -10, 10, 10]), -1
    candidates.append((score, c))
kept = []
for score, c in sorted(candidates, key=lambda f: -f[0])[:12]:
    one = np.array([0, 0, 1, 1])
    if all(overlap(c + one, d + one) <= 0.5 for d in kept):
        kept.append(c)
y = np.array([[0, *kept[n % len(kept)]] for n in range(6)], "float32")
case(
    "vision.proposal", [scores, deltas, info], y, scales=[2.0, 3.0], ratios=[1.0], threshold=0.5,
    rpn_pre_nms_top_n=12, rpn_post_nms_top_n=6, rpn_min_size=20,
)

# Few bits.
x = ints(0, 4, (2, 16, 3), "int32")
y = np.zeros((2, 2, 2, 3), "uint8")
for n, word, bit, c in np.ndindex(2, 2, 2, 3):
    y[n, word, bit, c] = int("".join(str((x[n, word * 8 + k, c] >> bit) & 1) for k in range(8)), 2)
case("nn.bitpack", [x], y, bits=2, pack_axis=1, bit_axis=2, pack_type="uint8")
x, w = ints(0, 4, (3, 16), "int32"), ints(0, 4, (5, 16), "int32")
sizes = dict(units=5, data_bits=2, weight_bits=2, pack_dtype="uint8", out_dtype="int16")
case("nn.bitserial_dense", [x, w], (x @ (2 * w - 3).T).astype("int16"), **sizes)
case("nn.bitserial_dense", [x, w], (x @ w.T).astype("int16"), unipolar=False, **sizes)
packed = np.zeros((5, 2, 2), "uint8")
for n, bit, word in np.ndindex(packed.shape):
    packed[n, bit, word] = int("".join(str((w[n, word * 8 + k] >> bit) & 1) for k in range(8)), 2)
case("nn.bitserial_dense", [x, packed], (x @ (2 * w - 3).T).astype("int16"), **sizes)
x, w = ints(0, 4, (1, 8, 4, 5), "int32"), ints(0, 2, (2, 8, 3, 3), "int32")
p = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
y = np.zeros((1, 2, 4, 5), "int16")
for o, r, q in np.ndindex(2, 4, 5):
    y[0, o, r, q] = (p[0, :, r : r + 3, q : q + 3] * (2 * w[o] - 1)).sum()
sizes = dict(padding=[1, 1], channels=2, activation_bits=2, weight_bits=1, pack_dtype="uint8", out_dtype="int16")
case("nn.bitserial_conv2d", [x, w], y, **sizes)
x = f32(2, 3) * 8
s, z = np.array([0.5, 0.25, 2], "float32"), np.int32(-100)
y = np.clip(np.trunc(x / s + np.copysign(0.5, x)) - 100, -128, 127).astype("float32")
case("qnn.simulated_quantize", [x, np.int32(1), s, z], y)
case("qnn.simulated_quantize", [x, np.int32(0), s, z], x)
case("qnn.simulated_dequantize", [y, np.int32(1), s, z], ((y + 100) * s).astype("float32"))

# Random numbers.
MASK = (1 << 64) - 1
ROTATIONS = [[14, 16], [52, 57], [23, 40], [5, 37], [25, 33], [46, 12], [58, 22], [32, 32]]


def threefry(key, counter):
    key = list(key) + [0x1BD11BDAA9FC1A22 ^ key[0] ^ key[1] ^ key[2] ^ key[3]]
    block = list(counter)
    for r in range(20):
        if r % 4 == 0:
            block = [(block[j] + key[(r // 4 + j) % 5] + (r // 4 if j == 3 else 0)) & MASK for j in range(4)]
        for j in (0, 2):
            rotation = ROTATIONS[r % 8][j // 2]
            block[j] = (block[j] + block[j + 1]) & MASK
            block[j + 1] = ((block[j + 1] << rotation | block[j + 1] >> (64 - rotation)) & MASK) ^ block[j]
        block[1], block[3] = block[3], block[1]
    return block


def words(key, count):
    counter, result = list(key[4:8]), []
    for i in range(count // 4):
        result += threefry(key[:4], [(c + i) & MASK for c in counter])
    if count % 4:
        counter[3] = (counter[3] + count // 4 * 4) & MASK
        result += threefry(key[:4], counter)[: count % 4]
    after = list(key)
    after[6], after[7] = 0, (counter[3] + (4 if count % 4 else count)) & MASK
    return result, after


key = [42, 0, 7, 0, 0, 0, 0, 5, 1 << 63, 0]
u64 = lambda values: np.array(values, "uint64")
bits, after = words(key, 10)
case("random.threefry_generate", [u64(key)], [u64(after), u64(bits).reshape(2, 5)], out_shape=[2, 5])
left, right = list(key), list(key)
left[8] = right[8] = 1 << 62
right[4] = 1 << 63
case("random.threefry_split", [u64(key)], [u64(left), u64(right)])
full = key[:8] + [0, 0]
fresh = threefry(full[:4], full[4:8])
case(
    "random.threefry_split", [u64(full)],
    [u64(fresh + [0, 0, 0, 0, 1 << 62, 0]), u64(fresh + [1 << 63, 0, 0, 0, 1 << 62, 0])],
)
late = key[:7] + [MASK - 3, 0, 1]
moved = key[:4] + [0, 1, 0, 0, 0, 0]
bits, after = words(moved, 4)
case("random.threefry_generate", [u64(late)], [u64(after), u64(bits)], out_shape=[4])


def uniform(count, dtype="float32"):
    bits, after = words(key, count)
    if dtype == "float32":
        return [((b & 0xFFFFFFFF) >> 9) / 2.0**23 for b in bits], after
    return [(b >> 12) / 2.0**52 for b in bits], after


numbers, after = uniform(6)
low, high = np.float32(-1), np.float32(3)
y = np.array(numbers, "float32") * (high - low) + low
case("random.uniform", [u64(key), low, high], [u64(after), y.reshape(2, 3)], out_shape=[2, 3], out_dtype="float32")
numbers, after = uniform(3, "float64")
case(
    "random.uniform", [u64(key), np.float64(0), np.float64(1)], [u64(after), np.array(numbers)],
    out_shape=[3], out_dtype="float64",
)
numbers, after = uniform(12)
u, v = np.array(numbers).reshape(2, 2, 3)
y = np.sqrt(-2 * np.log(1 - u)) * np.sin(2 * np.pi * v) * 2 + 1
case(
    "random.normal", [u64(key), np.float32(1), np.float32(2)], [u64(after), y.astype("float32")],
    out_shape=[2, 3], out_dtype="float32",
)
numbers, after = uniform(12)
p = np.array([[1, 2, 0, 1], [0.5, -3, 1, 0.5]], "float32")
q = np.cumsum(np.maximum(p, 0) / np.maximum(p, 0).sum(1, keepdims=True), 1)
y = np.array([[np.argmax(q[r] > n) for n in np.array(numbers).reshape(2, 6)[r]] for r in range(2)])
case("random.multinomial", [u64(key), p], [u64(after), y.astype("int32")], num_samples=6)

# Recurrent layers. The order of the gates is i, o, f, c, and z, r, h.
def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, hidden, cell, product, reverse):
    ys = np.zeros(x.shape[:2] + hidden.shape[1:], "float32")
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        i, o, f, c = np.split(x[t] + product(hidden), 4, 1)
        cell = (sigmoid(f) * cell + sigmoid(i) * np.tanh(c)).astype("float32")
        ys[t] = hidden = (sigmoid(o) * np.tanh(cell)).astype("float32")
    return [ys, hidden, cell]


for reverse in (False, True):
    x, w, h, c = f32(4, 2, 12), f32(12, 3), f32(2, 3), f32(2, 3)
    case("nn.lstm", [x, w, h, c], lstm(x, h, c, lambda h: h @ w.T, reverse), reverse=reverse)

    x, w, h, b = f32(4, 2, 9), f32(9, 3), f32(2, 3), f32(9)
    ys, first = np.zeros((4, 2, 3), "float32"), h
    for t in reversed(range(4)) if reverse else range(4):
        (xz, xr, xh), (pz, pr, ph) = np.split(x[t], 3, 1), np.split(h @ w.T + b, 3, 1)
        z, r = sigmoid(xz + pz), sigmoid(xr + pr)
        ys[t] = h = ((1 - z) * np.tanh(xh + r * ph) + z * h).astype("float32")
    case("nn.gru", [x, w, first, b], [ys, h], reverse=reverse)

for dtype, zeros, scales in (("int8", np.int32(0), np.float32(0.01)), ("uint8", ints(100, 150, 12, "int32"), f32(12) / 99)):
    w = ints(0, 255, (3, 12), dtype) if dtype == "uint8" else ints(-128, 128, (3, 12), dtype)

    def quantized_product(h):
        low, high = np.float32(min(h.min(), 0)), np.float32(max(h.max(), 0))
        scale = np.float32((high - low) / np.float32(255))
        zero = np.float32(np.rint(np.clip(-low / scale, 0, 255)))
        q = np.clip(np.rint(h / scale) + zero, 0, 255)
        return ((q - zero) @ (w.astype("float32") - zeros)).astype("float32") * (scale * scales)

    x, h, c = f32(3, 2, 12), f32(2, 3), f32(2, 3)
    case("qnn.lstm", [x, w, h, c, zeros, scales], lstm(x, h, c, quantized_product, False))

# Trees. The first has all comparisons along the path of the second children, the second is a leaf.
nodes = np.array([[1, 0, -1, 1], [0, 1 + 8, -2, 2], [2, 2, -3, 3], [1, 3, -4, 4], [0, 4, -5, 5], [2, 5, -6, -7]], "int32")
values = np.array([-1, -1, 1, 1, 0.5, 0.25], "float32")
roots = np.array([0, -8, 3], "int32")
weights = f32(8, 2)
x = np.concatenate([f32(12, 3), [[0, np.nan, 0], [np.nan, 0, 0], [0.5, 0, 0.25], [0, 0, 0.25]]]).astype("float32")
compare = [np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal]


def leaf(row, at):
    while at >= 0:
        feature, mode, first, second = nodes[at]
        holds = compare[mode % 8](row[feature], values[at]) or (mode >= 8 and np.isnan(row[feature]))
        at = first if holds else second
    return weights[-1 - at]


reached = np.array([[leaf(row, root) for root in roots] for row in x])
for aggregate, function in (("sum", np.sum), ("min", np.min), ("max", np.max)):
    y = function(reached, axis=1)
    case("ml.tree_ensemble", [x, nodes, values, roots, weights], y, aggregate=aggregate)
y = np.sum(reached, axis=1).astype("float64")
wide = [a.astype("float64") for a in (x, values, weights)]
case("ml.tree_ensemble", [wide[0], nodes, wide[1], roots, wide[2]], y)

# Recurrent layers over sequences of 2 and 3 of 4 steps.
x, w, h, c = f32(4, 2, 12), f32(12, 3), f32(2, 3), f32(2, 3)
rows = [lstm(x[:n, i : i + 1], h[i : i + 1], c[i : i + 1], lambda h: h @ w.T, True) for i, n in enumerate((2, 3))]
ys = np.concatenate([np.pad(y, ((0, 4 - len(y)), (0, 0), (0, 0))) for y, _, _ in rows], 1)
last = [np.concatenate([row[i] for row in rows]) for i in (1, 2)]
case("nn.lstm", [x, w, h, c, np.array([2, 3], "int32")], [ys, *last], reverse=True)

# Dynamic quantization, and products of integers that become real numbers.
for x in (f32(3, 5), f32(7) + np.float32(9), np.zeros((2, 2), "float32"), np.array([-2, np.nan, 1], "float32")):
    low, high = np.float32(min(np.nanmin(x), 0)), np.float32(max(np.nanmax(x), 0))
    scale = np.float32((high - low) / np.float32(255))
    with np.errstate(invalid="ignore"):
        zero = np.nan_to_num(np.rint(np.clip(-low / scale, 0, 255)))
        q = np.nan_to_num(np.clip(np.rint(x / scale) + zero, 0, 255))
    case("qnn.contrib_dynamic_quantize", [x], [q.astype("uint8"), scale, zero.astype("uint8")])
x, w, b = ints(0, 256, (3, 6), "uint8"), ints(-128, 128, (4, 6), "int8"), f32(4)
zero, zeros, scales = np.int32(7), ints(-3, 4, 4, "int32"), f32(4)
sums = (x.astype("int32") - zero) @ (w.astype("int32") - zeros[:, None]).T
case("qnn.contrib_dense_dequantize", [x, w, b, zero, zeros, scales], sums.astype("float32") * scales + b)
x, w = ints(0, 256, (1, 3, 4, 5), "uint8"), ints(-128, 128, (4, 3, 1, 1), "int8")
sums = np.einsum("nchw,oc->nohw", x.astype("int32") - zero, w[:, :, 0, 0].astype("int32"))
y = sums.astype("float32") * np.float32(0.5) + b[:, None, None]
case(
    "qnn.contrib_conv2d_dequantize", [x, w, b, zero, np.int32(0), np.float32(0.5)], y.astype("float32"),
    kernel_size=[1, 1], channels=4,
)

# Tables.
x, table = ints(-128, 128, (2, 3), "int8"), f32(256)
case("qnn.contrib_lookup", [x, table], table[x.astype("uint8")])

print("# Written by relay.py. Read by tests/operators/golden.rs, which also says what the lines are.")
for lines in cases:
    print("\n".join(lines))
