//! Recurrent layers as one operator.

use super::direction::State;
use super::weights::Matrix;
use super::{Kind, Node, Result, attrs};
use byoc_ir::ir::{Dim, ExprId};
use byoc_ir::tensor::DType;

/// One direction of a layer with the default activations.
pub(super) struct Layer {
    pub(super) kind: Kind,
    pub(super) hidden: usize,
    pub(super) weight: Matrix,
    /// Recurrent bias of a GRU (3 * hidden); `None` represents zeros.
    pub(super) bias: Option<ExprId>,
    pub(super) backward: bool,
    /// Numbers of steps of the sequences (batch, 1); `None` if all have the full length.
    pub(super) lengths: Option<ExprId>,
}

impl Layer {
    /// Creates the call from the projected input (steps * batch, gates * hidden). Returns the outputs of all steps, and
    /// the last state.
    pub(super) fn convert(
        &self,
        n: &mut Node<'_, '_>,
        projection: ExprId,
        steps: &Dim,
        state_dims: &[Dim; 2],
        state: State,
    ) -> Result<(ExprId, State)> {
        let dtype = n.dtype(projection)?;
        let width = self.kind.gates() * self.hidden;
        let data = n.reshape_to(projection, &[steps.clone(), state_dims[0].clone(), Dim::Fixed(width)])?;
        let initial = |n: &mut Node<'_, '_>, value: Option<ExprId>| match value {
            Some(value) => Ok(value),
            None => {
                let zero = n.scalar(dtype, 0.0);
                n.broadcast_to(zero, state_dims)
            }
        };
        let hidden = initial(n, state.hidden)?;
        let attrs = attrs![reverse: self.backward];
        let lengths = match self.lengths {
            Some(lengths) => Some(n.op("squeeze", &[lengths], attrs![axis: [1]])?),
            None => None,
        };
        let call = |n: &mut Node<'_, '_>, name: &'static str, inputs: &[ExprId]| {
            let inputs: Vec<ExprId> = inputs.iter().copied().chain(lengths).collect();
            n.op(name, &inputs, attrs)
        };
        let results = match (self.kind, self.weight) {
            (Kind::Lstm, Matrix::Float(weight)) => {
                let cell = initial(n, state.cell)?;
                call(n, "nn.lstm", &[data, weight, hidden, cell])?
            }
            (Kind::Lstm, Matrix::Quantized { integers, zero_points, scales }) => {
                let cell = initial(n, state.cell)?;
                let zero_points = n.cast(zero_points, DType::I32)?;
                let columns = n.shape(scales)?[1];
                let scales = if columns == 1 { n.reshape(scales, &[])? } else { n.reshape(scales, &[columns])? };
                call(n, "qnn.lstm", &[data, integers, hidden, cell, zero_points, scales])?
            }
            (_, Matrix::Float(weight)) => {
                let bias = match self.bias {
                    Some(bias) => bias,
                    None => {
                        let zero = n.scalar(dtype, 0.0);
                        n.broadcast_to(zero, &[Dim::Fixed(width)])?
                    }
                };
                call(n, "nn.gru", &[data, weight, hidden, bias])?
            }
            (_, Matrix::Quantized { .. }) => return Err(n.invalid_node("expected an LSTM, the only quantized layer")),
        };
        let mut field = |i: u32| n.project(results, i);
        let cell = if self.kind == Kind::Lstm { Some(field(2)?) } else { None };
        Ok((field(0)?, State { hidden: Some(field(1)?), cell }))
    }
}
