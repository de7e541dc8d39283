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
    /// If an element is unknown or not an integer.
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
        let has_known_elements = self.tracked_elements(value).is_some_and(|sizes| !sizes.contains(&None));
        let has_shape = self.ty(value).is_ok_and(|ty| ty.shape().is_some());
        if !has_known_elements && has_shape { Some(value) } else { None }
    }

    /// Returns the dimensions of `value` along the axes in `range` as an `int64` vector.
    pub fn shape_vector(&mut self, value: ExprId, range: std::ops::Range<usize>) -> Result<ExprId> {
        let dims = self.dims(value)?;
        let dims = dims.get(range.clone()).unwrap_or_default();
        if let Some(fixed_dims) = dims.iter().map(|dim| dim.fixed().map(|n| n as i64)).collect::<Option<Vec<i64>>>() {
            // If `value` is a constant, the result inherits its origins.
            self.constant_value(value);
            return Ok(self.vector(&fixed_dims));
        }
        let sizes = self.dims(value)?.iter().map(Size::of).collect();
        let shape_vector = self.op("shape_of", &[value], attrs![dtype: DType::I64])?;
        self.track_elements(shape_vector, sizes);
        if range.len() == self.rank(value)? {
            Ok(shape_vector)
        } else {
            self.slice(shape_vector, 0, range.start, range.end)
        }
    }

    /// Builds an `int64` vector from `sizes`.
    pub fn size_vector(&mut self, sizes: &[Size]) -> Result<ExprId> {
        let elements = sizes.iter().map(|size| size.fold(self)).collect::<Result<Vec<_>>>()?;
        let vector = self.concatenate(&elements, 0)?;
        if self.constant_value(vector).is_none() {
            self.track_elements(vector, sizes.iter().cloned().map(Some).collect());
        }
        Ok(vector)
    }

    /// Builds an `int64` vector from `dims`. One dimension may be unknown; it becomes -1.
    fn dims_vector(&mut self, dims: &[Dim]) -> Result<ExprId> {
        let mut elements = Vec::with_capacity(dims.len());
        for dim in dims {
            elements.push(match dim {
                Dim::Fixed(n) => self.vector(&[*n as i64]),
                Dim::Any => self.vector(&[-1i64]),
                Dim::Symbolic(expr) => expr.fold(self)?,
            });
        }
        self.concatenate(&elements, 0)
    }

    /// Reshapes `value` to the dimensions `target_dims`; one dimension may be unknown.
    pub fn reshape_to(&mut self, value: ExprId, target_dims: &[Dim]) -> Result<ExprId> {
        let dims = self.dims(value)?;
        if dims == target_dims && !target_dims.contains(&Dim::Any) {
            return Ok(value);
        }
        if let Some((codes, allowzero)) = reshape_codes(&dims, target_dims)
            && !(codes.contains(&-1) && self.may_be_empty(target_dims))
        {
            let result = self.op("reshape", &[value], attrs![newshape: codes, allowzero: allowzero])?;
            self.name_dims(result, target_dims);
            return Ok(result);
        }
        if let Some(template) = self.tensor_with_dims(target_dims)? {
            return self.op_without_attrs("reshape_like", &[value, template]);
        }
        let newshape = self.dims_vector(target_dims)?;
        let result = self.op("dyn.reshape", &[value, newshape], attrs![allowzero: !target_dims.contains(&Dim::Any)])?;
        self.name_dims(result, target_dims);
        Ok(result)
    }

    /// Returns true if a dimension is 0 or may be 0 at run time, which makes -1 in a new shape ambiguous.
    fn may_be_empty(&self, target_dims: &[Dim]) -> bool {
        let is_computed = |dim: &Dim| dim.symbols().iter().any(|name| self.is_computed_dim(name));
        !target_dims.contains(&Dim::Any) && target_dims.iter().any(|dim| dim.fixed() == Some(0) || is_computed(dim))
    }

    /// Returns the product of the dimensions before `axis`, and the product of the remaining dimensions.
    pub fn flatten_at(&self, dims: &[Dim], axis: usize) -> Result<[Dim; 2]> {
        let product = |dims: &[Dim]| Dim::product(dims).ok_or_else(|| self.product_error(dims));
        Ok([product(&dims[..axis])?, product(&dims[axis..])?])
    }

    pub fn product_error(&self, dims: &[Dim]) -> Error {
        let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
        self.invalid_node(format!("the product of dimensions [{}] overflows", dims.join(", ")))
    }

    pub fn broadcast_to(&mut self, value: ExprId, target_dims: &[Dim]) -> Result<ExprId> {
        if self.dims(value)? == target_dims && !target_dims.contains(&Dim::Any) {
            return Ok(value);
        }
        if let Some(shape) = target_dims.iter().map(|dim| dim.fixed().map(|n| n as i64)).collect::<Option<Vec<i64>>>() {
            return self.op("broadcast_to", &[value], attrs![shape: AttrValue::from(shape)]);
        }
        match self.tensor_with_dims(target_dims)? {
            Some(template) => self.op_without_attrs("broadcast_to_like", &[value, template]),
            None => {
                let shape = self.dims_vector(target_dims)?;
                let result = self.op_without_attrs("dyn.broadcast_to", &[value, shape])?;
                self.name_dims(result, target_dims);
                Ok(result)
            }
        }
    }

    /// Returns the indices along an axis of `value`, as a tensor of the same rank whose other dimensions are 1.
    pub fn indices_along(&mut self, value: ExprId, axis: usize) -> Result<ExprId> {
        let size = self.shape_vector(value, axis..axis + 1)?;
        let size = self.reshape(size, &[])?;
        let (zero, step) = (self.scalar(DType::I64, 0.0), self.scalar(DType::I64, 1.0));
        let positions = self.op("arange", &[zero, size, step], attrs![dtype: DType::I64])?;
        let mut dims = vec![Dim::Fixed(1); self.rank(value)?];
        dims[axis] = self.dims(value)?[axis].clone();
        self.reshape_to(positions, &dims)
    }

    /// Slices `value` along an axis, from 0 to `dim`.
    pub fn slice_to(&mut self, value: ExprId, axis: usize, dim: &Dim) -> Result<ExprId> {
        let mut index_shape = vec![Dim::Fixed(1); self.rank(value)?];
        index_shape[axis] = dim.clone();
        match self.tensor_with_dims(&index_shape)? {
            Some(template) => self.op("slice_like", &[value, template], attrs![axes: [axis as i64]]),
            None => {
                let (start, step, end) =
                    (self.vector(&[0i64]), self.vector(&[1i64]), self.dims_vector(std::slice::from_ref(dim))?);
                let result = self.op("dyn.strided_slice", &[value, start, end, step], attrs![axes: [axis as i64]])?;
                let mut dims = self.dims(value)?;
                dims[axis] = dim.clone();
                self.name_dims(result, &dims);
                Ok(result)
            }
        }
    }

    /// Builds a tensor with the dimensions `target_dims`; `None` if a dimension is neither fixed nor a symbolic input
    /// dimension.
    fn tensor_with_dims(&mut self, target_dims: &[Dim]) -> Result<Option<ExprId>> {
        let is_symbol = |dim: &Dim| dim.name().is_some_and(|name| !self.is_computed_dim(name));
        if !target_dims.iter().all(|dim| dim.fixed().is_some() || is_symbol(dim)) {
            return Ok(None);
        }
        let fixed_shape: Vec<usize> = target_dims.iter().map(|dim| dim.fixed().unwrap_or(1)).collect();
        let mut template = self.zeros(DType::F32, &fixed_shape)?;
        for (axis, dim) in target_dims.iter().enumerate() {
            if let Some(name) = dim.name() {
                let lane = self.zeros_of_dim(name)?;
                let codes: Vec<i64> = (0..target_dims.len()).map(|i| if i == axis { -1 } else { 1 }).collect();
                let lane = self.op("reshape", &[lane], attrs![newshape: codes])?;
                template = self.op_without_attrs("add", &[template, lane])?;
            }
        }
        Ok(Some(template))
    }

    /// Returns a zero vector whose length is the symbolic dimension `name`. For a dimension of a model input, the
    /// vector is derived from that input.
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
        let other_axes: Vec<i64> = (0..rank).filter(|&i| i != axis).map(|i| i as i64).collect();
        let mut lane = input;
        if !other_axes.is_empty() {
            let (begin, end, unit_strides) =
                (vec![0i64; other_axes.len()], vec![1i64; other_axes.len()], vec![1i64; other_axes.len()]);
            lane = self.op(
                "strided_slice",
                &[lane],
                attrs![begin: begin, end: end, strides: unit_strides, axes: other_axes.clone()],
            )?;
        }
        lane = self.op_without_attrs("zeros_like", &[lane])?;
        lane = self.cast(lane, DType::F32)?;
        if !other_axes.is_empty() {
            lane = self.op("sum", &[lane], attrs![axis: other_axes])?;
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

/// Returns the `newshape` codes that make Relay's `reshape` convert `dims` to `target_dims`; `None` if no codes express
/// the reshape. The flag is true if 0 denotes an empty dimension (`allowzero`) instead of a copied dimension.
fn reshape_codes(dims: &[Dim], target_dims: &[Dim]) -> Option<(Vec<i64>, bool)> {
    let index_codes = codes_by_index(dims, target_dims).map(|codes| (codes, target_dims.contains(&Dim::Fixed(0))));
    index_codes.or_else(|| codes_by_factors(dims, target_dims).map(|codes| (codes, false)))
}

/// Encodes a reshape with fixed dimensions, copies of the dimension at the same index (0), and at most one -1.
fn codes_by_index(dims: &[Dim], target_dims: &[Dim]) -> Option<Vec<i64>> {
    let mut has_remainder = false;
    let has_zero = target_dims.contains(&Dim::Fixed(0));
    target_dims
        .iter()
        .enumerate()
        .map(|(i, dim)| match dim {
            Dim::Fixed(n) => Some(*n as i64),
            dim if !has_zero && *dim != Dim::Any && dims.get(i) == Some(dim) => Some(0),
            _ => (!std::mem::replace(&mut has_remainder, true)).then_some(-1),
        })
        .collect()
}

/// Encodes a reshape with copied dimensions (0), merges of two dimensions (-3), and splits of one dimension (-4).
fn codes_by_factors(dims: &[Dim], target_dims: &[Dim]) -> Option<Vec<i64>> {
    let mut codes = Vec::new();
    let (mut i, mut j) = (0, 0);
    while j < target_dims.len() {
        let source_dim = dims.get(i)?;
        let product =
            |pair: &[Dim]| (pair.len() == 2).then(|| Dim::product(pair)).flatten().filter(|dim| *dim != Dim::Any);
        if *source_dim == target_dims[j] && *source_dim != Dim::Any {
            codes.push(0);
            (i, j) = (i + 1, j + 1);
        } else if product(dims.get(i..i + 2).unwrap_or_default()).as_ref() == Some(&target_dims[j]) {
            codes.push(-3);
            (i, j) = (i + 2, j + 1);
        } else if product(target_dims.get(j..j + 2).unwrap_or_default()).as_ref() == Some(source_dim) {
            let code = |dim: &Dim| dim.fixed().map_or(-1, |n| n as i64);
            let split_codes = [code(&target_dims[j]), code(&target_dims[j + 1])];
            if split_codes == [-1, -1] {
                return None;
            }
            codes.extend([-4, split_codes[0], split_codes[1]]);
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
        text.split_whitespace().map(|dim_text| parse_dim(dim_text).unwrap()).collect()
    }

    #[test]
    fn encodes_reshapes() {
        let cases = [
            ("b s 768", "b s 12 64", Some(vec![0, 0, 12, 64])),
            ("b s 12 64", "b s 768", Some(vec![0, 0, 768])),
            ("b s 64", "b*s 64", Some(vec![-1, 64])),
            ("b 12 s 64", "12*b s 64", Some(vec![-3, 0, 0])),
            ("12*b s s", "b 12 s s", Some(vec![-4, -1, 12, 0, 0])),
            ("b*s 64", "b s 64", None),
            ("b 49 3", "?", Some(vec![-1])),
            ("b 3 4", "b 0 4", Some(vec![-1, 0, 4])),
        ];
        for (source_dims, target_dims, expected) in cases {
            let found = reshape_codes(&dims(source_dims), &dims(target_dims)).map(|(codes, _)| codes);
            assert_eq!(found, expected, "{source_dims} to {target_dims}");
        }
    }
}
