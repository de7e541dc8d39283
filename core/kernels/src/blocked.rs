//! Convolutions and pooling over blocked layouts: the kernel for the plain layout, wrapped in layout transforms.
//! Blocked layouts pay off on backends that compute on them; on the host, correctness and acceptable speed suffice.

use super::{Kernel, Spec, make};
use byoc_ir::ir::{Attrs, OpId, TensorType};
use byoc_ir::op::blocked::{self, BlockedCall};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::{DType, Shape, Tensor, TensorView, TensorViewMut};

/// Form in which an input is passed to the plain-layout kernel.
enum Input {
    /// Input passed through unchanged.
    Unchanged,
    /// Constant that was transformed when the kernel was created.
    Constant(Tensor),
    /// Input in a blocked layout, transformed in every run.
    Transformed { transform: Box<dyn Kernel>, shape: Shape, bytes: usize },
}

struct LayoutWrapped {
    inputs: Vec<Input>,
    plain_kernel: Box<dyn Kernel>,
    relayout_kernel: Box<dyn Kernel>,
    /// Element type, shape and size in bytes of the result in the plain layout.
    dtype: DType,
    shape: Shape,
    bytes: usize,
}

/// Creates the kernel of a call with a blocked layout; `None` if the call has no blocked layout.
pub(super) fn layout_wrapped(op: OpId, spec: &Spec<'_>) -> Option<Box<dyn Kernel>> {
    let call = BlockedCall::of(&spec.params())?;
    let plain_type = |ty: &TensorType, layout: &str| {
        let shape = blocked::plain_shape(layout, &ty.shape()?)?;
        Some((TensorType::fixed(ty.dtype, &shape), shape))
    };
    let size = |ty: &TensorType| Some(ty.len()? * ty.dtype.size());
    let mut inputs = Vec::with_capacity(spec.inputs.len());
    let mut types = spec.inputs.to_vec();
    for (i, ty) in spec.inputs.iter().enumerate() {
        let Some((source, target)) = call.inputs.get(i).filter(|(source, target)| source != target) else {
            inputs.push(Input::Unchanged);
            continue;
        };
        let (plain_ty, shape) = plain_type(ty, source)?;
        let attrs = transform_attrs(source, target);
        inputs.push(match spec.constants.get(i).copied().flatten() {
            Some(tensor) => {
                let op = op::lookup("layout_transform")?;
                let value = [Value::Tensor(tensor.clone())];
                Input::Constant(op::evaluate(op, &attrs, &value, usize::MAX).ok()?.pop()?)
            }
            None => Input::Transformed {
                transform: layout_transform(&attrs, ty, &plain_ty)?,
                shape,
                bytes: size(&plain_ty)?,
            },
        });
        types[i] = plain_ty;
    }
    let (target, source) = &call.output;
    let (result, shape) = plain_type(spec.outputs.first()?, target)?;
    let constants: Vec<Option<&Tensor>> = inputs
        .iter()
        .enumerate()
        .map(|(i, input)| match input {
            Input::Unchanged => spec.constants.get(i).copied().flatten(),
            Input::Constant(tensor) => Some(tensor),
            Input::Transformed { .. } => None,
        })
        .collect();
    let results = [result];
    let inner = Spec { def: spec.def, attrs: &call.attrs, inputs: &types, outputs: &results, constants: &constants };
    let plain_kernel = make(op, &inner)?;
    let [result] = results;
    let relayout_kernel = layout_transform(&transform_attrs(source, target), &result, spec.outputs.first()?)?;
    let (dtype, bytes) = (result.dtype, size(&result)?);
    Some(Box::new(LayoutWrapped { inputs, plain_kernel, relayout_kernel, dtype, shape, bytes }))
}

fn transform_attrs(source: &str, target: &str) -> Attrs {
    Attrs::new([("src_layout", source.into()), ("dst_layout", target.into())])
}

fn layout_transform(attrs: &Attrs, source: &TensorType, target: &TensorType) -> Option<Box<dyn Kernel>> {
    let id = op::lookup("layout_transform")?;
    let (inputs, outputs) = (std::slice::from_ref(source), std::slice::from_ref(target));
    make(id, &Spec { def: op::get(id), attrs, inputs, outputs, constants: &[None] })
}

/// Rounds a buffer size up, so that every buffer is aligned for any element type.
fn aligned_size(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}

impl LayoutWrapped {
    /// Returns the size in bytes of the inputs that every run transforms.
    fn buffers(&self) -> usize {
        let bytes = self.inputs.iter().map(|input| match input {
            Input::Transformed { bytes, .. } => aligned_size(*bytes),
            _ => 0,
        });
        bytes.sum()
    }
}

impl Kernel for LayoutWrapped {
    fn workspace(&self) -> usize {
        let transforms = self.inputs.iter().map(|input| match input {
            Input::Transformed { transform, .. } => transform.workspace(),
            _ => 0,
        });
        let scratch =
            transforms.chain([self.plain_kernel.workspace(), self.relayout_kernel.workspace()]).max().unwrap_or(0);
        self.buffers() + aligned_size(self.bytes) + scratch
    }

    fn scratch(&self) -> usize {
        let transforms = self.inputs.iter().map(|input| match input {
            Input::Transformed { transform, .. } => transform.scratch(),
            _ => 0,
        });
        transforms.chain([self.plain_kernel.scratch(), self.relayout_kernel.scratch()]).max().unwrap_or(0)
    }

    fn run(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<(), String> {
        let (mut buffers, inner_workspace) = workspace.split_at_mut(self.buffers());
        let (result, scratch) = inner_workspace.split_at_mut(aligned_size(self.bytes));
        let mut views: Vec<TensorView<'_>> = Vec::with_capacity(inputs.len());
        for (input, original) in self.inputs.iter().zip(inputs) {
            views.push(match input {
                Input::Unchanged => *original,
                Input::Constant(tensor) => tensor.view(),
                Input::Transformed { transform, shape, bytes } => {
                    let (buffer, remainder) = buffers.split_at_mut(aligned_size(*bytes));
                    buffers = remainder;
                    let data = &mut buffer[..*bytes];
                    let view = TensorViewMut { dtype: original.dtype, shape, data };
                    transform.run(std::slice::from_ref(original), &mut [view], scratch)?;
                    TensorView { dtype: original.dtype, shape, data: &buffer[..*bytes] }
                }
            });
        }
        let result = &mut result[..self.bytes];
        let view = TensorViewMut { dtype: self.dtype, shape: &self.shape, data: result };
        self.plain_kernel.run(&views, &mut [view], scratch)?;
        let result = TensorView { dtype: self.dtype, shape: &self.shape, data: result };
        self.relayout_kernel.run(&[result], outputs, scratch)
    }
}
