//! Outputs of an execution: the memory to which they are written, and the part of each output that belongs to a
//! request.

use crate::error::{Result, ServeError};
use crate::mapping::WritableSpan;
use byoc::{DType, Tensor, TensorViewMut};
use byoc_ir::tensor::{self, AlignedBytes, Shape, byte_count};
use bytes::Bytes;
use std::sync::Arc;

/// Memory for the outputs of a model.
pub struct OutputMemory(Vec<(DType, Shape, Storage)>);

enum Storage {
    /// Shared memory of the client.
    Shared(WritableSpan),
    Own(AlignedBytes),
}

impl std::fmt::Debug for OutputMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(dtype, shape, _)| (dtype, shape))).finish()
    }
}

impl OutputMemory {
    /// Creates memory for outputs of these types, in the order of the model. Memory for an output
    /// without a span is allocated.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub fn new(outputs: Vec<(DType, Shape, Option<WritableSpan>)>) -> Result<OutputMemory> {
        let storage = |(dtype, shape, span): (DType, Shape, Option<WritableSpan>)| {
            let storage = match span {
                Some(span) => Storage::Shared(span),
                None => {
                    let size = byte_count(dtype, &shape).unwrap_or(usize::MAX);
                    let bytes = AlignedBytes::zeroed(size);
                    let error = |error| ServeError::overloaded(format!("not enough memory for an output: {error}"));
                    Storage::Own(bytes.map_err(error)?)
                }
            };
            Ok((dtype, shape, storage))
        };
        outputs.into_iter().map(storage).collect::<Result<_>>().map(OutputMemory)
    }

    /// Returns the memory of each output.
    pub fn views(&mut self) -> Vec<TensorViewMut<'_>> {
        let outputs = self.0.iter_mut();
        outputs
            .map(|(dtype, shape, storage)| TensorViewMut {
                dtype: *dtype,
                shape,
                data: match storage {
                    Storage::Shared(span) => span.as_mut(),
                    Storage::Own(bytes) => bytes.as_mut(),
                },
            })
            .collect()
    }

    /// Converts the memory to outputs after an execution has written it.
    pub fn into_parts(self) -> Vec<Part> {
        let part = |(dtype, shape, storage): (DType, Shape, Storage)| {
            let (bytes, is_in_place): (Arc<dyn tensor::Storage>, bool) = match storage {
                Storage::Shared(span) => (Arc::new(span), true),
                Storage::Own(bytes) => (Arc::new(bytes), false),
            };
            let tensor = Tensor::from_storage(dtype, &shape, bytes).unwrap_or_else(Tensor::empty);
            Part { tensor, rows: None, is_in_place }
        };
        self.0.into_iter().map(part).collect()
    }
}

/// Rows of an output that belong to one request.
#[derive(Clone, Debug)]
pub struct Part {
    /// Output of the execution.
    pub tensor: Tensor,
    /// First row and number of rows; `None` for all.
    pub rows: Option<(usize, usize)>,
    /// True if the elements are already in the shared memory that the request provides.
    pub is_in_place: bool,
}

/// Restores the batch dimension of an output of `rank` dimensions: a program for a batch of 1 may have squeezed it.
pub fn with_batch_dim(tensor: Tensor, rank: usize) -> Tensor {
    let shape = [&[1], tensor.shape()].concat();
    if shape.len() == rank { tensor.reshaped(&shape).unwrap_or(tensor) } else { tensor }
}

/// Tensor as the owner of a [`Bytes`] value.
struct TensorBytes(Tensor);

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Part {
    /// Returns the dimensions.
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.tensor.shape().to_vec();
        if let (Some((_, rows)), Some(first_dim)) = (self.rows, shape.first_mut()) {
            *first_dim = rows;
        }
        shape
    }

    /// Returns the elements, without a copy.
    pub fn bytes(&self) -> Bytes {
        let all_bytes = Bytes::from_owner(TensorBytes(self.tensor.clone()));
        match (self.rows, self.tensor.shape().first()) {
            (Some((start, rows)), Some(total_rows)) if *total_rows > 0 => {
                let row = all_bytes.len() / total_rows;
                all_bytes.slice(start * row..(start + rows) * row)
            }
            _ => all_bytes,
        }
    }
}
