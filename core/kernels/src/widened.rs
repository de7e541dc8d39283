//! Kernels for 16-bit floats: the operands are converted to `f32`, the `f32` kernel runs, and its results are rounded
//! once.

use super::{Kernel, Spec, split};
use byoc_ir::ir::TensorType;
use byoc_ir::op::AttrKind;
use byoc_ir::tensor::{DType, Element, Tensor, TensorView, TensorViewMut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Number of elements per call to a conversion.
const CHUNK: usize = 4096;

/// Alignment of each operand in the workspace, in bytes.
const ALIGNMENT: usize = 64;

/// Creates the kernel for a call with 16-bit floats, from the kernel that `fast` creates for the same call with `f32`.
/// Returns `None` if there is no such kernel, or if an attribute names another element type.
pub(super) fn make(
    spec: &Spec<'_>,
    fast: impl FnOnce(&Spec<'_>) -> Option<Box<dyn Kernel>>,
) -> Option<Box<dyn Kernel>> {
    // Quantization of 16-bit floats rounds its intermediate results to 16 bits.
    if !spec.inputs.iter().any(|ty| is_narrow(ty.dtype)) || spec.def.name.starts_with("qnn.") {
        return None;
    }
    let dtype_attrs = spec.def.attrs.iter().filter(|attr| attr.kind == AttrKind::DType);
    let names_other_type = dtype_attrs.filter_map(|attr| spec.params().dtype(attr.name)).any(|dtype| !is_narrow(dtype));
    if names_other_type {
        return None;
    }
    let widened_types = |types: &[TensorType]| -> Vec<TensorType> {
        types.iter().map(|ty| TensorType { dtype: widened(ty.dtype), ..ty.clone() }).collect()
    };
    let constants: Vec<Option<Tensor>> =
        spec.constants.iter().map(|constant| constant.and_then(wide_constant)).collect();
    let wide_constants: Vec<Option<&Tensor>> =
        constants.iter().zip(spec.constants).map(|(wide, constant)| wide.as_ref().or(*constant)).collect();
    let (inputs, outputs) = (widened_types(spec.inputs), widened_types(spec.outputs));
    let wide_spec = Spec { inputs: &inputs, outputs: &outputs, constants: &wide_constants, ..*spec };
    let kernel = fast(&wide_spec)?;
    let size = |ty: &TensorType| ty.len()?.checked_mul(4)?.checked_next_multiple_of(ALIGNMENT);
    let mut workspace = kernel.workspace().checked_next_multiple_of(ALIGNMENT)?;
    for (i, ty) in spec.inputs.iter().enumerate() {
        if is_narrow(ty.dtype) && constants.get(i).is_none_or(Option::is_none) {
            workspace = workspace.checked_add(size(ty)?)?;
        }
    }
    for ty in spec.outputs.iter().filter(|ty| is_narrow(ty.dtype)) {
        workspace = workspace.checked_add(size(ty)?)?;
    }
    Some(Box::new(Widened { kernel, constants, workspace }))
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn widened(dtype: DType) -> DType {
    if is_narrow(dtype) { DType::F32 } else { dtype }
}

/// Returns a constant as `f32`; `None` if its elements are not 16-bit floats.
fn wide_constant(constant: &Tensor) -> Option<Tensor> {
    if !is_narrow(constant.dtype()) {
        return None;
    }
    let mut values = vec![0.0; constant.len()];
    widen(&constant.view(), &mut values);
    Some(Tensor::from_vec(constant.shape(), values))
}

struct Widened {
    kernel: Box<dyn Kernel>,
    /// Constant operands as `f32`; `None` for other operands.
    constants: Vec<Option<Tensor>>,
    workspace: usize,
}

impl Kernel for Widened {
    fn workspace(&self) -> usize {
        self.workspace
    }

    fn scratch(&self) -> usize {
        self.kernel.scratch()
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let (kernel_workspace, free) = take(workspace, self.kernel.workspace());
        let is_result = |output: &TensorViewMut<'_>| is_narrow(output.dtype);
        let result_size: usize =
            outputs.iter().filter(|output| is_result(output)).map(|output| padded(output.len() * 4)).sum();
        let (results, mut free) = take(free, result_size);
        let mut wide_inputs = Vec::with_capacity(inputs.len());
        for (i, input) in inputs.iter().enumerate() {
            if let Some(Some(constant)) = self.constants.get(i) {
                wide_inputs.push(constant.view());
            } else if is_narrow(input.dtype) {
                let (data, rest) = take(free, input.len() * 4);
                free = rest;
                widen(input, bytemuck::cast_slice_mut(data));
                wide_inputs.push(TensorView { dtype: DType::F32, shape: input.shape, data });
            } else {
                wide_inputs.push(*input);
            }
        }
        let mut free_results = &mut *results;
        let mut wide_outputs = Vec::with_capacity(outputs.len());
        for output in outputs.iter_mut() {
            let TensorViewMut { dtype, shape, data } = output;
            if is_narrow(*dtype) {
                let (data, rest) = take(free_results, data.len() * 2);
                free_results = rest;
                wide_outputs.push(TensorViewMut { dtype: DType::F32, shape, data });
            } else {
                wide_outputs.push(TensorViewMut { dtype: *dtype, shape, data });
            }
        }
        self.kernel.run(&wide_inputs, &mut wide_outputs, kernel_workspace)?;
        let mut results = &*results;
        for output in outputs.iter_mut().filter(|output| is_result(output)) {
            let (result, rest) = results.split_at(padded(output.len() * 4));
            results = rest;
            narrow(&result[..output.len() * 4], output);
        }
        Ok(())
    }
}

fn padded(size: usize) -> usize {
    size.next_multiple_of(ALIGNMENT)
}

/// Splits off `size` bytes of memory; the remainder is aligned.
fn take(memory: &mut [u8], size: usize) -> (&mut [u8], &mut [u8]) {
    let (piece, rest) = memory.split_at_mut(padded(size).min(memory.len()));
    (&mut piece[..size], rest)
}

/// Converts 16-bit floats to `f32`.
fn widen(input: &TensorView<'_>, output: &mut [f32]) {
    match input.dtype {
        DType::BF16 => each_chunk(input.as_slice::<bf16>(), output, |x, out| x.convert_to_f32_slice(out)),
        _ => each_chunk(input.as_slice::<f16>(), output, |x, out| x.convert_to_f32_slice(out)),
    }
}

/// Rounds `f32` results to 16-bit floats; results of other types are already in place.
fn narrow(result: &[u8], output: &mut TensorViewMut<'_>) {
    match output.dtype {
        DType::BF16 => {
            each_chunk(bytemuck::cast_slice(result), output.as_mut_slice::<bf16>(), |x, out| {
                out.convert_from_f32_slice(x)
            });
        }
        DType::F16 => {
            each_chunk(bytemuck::cast_slice(result), output.as_mut_slice::<f16>(), |x, out| {
                out.convert_from_f32_slice(x)
            });
        }
        _ => {}
    }
}

fn each_chunk<S: Element, D: Element>(input: &[S], output: &mut [D], convert: fn(&[S], &mut [D])) {
    split::for_each_chunk(output, CHUNK, input.len(), |i, out| convert(&input[i * CHUNK..][..out.len()], out));
}
