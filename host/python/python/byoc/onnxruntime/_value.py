"""Values outside a run: tensors, sequences and maps in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._enums import OrtSparseFormat
from ._runtime import OrtDevice, check_device
from ._types import NAME_OF, NUMBER_OF_NAME, dtype_of, number_of, type_name

if TYPE_CHECKING:
    import numpy


class OrtValue:
    """Tensor, sequence or map in host memory. A value created from an array shares the array's memory."""

    def __init__(self, ortvalue: Any, numpy_obj: Any = None, *, _type: str | None = None) -> None:
        """_type: type name, for a value from which it cannot be inferred, such as an empty sequence."""
        if isinstance(ortvalue, OrtValue):
            ortvalue, _type = ortvalue._value, ortvalue._type
        self._value = ortvalue
        self._number = number_of(ortvalue.dtype) if hasattr(ortvalue, "dtype") else None
        self._type = _type if self._number is None else None

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: numpy.ndarray, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Creates a value that shares the memory of an array."""
        import numpy as np

        check_device(device_type)
        if not isinstance(numpy_obj, np.ndarray) or number_of(numpy_obj.dtype) in (None, 8):
            raise RuntimeError("Creation of OrtValues is currently only supported from non-string numpy arrays")
        return OrtValue(numpy_obj)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: numpy.ndarray, /, onnx_element_type: int) -> OrtValue:
        """Creates a value whose elements have a different type of the same size, such as bfloat16 in a uint16 array."""
        dtype = dtype_of(onnx_element_type)
        if dtype.itemsize != data.dtype.itemsize:
            raise RuntimeError(
                f"Items size in the incoming array: {data.dtype.itemsize} specified by onnxtype: {dtype.itemsize}"
            )
        return OrtValue(data.view(dtype))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Creates a value of the given shape with uninitialized elements."""
        import numpy as np

        check_device(device_type)
        dtype = dtype_of(element_type) if element_type != 8 and isinstance(element_type, int) else \
            np.dtype(object if element_type == 8 else element_type)  # fmt: skip
        if number_of(dtype) in (None, 8):
            raise RuntimeError("Creation of OrtValues is currently only supported from non-string numpy arrays")
        if any(int(size) < 0 for size in shape):
            raise RuntimeError(f"Tensor shape.Size() must be >= 0, found the shape {list(shape)}")
        return OrtValue(np.empty([int(size) for size in shape], dtype))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        """Creates a value from a sparse tensor."""
        return OrtValue(sparse_tensor)

    def as_sparse_tensor(self) -> SparseTensor:
        """Returns the sparse tensor."""
        if not isinstance(self._value, SparseTensor):
            raise RuntimeError("This OrtValue does not contain SparseTensor. Check data_type() value.")
        return self._value

    def _dense(self, what: str = "Only OrtValues that are Tensors are currently supported") -> numpy.ndarray:
        if self._number is None:
            raise RuntimeError(what)
        return self._value

    def _is_sequence(self) -> bool:
        return isinstance(self._value, list)

    def data_ptr(self) -> int:
        """Address of the first element."""
        return self._dense().ctypes.data

    def device_name(self) -> str:
        """Device name."""
        if not self.is_sparse_tensor():
            self._dense("Only OrtValues that are Tensors/SparseTensors are currently supported")
        return "cpu"

    def shape(self) -> list[int]:
        """Dimensions."""
        if self.is_sparse_tensor():
            return self._value.dense_shape().tolist()
        return list(self._dense("Only OrtValues that are Tensors/SpareTensors are currently supported").shape)

    def data_type(self) -> str:
        """Type, such as "tensor(float)"."""
        if self.is_sparse_tensor():
            return self._value.data_type()
        if self._number is not None:
            return type_name(self._number)
        if self._type is None and self._is_sequence() and self._value and hasattr(self._value[0], "dtype"):
            return f"seq({type_name(number_of(self._value[0].dtype))})"
        return self._type or "undefined"

    def element_type(self) -> int:
        """ONNX type number of the elements."""
        if self.is_tensor_sequence():
            return NUMBER_OF_NAME[self.data_type()[len("seq(tensor(") : -2]]
        self._dense("Tensor proto_type is unavailable for this value.")
        return self._number

    def tensor_size_in_bytes(self) -> int:
        """Size of the elements in bytes; a string counts as 32 bytes, as in ONNX Runtime."""
        array = self._dense()
        return 32 * array.size if self._number == 8 else array.nbytes

    def has_value(self) -> bool:
        """True if the value is present."""
        return self._value is not None

    def is_tensor(self) -> bool:
        """True if the value is a dense tensor."""
        return self._number is not None

    def is_sparse_tensor(self) -> bool:
        """True if the value is a sparse tensor."""
        return isinstance(self._value, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        """True if the value is a sequence of tensors."""
        return self._is_sequence() and "map(" not in self.data_type()

    def numpy(self) -> numpy.ndarray:
        """Returns an array that shares the memory."""
        return self._dense("Only OrtValues that are Tensors are convertible to Numpy objects")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        import numpy as np

        array = self.numpy()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise ValueError("Unable to avoid a copy: the element type differs")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        array = self._dense("Only tensor type OrtValues are supported")
        if self._number == 8:
            raise RuntimeError(f"Unsupported ORT data type for DLPack: {self._number}")
        return array.__dlpack__(stream=stream, **options)

    to_dlpack = __dlpack__

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @classmethod
    def from_dlpack(cls, data: Any, is_bool: bool = False, /) -> OrtValue:
        """Creates a value that shares the memory of an external library's tensor, or of a capsule.

        is_bool: True for Booleans, which older libraries export as uint8.
        """
        import numpy as np

        if type(data).__name__ == "PyCapsule":
            data = _Capsule(data)
        array = data if isinstance(data, np.ndarray) else np.from_dlpack(data)
        return OrtValue(array.view(np.bool_) if is_bool else array)

    def update_inplace(self, data: numpy.ndarray) -> None:
        """Sets the elements."""
        import numpy as np

        if self.is_tensor_sequence():
            raise ValueError("Unsupported type proto value case:0")
        data = np.asarray(data)
        if self._number == 8:
            raise RuntimeError("Inplace update of OrtValues is currently only supported from non-string numpy arrays")
        if data.size != self._dense().size:
            raise RuntimeError("The input size of numpy arrays does not match the size of the OrtValue.")
        np.copyto(self._dense(), data.reshape(self._value.shape), casting="unsafe")


class _Capsule:
    """Capsule of DLPack in host memory, as NumPy reads it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class OrtValueVector(list):
    """List of values."""

    def push_back(self, value: OrtValue) -> None:
        """Adds a value."""
        self.append(value)

    def push_back_batch(self, tensors: Any, pointers: Any, types: Any, shapes: Any, devices: Any) -> None:
        """Adds tensors of an external library."""
        self.extend(OrtValue.from_dlpack(tensor) for tensor in tensors)

    def reserve(self, count: int) -> None:
        """Does nothing: the list grows automatically."""

    def shrink_to_fit(self) -> None:
        """Does nothing: the list has no unused capacity to release."""

    def element_type_at(self, index: int) -> int:
        """Returns the ONNX type number of a value's elements."""
        return self[index].element_type()

    def dlpack_at(self, index: int) -> Any:
        """Exports a value through DLPack."""
        return self[index].__dlpack__()

    def to_dlpacks(self, convert: Any = None) -> list[Any]:
        """Exports all values through DLPack."""
        capsules = [value.__dlpack__() for value in self]
        return [convert(capsule) for capsule in capsules] if convert else capsules


def _read_only(array: numpy.ndarray) -> numpy.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


class _View:
    def __init__(self, **arrays: numpy.ndarray) -> None:
        self._arrays = {name: _read_only(array) for name, array in arrays.items()}

    def indices(self) -> numpy.ndarray:
        """Linear indices of the elements."""
        return self._arrays["indices"]

    def inner(self) -> numpy.ndarray:
        """Columns of the elements."""
        return self._arrays["inner"]

    def outer(self) -> numpy.ndarray:
        """Start of each row."""
        return self._arrays["outer"]


class SparseTensor:
    """Sparse matrix in host memory."""

    def __init__(self, sparse_tensor: SparseTensor) -> None:
        self.__dict__.update(sparse_tensor.__dict__)

    @classmethod
    def _of(cls, form: OrtSparseFormat, shape: numpy.ndarray, values: numpy.ndarray, **arrays: Any) -> SparseTensor:
        made = cls.__new__(cls)
        made._format, made._shape, made._values, made._view = form, shape, values, _View(**arrays)
        return made

    @staticmethod
    def sparse_coo_from_numpy(
        dense_shape: numpy.ndarray, values: numpy.ndarray, coo_indices: numpy.ndarray, ort_device: OrtDevice
    ) -> SparseTensor:
        """Creates a matrix from values and their linear indices."""
        form = OrtSparseFormat.ORT_SPARSE_COO
        return SparseTensor._of(form, dense_shape, values, indices=coo_indices)

    @staticmethod
    def sparse_csr_from_numpy(
        dense_shape: numpy.ndarray,
        values: numpy.ndarray,
        inner_indices: numpy.ndarray,
        outer_indices: numpy.ndarray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        """Creates a matrix from values, their columns, and the start of each row."""
        form = OrtSparseFormat.ORT_SPARSE_CSRC
        return SparseTensor._of(form, dense_shape, values, inner=inner_indices, outer=outer_indices)

    def values(self) -> numpy.ndarray:
        """Elements, which cannot be changed."""
        return _read_only(self._values)

    def format(self) -> OrtSparseFormat:
        """Format."""
        return self._format

    def dense_shape(self) -> numpy.ndarray:
        """Dimensions."""
        return self._shape

    def data_type(self) -> str:
        """Type, such as "sparse_tensor(float)"."""
        return f"sparse_tensor({NAME_OF.get(number_of(self._values.dtype) or 0, 'undefined')})"

    def device_name(self) -> str:
        """Name of the device."""
        return "cpu"

    def _as(self, form: OrtSparseFormat) -> _View:
        if self._format is not form:
            raise RuntimeError(f"expected a sparse tensor with format {form.name}, found {self._format.name}")
        return self._view

    def as_coo_view(self) -> _View:
        """Indices of the COO format."""
        return self._as(OrtSparseFormat.ORT_SPARSE_COO)

    def as_csrc_view(self) -> _View:
        """Indices of the CSR format."""
        return self._as(OrtSparseFormat.ORT_SPARSE_CSRC)

    def as_blocksparse_view(self) -> _View:
        """Indices of the block format."""
        return self._as(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE)

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Not available."""
        raise RuntimeError("Cuda is not available in this build")


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies the elements of tensors to tensors of the same type."""
    import numpy as np

    if len(src) != len(dst):
        raise RuntimeError(f"copy_tensors: expected as many destinations as sources, found {len(dst)} and {len(src)}")
    for source, destination in zip(src, dst):
        if source.shape() != destination.shape() or source.data_type() != destination.data_type():
            raise RuntimeError(
                f"copy_tensors: expected {source.data_type()} {source.shape()}, "
                f"found {destination.data_type()} {destination.shape()}"
            )
        np.copyto(destination.numpy(), source.numpy())
