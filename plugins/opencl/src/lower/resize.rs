//! Resize of images with nearest-neighbor or linear interpolation, vectorized over channels.

use super::map::grid;
use super::{Lowering, Result};
use crate::expression::vector;
use crate::kernel::{KernelText, Point};
use byoc_plugin_api::{DType, RefusalCode};
use byoc_plugin_support::refusal::refuse;
use byoc_plugin_support::region::Op;
use byoc_plugin_support::resize::Resize;

impl Lowering<'_, '_> {
    /// Lowers `image.resize2d` and `nn.upsampling`.
    pub fn resize(&mut self, group_index: usize, op: &Op<'_>) -> Result<()> {
        let resize = match Resize::new(op) {
            Ok(resize) => resize,
            Err(detail) => return refuse(RefusalCode::UnsupportedAttr, format!("{}: {detail}", op.name)),
        };
        let data = self.resolve(op.inputs[0])?;
        let order = if op.attrs().text("layout").ends_with('C') { [0, 1, 2, 3] } else { [0, 2, 3, 1] };
        let body = self.body(group_index, Some(&order))?.permute(&order);
        let view = data.view.permute(&order);
        let (channels, rows) = (body.domain[3], body.domain[..3].iter().product());
        let width = if view.strides[3] == 1 { self.device.vector(channels) } else { 1 };
        let grid = grid((channels + width - 1) / width, rows);
        let mut text = KernelText::default();
        text.write_positions(&grid);
        let valid_columns = text.write_column(channels, width);
        let indices: Vec<String> = (0..3).map(|d| format!("i{d}")).collect();
        text.decode(1, &indices, &body.domain[..3], "m");
        for (d, name) in [(1, "y"), (2, "x")] {
            // `decode` declares no index along a dimension of size 1.
            let index = if body.domain[d] == 1 { "0" } else { &indices[d] };
            let last = view.shape[d] - 1;
            let coordinate = resize.coordinate(index, last + 1, body.domain[d]);
            // Terms of the expressions are at most 4 times the product of the sizes.
            let ty = if (last + 1) * body.domain[d] < i64::from(i32::MAX) / 8 { "int" } else { "long" };
            let (numerator, low) = (format!("p{name}"), format!("n{name}"));
            text.line(1, &format!("const {ty} {numerator} = {};", coordinate.numerator));
            if resize.is_nearest {
                let nearest = resize.nearest(&numerator, coordinate.denominator);
                text.line(1, &format!("const int {name}0 = clamp((int)({nearest}), 0, {last});"));
            } else {
                text.line(1, &format!("const {ty} {low} = {};", coordinate.floor(&numerator)));
                text.line(1, &format!("const float d{name} = {};", coordinate.fraction(&numerator, &low)));
                text.line(1, &format!("const int {name}0 = clamp((int){low}, 0, {last});"));
                text.line(1, &format!("const int {name}1 = clamp((int){low} + 1, 0, {last});"));
            }
        }
        let (ty, pointer) = (vector(width), text.pointer(data.place, DType::F32, false));
        let load = |y: &str, x: &str| {
            let index = vec![indices[0].clone(), y.to_owned(), x.to_owned()];
            Point { indices: index, column: "c".into(), valid: valid_columns.clone(), width }.load(&pointer, &view)
        };
        if resize.is_nearest {
            text.line(1, &format!("const {ty} acc = {};", load("y0", "x0")));
        } else {
            for (name, y) in [("above", "y0"), ("below", "y1")] {
                let (left, right) = (load(y, "x0"), load(y, "x1"));
                text.line(1, &format!("const {ty} {name} = {left} * (1.0f - dx) + {right} * dx;"));
            }
            text.line(1, &format!("const {ty} acc = above * (1.0f - dy) + below * dy;"));
        }
        body.emit(self.ir, &mut text, &Point { indices, column: "c".into(), valid: valid_columns, width }, 1);
        let (name, comment) = self.group_names(group_index);
        self.add_launch("resize", text, grid, &name, &comment);
        Ok(())
    }
}
