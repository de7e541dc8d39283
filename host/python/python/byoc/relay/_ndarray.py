"""Arrays as TVM names them, over NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np


class Device:
    """Device on which an array lies; all arrays lie in the memory of the host."""

    def __init__(self, kind: str = "cpu", index: int = 0) -> None:
        self.kind = kind
        self.device_id = index
        self.device_type = 1

    exist = True

    def sync(self, stream: Any = None) -> None:
        """Returns at once: every operation is complete when it returns."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (other.kind, other.device_id) == (self.kind, self.device_id)

    def __hash__(self) -> int:
        return hash((self.kind, self.device_id))

    def __repr__(self) -> str:
        return f"{self.kind}({self.device_id})"


class NDArray:
    """Array with a value of its own."""

    __array_priority__ = 100

    def __init__(self, value: Any, device: Device | None = None, copy: bool = True) -> None:
        if isinstance(value, NDArray):
            value = value._data
        data = np.array(value, order="C") if copy else np.asarray(value, order="C")
        self._data: np.ndarray = data
        self.device = device or Device()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> str:
        return self._data.dtype.name

    @property
    def ndim(self) -> int:
        return self._data.ndim

    ctx = property(lambda self: self.device)

    def numpy(self) -> np.ndarray:
        """Returns a copy as an array of NumPy."""
        return self._data.copy()

    asnumpy = numpy

    def copyfrom(self, source: Any) -> NDArray:
        self._data[...] = source._data if isinstance(source, NDArray) else source
        return self

    def copyto(self, target: Any) -> NDArray:
        return target.copyfrom(self) if isinstance(target, NDArray) else NDArray(self._data)

    def astype(self, dtype: str) -> NDArray:
        return NDArray(self._data.astype(dtype), copy=False)

    def same_as(self, other: object) -> bool:
        return self is other

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._data.astype(dtype) if dtype else self._data

    def __dlpack__(self, **options: Any) -> Any:
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    def __getitem__(self, index: Any) -> Any:
        return self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.copyfrom(value) if index == slice(None) else self._data.__setitem__(index, value)

    def __len__(self) -> int:
        return len(self._data)

    def __float__(self) -> float:
        return float(self._data)

    def __int__(self) -> int:
        return int(self._data)

    def __repr__(self) -> str:
        return repr(self._data)


def array(value: Any, device: Device | None = None) -> NDArray:
    """Creates an array from a value that NumPy takes."""
    return NDArray(value, device)


def empty(shape: Any, dtype: str = "float32", device: Device | None = None, mem_scope: Any = None) -> NDArray:
    """Creates an array of zeros."""
    return NDArray(np.zeros(shape, dtype), device, copy=False)
