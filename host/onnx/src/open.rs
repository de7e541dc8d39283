//! Operator conversion for symbolic dimensions.
//!
//! Relay operators with a shape attribute keep dimension names in the result type; the `dyn.*` operators, whose shapes
//! are computed at run time, do not. Operators with shape attributes are therefore used wherever they can express the
//! operation: `reshape` with its codes, and the `*_like` operators with a tensor of the required dimensions as operand.

use super::node::{Node, attrs};
use super::size::Size;
use super::state::{Error, Result};
use byoc_ir::diag::codes;
use byoc_ir::ir::{AttrValue, Dim, DimExpr, DimOp, DimOps, ExprId, Name};
use byoc_ir::tensor::DType;

impl Node<'_, '_> {
    /// Returns the elements of input `i`, a vector or a scalar, if the input is present.
    ///
    /// # Errors
    /// If an element is unknown or non-integer.
    pub fn sizes(&mut self, i: usize, role: &str) -> Result<Option<Vec<Size>>> {
        let Some(value) = self.optional_input(i) else { return Ok(None) };
        match self.tracked_elements(value).and_then(|sizes| sizes.into_iter().collect::<Option<Vec<Size>>>()) {
            Some(sizes) => {
                self.constant_value(value);
                Ok(Some(sizes))
            }
            None => self.ints(i, role).map(|ints| ints.map(|ints| ints.into_iter().map(Size::constant).collect())),
        }
    }

    /// Returns input `i` if it is present and has a known shape, but at least one untracked element.
    pub fn untracked_input(&mut self, i: usize) -> Option<ExprId> {
        let value = self.computed_input(i)?;
        let known = self.tracked_elements(value).is_some_and(|sizes| !sizes.contains(&None));
        let sized = self.ty(value).is_ok_and(|ty| ty.shape().is_some());
        if !known && sized { Some(value) } else { None }
    }

    /// Returns the dimensions of `value` in `range` as an `int64` vector.
    pub fn shape_vector(&mut self, value: ExprId, range: std::ops::Range<usize>) -> Result<ExprId> {
        let dims = self.dims(value)?;
        let dims = dims.get(range.clone()).unwrap_or_default();
        if let Some(numbers) = dims.iter().map(|dim| dim.fixed().map(|n| n as i64)).collect::<Option<Vec<i64>>>() {
            // If `value` is a constant, the result inherits its origins.
            self.constant_value(value);
            return Ok(self.vector(&numbers));
        }
        let sizes = self.dims(value)?.iter().map(Size::of).collect();
        let all = self.op("shape_of", &[value], attrs![dtype: DType::I64])?;
        self.track_elements(all, sizes);
        if range.len() == self.rank(value)? { Ok(all) } else { self.slice(all, 0, range.start, range.end) }
    }

    /// Builds an `int64` vector from `sizes`.
    pub fn size_vector(&mut self, sizes: &[Size]) -> Result<ExprId> {
        let parts = sizes.iter().map(|size| size.fold(self)).collect::<Result<Vec<_>>>()?;
        let vector = self.concatenate(&parts, 0)?;
        if self.constant_value(vector).is_none() {
            self.track_elements(vector, sizes.iter().cloned().map(Some).collect());
        }
        Ok(vector)
    }

    /// Builds an `int64` vector from `dims`. One dimension may be unknown; it becomes -1.
    fn dims_vector(&mut self, dims: &[Dim]) -> Result<ExprId> {
        let mut parts = Vec::with_capacity(dims.len());
        for dim in dims {
            parts.push(match dim {
                Dim::Fixed(n) => self.vector(&[*n as i64]),
                Dim::Any => self.vector(&[-1i64]),
                Dim::Symbolic(expr) => expr.fold(self)?,
            });
        }
        self.concatenate(&parts, 0)
    }

    /// Reshapes `value` to the dimensions `wanted`; one dimension may be unknown.
    pub fn reshape_to(&mut self, value: ExprId, wanted: &[Dim]) -> Result<ExprId> {
        let dims = self.dims(value)?;
        if dims == wanted && !wanted.contains(&Dim::Any) {
            return Ok(value);
        }
        if let Some((codes, allowzero)) = reshape_codes(&dims, wanted)
            && !(codes.contains(&-1) && self.may_be_empty(wanted))
        {
            let result = self.op("reshape", &[value], attrs![newshape: codes, allowzero: allowzero])?;
            self.name_dims(result, wanted);
            return Ok(result);
        }
        if let Some(like) = self.tensor_with_dims(wanted)? {
            return self.op_without_attrs("reshape_like", &[value, like]);
        }
        let newshape = self.dims_vector(wanted)?;
        let result = self.op("dyn.reshape", &[value, newshape], attrs![allowzero: !wanted.contains(&Dim::Any)])?;
        self.name_dims(result, wanted);
        Ok(result)
    }

    /// Returns true if a dimension is 0 or may be 0 at run time, which makes -1 in a new shape ambiguous.
    fn may_be_empty(&self, wanted: &[Dim]) -> bool {
        let computed = |dim: &Dim| dim.symbols().iter().any(|name| self.is_computed_dim(name));
        !wanted.contains(&Dim::Any) && wanted.iter().any(|dim| dim.fixed() == Some(0) || computed(dim))
    }

    /// Returns the product of the dimensions before `axis`, and the product of the remaining dimensions.
    pub fn flatten_at(&self, dims: &[Dim], axis: usize) -> Result<[Dim; 2]> {
        let half = |dims: &[Dim]| {
            Dim::product(dims).ok_or_else(|| self.invalid_node("the product of the dimensions overflows"))
        };
        Ok([half(&dims[..axis])?, half(&dims[axis..])?])
    }

    pub fn broadcast_to(&mut self, value: ExprId, wanted: &[Dim]) -> Result<ExprId> {
        if self.dims(value)? == wanted && !wanted.contains(&Dim::Any) {
            return Ok(value);
        }
        if let Some(shape) = wanted.iter().map(|dim| dim.fixed().map(|n| n as i64)).collect::<Option<Vec<i64>>>() {
            return self.op("broadcast_to", &[value], attrs![shape: AttrValue::from(shape)]);
        }
        match self.tensor_with_dims(wanted)? {
            Some(like) => self.op_without_attrs("broadcast_to_like", &[value, like]),
            None => {
                let shape = self.dims_vector(wanted)?;
                let result = self.op_without_attrs("dyn.broadcast_to", &[value, shape])?;
                self.name_dims(result, wanted);
                Ok(result)
            }
        }
    }

    /// Returns the indices along an axis of `value`, as a tensor of the same rank whose other dimensions are 1.
    pub fn indices_along(&mut self, value: ExprId, axis: usize) -> Result<ExprId> {
        let size = self.shape_vector(value, axis..axis + 1)?;
        let size = self.reshape(size, &[])?;
        let (zero, step) = (self.scalar(DType::I64, 0.0), self.scalar(DType::I64, 1.0));
        let places = self.op("arange", &[zero, size, step], attrs![dtype: DType::I64])?;
        let mut dims = vec![Dim::Fixed(1); self.rank(value)?];
        dims[axis] = self.dims(value)?[axis].clone();
        self.reshape_to(places, &dims)
    }

    /// Slices `value` along an axis, from 0 to `dim`.
    pub fn slice_to(&mut self, value: ExprId, axis: usize, dim: &Dim) -> Result<ExprId> {
        let mut wanted = vec![Dim::Fixed(1); self.rank(value)?];
        wanted[axis] = dim.clone();
        match self.tensor_with_dims(&wanted)? {
            Some(like) => self.op("slice_like", &[value, like], attrs![axes: [axis as i64]]),
            None => {
                let (from, step, to) =
                    (self.vector(&[0i64]), self.vector(&[1i64]), self.dims_vector(std::slice::from_ref(dim))?);
                let result = self.op("dyn.strided_slice", &[value, from, to, step], attrs![axes: [axis as i64]])?;
                let mut dims = self.dims(value)?;
                dims[axis] = dim.clone();
                self.name_dims(result, &dims);
                Ok(result)
            }
        }
    }

    /// Builds a tensor with the dimensions `wanted`; `None` if a dimension is neither fixed nor an input symbol.
    fn tensor_with_dims(&mut self, wanted: &[Dim]) -> Result<Option<ExprId>> {
        let is_symbol = |dim: &Dim| dim.name().is_some_and(|name| !self.is_computed_dim(name));
        if !wanted.iter().all(|dim| dim.fixed().is_some() || is_symbol(dim)) {
            return Ok(None);
        }
        let fixed: Vec<usize> = wanted.iter().map(|dim| dim.fixed().unwrap_or(1)).collect();
        let mut like = self.zeros(DType::F32, &fixed)?;
        for (axis, dim) in wanted.iter().enumerate() {
            if let Some(name) = dim.name() {
                let lane = self.zeros_of_dim(name)?;
                let codes: Vec<i64> = (0..wanted.len()).map(|i| if i == axis { -1 } else { 1 }).collect();
                let lane = self.op("reshape", &[lane], attrs![newshape: codes])?;
                like = self.op_without_attrs("add", &[like, lane])?;
            }
        }
        Ok(Some(like))
    }

    /// Returns a zero vector whose length is the symbolic dimension `name`. For an input dimension of the model, the
    /// vector is derived from an input with this dimension.
    pub fn zeros_of_dim(&mut self, name: &str) -> Result<ExprId> {
        if let Some(lane) = self.cached_zeros(name) {
            return Ok(lane);
        }
        if let Some((value, axis)) = self.source_of_dim(name) {
            let (zero, length) = (self.scalar(DType::F32, 0.0), self.shape_vector(value, axis..axis + 1)?);
            let lane = self.op("dyn.full", &[zero, length], attrs![dtype: DType::F32])?;
            self.name_dims(lane, &[Dim::Symbolic(DimExpr::symbol(name))]);
            return Ok(lane);
        }
        let Some((input, axis)) = self.input_with_dim(name) else {
            let message = format!("expected an input with dimension \"{name}\", found none");
            return Err(Box::new(
                self.error(codes::frontends::NOT_CONSTANT, message).help("bind the dimension with --dim NAME=N"),
            ));
        };
        let rank = self.rank(input)?;
        let others: Vec<i64> = (0..rank).filter(|&i| i != axis).map(|i| i as i64).collect();
        let mut lane = input;
        if !others.is_empty() {
            let (begin, end, ones) = (vec![0i64; others.len()], vec![1i64; others.len()], vec![1i64; others.len()]);
            lane =
                self.op("strided_slice", &[lane], attrs![begin: begin, end: end, strides: ones, axes: others.clone()])?;
        }
        lane = self.op_without_attrs("zeros_like", &[lane])?;
        lane = self.cast(lane, DType::F32)?;
        if !others.is_empty() {
            lane = self.op("sum", &[lane], attrs![axis: others])?;
        }
        self.cache_zeros(name, lane);
        Ok(lane)
    }
}

/// Computes dimensions at run time, each as an `int64` vector with one element.
impl DimOps<ExprId, Error> for Node<'_, '_> {
    fn constant(&mut self, value: i64) -> Result<ExprId> {
        Ok(self.vector(&[value]))
    }

    fn symbol(&mut self, name: &Name) -> Result<ExprId> {
        if let Some((value, axis)) = self.source_of_dim(name) {
            return self.shape_vector(value, axis..axis + 1);
        }
        let lane = self.zeros_of_dim(name)?;
        self.shape_vector(lane, 0..1)
    }

    fn binary(&mut self, op: DimOp, a: ExprId, b: ExprId) -> Result<ExprId> {
        let name = match op {
            DimOp::Add => "add",
            DimOp::Mul => "multiply",
            DimOp::FloorDiv => "floor_divide",
            DimOp::Min => "minimum",
            DimOp::Max => "maximum",
        };
        self.op_without_attrs(name, &[a, b])
    }
}

/// Returns the codes for Relay's `reshape` from `dims` to `wanted`, and true if 0 denotes an empty dimension
/// (`allowzero`) rather than a copied dimension; `None` if no codes express the reshape.
fn reshape_codes(dims: &[Dim], wanted: &[Dim]) -> Option<(Vec<i64>, bool)> {
    let by_index = codes_by_index(dims, wanted).map(|codes| (codes, wanted.contains(&Dim::Fixed(0))));
    by_index.or_else(|| codes_by_factors(dims, wanted).map(|codes| (codes, false)))
}

/// Encodes a reshape with fixed dimensions, copies of the dimension at the same index (0), and at most one -1.
fn codes_by_index(dims: &[Dim], wanted: &[Dim]) -> Option<Vec<i64>> {
    let mut left = false;
    let zero = wanted.contains(&Dim::Fixed(0));
    wanted
        .iter()
        .enumerate()
        .map(|(i, dim)| match dim {
            Dim::Fixed(n) => Some(*n as i64),
            dim if !zero && *dim != Dim::Any && dims.get(i) == Some(dim) => Some(0),
            _ => (!std::mem::replace(&mut left, true)).then_some(-1),
        })
        .collect()
}

/// Encodes a reshape with copied dimensions (0), merges of two dimensions (-3), and splits of one dimension (-4).
fn codes_by_factors(dims: &[Dim], wanted: &[Dim]) -> Option<Vec<i64>> {
    let mut codes = Vec::new();
    let (mut i, mut j) = (0, 0);
    while j < wanted.len() {
        let here = dims.get(i)?;
        let product =
            |pair: &[Dim]| (pair.len() == 2).then(|| Dim::product(pair)).flatten().filter(|dim| *dim != Dim::Any);
        if *here == wanted[j] && *here != Dim::Any {
            codes.push(0);
            (i, j) = (i + 1, j + 1);
        } else if product(dims.get(i..i + 2).unwrap_or_default()).as_ref() == Some(&wanted[j]) {
            codes.push(-3);
            (i, j) = (i + 2, j + 1);
        } else if product(wanted.get(j..j + 2).unwrap_or_default()).as_ref() == Some(here) {
            let code = |dim: &Dim| dim.fixed().map_or(-1, |n| n as i64);
            let split = [code(&wanted[j]), code(&wanted[j + 1])];
            if split == [-1, -1] {
                return None;
            }
            codes.extend([-4, split[0], split[1]]);
            (i, j) = (i + 1, j + 2);
        } else {
            return None;
        }
    }
    (i == dims.len() && codes.iter().filter(|code| **code == -1).count() <= 1).then_some(codes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_ir::text::parse_dim;

    fn dims(text: &str) -> Vec<Dim> {
        text.split_whitespace().map(|word| parse_dim(word).unwrap()).collect()
    }

    #[test]
    fn encodes_reshapes() {
        let all = [
            ("b s 768", "b s 12 64", Some(vec![0, 0, 12, 64])),
            ("b s 12 64", "b s 768", Some(vec![0, 0, 768])),
            ("b s 64", "b*s 64", Some(vec![-1, 64])),
            ("b 12 s 64", "12*b s 64", Some(vec![-3, 0, 0])),
            ("12*b s s", "b 12 s s", Some(vec![-4, -1, 12, 0, 0])),
            ("b*s 64", "b s 64", None),
            ("b 49 3", "?", Some(vec![-1])),
            ("b 3 4", "b 0 4", Some(vec![-1, 0, 4])),
        ];
        for (from, to, wanted) in all {
            let found = reshape_codes(&dims(from), &dims(to)).map(|(codes, _)| codes);
            assert_eq!(found, wanted, "{from} to {to}");
        }
    }
}
