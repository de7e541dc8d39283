//! Runs a region in guarded memory and looks at what it did to it.

use super::fault::{Fault, Kind};
use super::piece::Piece;
use super::reference::{Bounded, Outside, compare};
use crate::plugin::bridge::dtype_out;
use crate::plugin::guard::{Guarded, first_damage};
use byoc_core::tensor::Tensor;
use byoc_plugin_api::{Call, Executable, Prepared, TensorMut, TensorRef};

/// What the surroundings of a run hold.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What outputs and workspace hold before.
    pub unset: u8,
    /// What lies around everything.
    pub outside: u8,
}

impl Setting {
    /// Bytes that are no number in any float type.
    pub const NAN: Setting = Setting { unset: 0xff, outside: 0xff };
}

/// One run in guarded memory.
pub fn run(
    piece: &Piece,
    executable: &dyn Executable,
    prepared: &Prepared,
    setting: Setting,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, Fault> {
    let memory: Vec<Guarded> = inputs.iter().map(|t| Guarded::copy_of(t.bytes(), setting.outside)).collect();
    let of: Vec<usize> = (0..inputs.len()).collect();
    run_on(piece, executable, prepared, setting, inputs, &memory, &of)
}

/// One run whose input `i` lies in `memory[of[i]]`: several may share one.
pub fn run_on(
    piece: &Piece,
    executable: &dyn Executable,
    prepared: &Prepared,
    setting: Setting,
    inputs: &[Tensor],
    memory: &[Guarded],
    of: &[usize],
) -> Result<Vec<Tensor>, Fault> {
    let before: Vec<Vec<u8>> = memory.iter().map(|m| m.bytes().to_vec()).collect();
    let constants: Vec<Tensor> = piece.tensors.iter().map(|t| (**t).clone()).collect();
    let digests: Vec<blake3::Hash> = constants.iter().map(|t| blake3::hash(t.bytes())).collect();
    let views: Vec<TensorRef<'_>> = inputs
        .iter()
        .zip(of)
        .map(|(tensor, &at)| TensorRef::new(dtype_out(tensor.dtype()), tensor.shape(), memory[at].bytes()))
        .collect();
    let mut shapes: Vec<Vec<usize>> = prepared.outputs.iter().map(|o| o.dims.to_vec()).collect();
    let dtypes: Vec<_> = piece.expected.iter().map(|want| want.value.dtype()).collect();
    let mut outputs: Vec<Guarded> = shapes
        .iter()
        .zip(&dtypes)
        .map(|(shape, dtype)| {
            let len = shape.iter().product::<usize>() * dtype.size();
            Guarded::new(len, setting.unset, setting.outside)
        })
        .collect();
    let mut workspace = Guarded::new(prepared.workspace, setting.unset, setting.outside);
    let mut targets: Vec<TensorMut<'_>> = outputs
        .iter_mut()
        .zip(&mut shapes)
        .zip(&dtypes)
        .map(|((memory, shape), dtype)| TensorMut::new(dtype_out(*dtype), shape, memory.bytes_mut()))
        .collect();
    let call = Call { inputs: &views, outputs: &mut targets, workspace: workspace.bytes_mut(), plan: prepared.plan };
    executable.run(call).map_err(|error| Fault::of_error(Kind::RunFailed, "run", &error))?;
    if let Some(damage) = first_damage(&outputs, &workspace, memory) {
        return Err(Fault::new(Kind::WritesOutside, "run", damage));
    }
    if let Some(i) = memory.iter().zip(&before).position(|(now, before)| now.bytes() != before) {
        return Err(Fault::new(Kind::WritesInput, "run", format!("input {i} has other bytes after the run")));
    }
    if let Some(i) = constants.iter().zip(&digests).position(|(t, digest)| blake3::hash(t.bytes()) != *digest) {
        return Err(Fault::new(Kind::WritesInput, "run", format!("constant {i} has other bytes after the run")));
    }
    let mut results = Vec::with_capacity(outputs.len());
    for (i, ((memory, shape), want)) in outputs.iter().zip(&shapes).zip(&piece.expected).enumerate() {
        let value = &want.value;
        if shape[..] != *value.shape() {
            let message = format!("output {i} came out as {shape:?}, the region gives {:?}", value.shape());
            return Err(Fault::new(Kind::WrongShape, "run", message));
        }
        let bytes = &memory.bytes()[..value.bytes().len()];
        results.extend(Tensor::from_bytes(value.dtype(), shape, bytes));
    }
    Ok(results)
}

/// Compares all outputs.
///
/// # Errors
/// The first output that is outside its bounds, and where.
pub fn judge_outputs(outputs: &[Tensor], expected: &[Bounded]) -> Result<f64, (usize, Outside)> {
    let mut share = 0.0f64;
    for (i, (output, want)) in outputs.iter().zip(expected).enumerate() {
        share = share.max(compare(output, want).map_err(|outside| (i, outside))?);
    }
    Ok(share)
}

/// Holds all outputs against what is expected; a fault says which is outside, and in `how` what was done.
///
/// # Errors
/// A fault of that kind in that entry.
pub fn expect(outputs: &[Tensor], expected: &[Bounded], kind: Kind, entry: &str, how: &str) -> Result<(), Fault> {
    let outcome = judge_outputs(outputs, expected).map(|_| ());
    outcome.map_err(|(output, outside)| Fault::new(kind, entry, format!("{how}: output {output}: {outside}")))
}
