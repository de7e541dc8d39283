"""Weights in blocks of few bits, as the native functions of ONNX Runtime's quantization tools write them."""

from __future__ import annotations

from typing import Any

# Largest magnitudes, relative to the largest of a block, that FP4 codes without their sign represent, with the codes.
_FP4_LIMITS = (0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333)
_FP4_CODES = (0, 1, 6, 7, 4, 5, 2, 3)

# Largest values that each NF4 code represents: midpoints between the quantiles of a normal distribution.
_NF4_LIMITS = (
    -0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544, -0.23460740596055984,
    -0.13791173323988914, -0.045525018125772476, 0.03979014977812767, 0.1202552504837513, 0.2035212516784668,
    0.2920137718319893, 0.3893125355243683, 0.5016634166240692, 0.6427869200706482, 0.8614784181118011,
)  # fmt: skip


def _blocks(matrix: Any, block_size: int) -> Any:
    """Returns a matrix (rows, columns) as (columns, blocks, block_size), padded with zeros."""
    import numpy as np

    rows = matrix.shape[0]
    count = -(-rows // block_size)
    padded = np.pad(np.asarray(matrix, np.float32), ((0, count * block_size - rows), (0, 0)))
    return padded.T.reshape(matrix.shape[1], count, block_size)


def _quantized(blocks: Any, bits: int, is_symmetric: bool, dtype: Any) -> tuple[Any, Any, Any]:
    """Returns the codes, the scale of each block as a number of `dtype`, and the zero point of each block."""
    import numpy as np

    top, half = 2**bits - 1, 2 ** (bits - 1)
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    if is_symmetric:
        scale = np.where(np.abs(high) > np.abs(low), high, low) / np.float32(-half)
        zero = np.full(scale.shape, half, np.float32)
    else:
        scale = (high - low) / np.float32(top)
        zero = np.where(scale != 0, -low / np.where(scale != 0, scale, 1), low)
        zero = np.clip(np.round(zero), 0, top)
    scale = scale.astype(dtype).astype(np.float32)
    inverse = np.where(scale != 0, 1 / np.where(scale != 0, scale, 1), 0).astype(np.float32)
    codes = np.clip(np.round(blocks * inverse[..., None] + zero[..., None]), 0, top).astype(np.uint8)
    return codes, scale, zero.astype(np.uint8)


def _packed(codes: Any, bits: int, pad: int = 0) -> Any:
    """Packs codes along the last axis into bytes, the first code in the lowest bits."""
    import numpy as np

    each = 8 // bits
    missing = -codes.shape[-1] % each
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)], constant_values=pad)
    parts = codes.reshape(*codes.shape[:-1], -1, each)
    return np.bitwise_or.reduce(parts << (bits * np.arange(each, dtype=np.uint8)), axis=-1).astype(np.uint8)


def _by_columns(bits: int) -> Any:
    def quantize(
        packed: Any, matrix: Any, scales: Any, zero_points: Any, block_size: int, columns: int, rows: int,
        is_symmetric: bool,
    ) -> None:  # fmt: skip
        codes, scale, zero = _quantized(_blocks(matrix, block_size), bits, is_symmetric, matrix.dtype)
        # The rest of the last block is padding, which no reader looks at: whole bytes of it are zero.
        each = 8 // bits
        codes.reshape(columns, -1)[:, -(-rows // each) * each :] = 0
        packed[...] = _packed(codes, bits).reshape(packed.shape)
        scales[...] = scale.reshape(scales.shape)
        if not is_symmetric:
            zero_points[...] = _packed(zero, bits, pad=2 ** (bits - 1)).reshape(zero_points.shape)

    quantize.__name__ = f"quantize_matmul_{bits}bits"
    quantize.__doc__ = f"Quantizes the blocks of each column to {bits} bits, for `MatMulNBits`."
    return quantize


quantize_matmul_2bits, quantize_matmul_4bits, quantize_matmul_8bits = (_by_columns(bits) for bits in (2, 4, 8))


def quantize_qdq_matmul_4bits(
    packed: Any, matrix: Any, scales: Any, zero_points: Any, block_size: int, columns: int, rows: int,
    is_symmetric: bool,
) -> bool:  # fmt: skip
    """Quantizes the blocks of each column to 4 bits, for `DequantizeLinear`: codes in the order of the matrix. Returns
    True if the codes have a sign."""
    codes, scale, zero = _quantized(_blocks(matrix, block_size), 4, is_symmetric, matrix.dtype)
    ordered = codes.reshape(columns, -1)[:, :rows].T
    # The signed code of 4 bits has the bits of the unsigned one, less 8.
    ordered, zero = (ordered ^ 8, zero ^ 8) if is_symmetric else (ordered, zero)
    packed[...] = _packed(ordered.reshape(1, -1), 4).reshape(packed.shape)
    scales[...] = scale.T.reshape(scales.shape)
    if zero_points is not None and zero_points.size:
        zero_points[...] = _packed(zero.T.reshape(1, -1), 4).reshape(zero_points.shape)
    return bool(is_symmetric)


def quantize_matmul_bnb4(
    packed: Any, matrix: Any, absmax: Any, block_size: int, kind: int, columns: int, rows: int
) -> None:
    """Quantizes blocks of a matrix in order to FP4 (kind 0) or NF4 (kind 1), for `MatMulBnb4`."""
    import numpy as np

    flat = np.asarray(matrix, np.float32).reshape(-1)
    count = -(-flat.size // block_size)
    blocks = np.pad(flat, (0, count * block_size - flat.size)).reshape(count, block_size)
    largest = np.abs(blocks).max(axis=1)
    inverse = np.where(largest != 0, 1 / np.where(largest != 0, largest, 1), 0).astype(np.float32)
    shares = blocks * inverse[:, None]
    if kind == 0:
        codes = np.array(_FP4_CODES, np.uint8)[np.searchsorted(np.array(_FP4_LIMITS, np.float32), np.abs(shares))]
        codes = codes + (shares < 0).astype(np.uint8) * 8
    else:
        codes = np.searchsorted(np.array(_NF4_LIMITS, np.float32), shares).astype(np.uint8)
    pairs = codes.reshape(-1)[: flat.size + flat.size % 2].reshape(-1, 2)
    packed.reshape(-1)[...] = (pairs[:, 0] << 4 | pairs[:, 1])[: packed.size]
    absmax[...] = largest.reshape(absmax.shape)
