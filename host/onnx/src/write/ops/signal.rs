//! Discrete Fourier transforms.

use super::super::call::{Call, Outputs};
use super::super::proto_parts::int;
use super::super::values::Operand;
use super::super::writer::{Refusal, Result};
use super::{Row, single};
use byoc_ir::tensor::DType;

pub const ROWS: &[Row] = &[("signal.dft", dft), ("signal.stft", stft)];

fn dft(c: &mut Call<'_, '_>) -> Result<Outputs> {
    c.since(17, "DFT")?;
    let (x, is_onesided, is_inverse) = (c.arg(0)?, c.params.bool("onesided"), c.params.bool("inverse"));
    if is_onesided && is_inverse {
        c.since(20, "the one-sided inverse of DFT")?;
    }
    let length = match c.known_ints(1).as_deref() {
        Some([0]) => Operand::Absent,
        _ => c.scalar_arg(1, DType::I64)?,
    };
    let mut attrs = vec![int("inverse", is_inverse.into()), int("onesided", is_onesided.into())];
    if c.w.opset >= 20 {
        let axis = c.scalar_arg(2, DType::I64)?;
        return single(c.node("DFT", &[x, length, axis], attrs));
    }
    let Some([axis]) = c.known_ints(2).as_deref().and_then(|axes| <[i64; 1]>::try_from(axes).ok()) else {
        return Err(Refusal { since: Some(20), ..Refusal::new("a computed axis of DFT") });
    };
    attrs.insert(0, int("axis", axis));
    single(c.node("DFT", &[x, length], attrs))
}

fn stft(c: &mut Call<'_, '_>) -> Result<Outputs> {
    c.since(17, "STFT")?;
    let (x, step, window) = (c.arg(0)?, c.scalar_arg(1, DType::I64)?, c.arg(2)?);
    let attrs = vec![int("onesided", c.params.bool("onesided").into())];
    single(c.node("STFT", &[x, step, window], attrs))
}
