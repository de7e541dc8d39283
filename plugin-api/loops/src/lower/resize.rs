//! `image.resize2d` and `nn.upsampling` with nearest or linear interpolation.

use super::Lowering;
use crate::nest::{Expr, Stmt, element};
use crate::operators::resize::Resize;
use byoc_plugin_api::DType;
use byoc_plugin_support::region::OpId;

impl Lowering<'_, '_> {
    /// Lowers a resize operator.
    pub fn resize(&mut self, group_index: usize, id: OpId, comment: Vec<String>) -> Result<(), String> {
        let ir = self.ir;
        let op = ir.get(id);
        let data = self.resolve(op.inputs[0])?;
        let dtype = ir.val(op.inputs[0]).dtype;
        let rank = data.view.shape.len();
        let is_channels_last = op.attrs().text("layout").ends_with('C');
        let (c, y, x) = if is_channels_last { (rank - 1, 1, 2) } else { (1, 2, 3) };
        let order = [0, y, x, c];
        let body = self.loop_body(group_index, Some(&order))?.permute(&order);
        let view = data.view.permute(&order);
        let (shape, out) = (ir.shape(op.inputs[0]).to_vec(), ir.shape(op.outputs[0]).to_vec());
        let resize = Resize::new(op)?;
        self.points("resize", &body, comment, |vars| {
            let mut stmts = Vec::new();
            for (k, d, name) in [(1, y, "y"), (2, x, "x")] {
                let size = shape[d];
                let [numerator, floor, next] = ["p", "n", "m"].map(|prefix| format!("{prefix}{name}"));
                let coordinate = resize.coordinate(vars[k].clone(), size, out[d]);
                stmts.push(Stmt::index(&numerator, coordinate.numerator.clone()));
                let at = Expr::from(&numerator);
                if resize.is_nearest {
                    stmts.push(Stmt::index(&floor, resize.nearest(at, coordinate.denominator)));
                } else {
                    let fraction = coordinate.fraction(at.clone(), Expr::from(&floor));
                    stmts.push(Stmt::index(&floor, coordinate.floor(at)));
                    stmts.push(Stmt::value(format!("d{name}"), DType::F32, fraction));
                    stmts.push(Stmt::index(&next, Expr::from(&floor) + 1));
                    stmts.push(Stmt::index(format!("{name}_high"), Expr::from(&next).clamp(size)));
                }
                stmts.push(Stmt::index(format!("{name}_low"), Expr::from(&floor).clamp(size)));
            }
            let load = |y: &str, x: &str| {
                let index = [vars[0].clone(), Expr::name(y), Expr::name(x), vars[3].clone()];
                Expr::load(data.place, dtype, element(&view, &index))
            };
            let one = Expr::Number(DType::F32, 1.0);
            let between = |low: Expr, high: Expr, distance: &str| {
                low * (one.clone() - Expr::name(distance)) + high * Expr::name(distance)
            };
            let value = |name: &str, value: Expr| Stmt::value(name, DType::F32, value);
            if resize.is_nearest {
                stmts.push(Stmt::value("acc", dtype, load("y_low", "x_low")));
            } else {
                stmts.push(value("above", between(load("y_low", "x_low"), load("y_low", "x_high"), "dx")));
                stmts.push(value("below", between(load("y_high", "x_low"), load("y_high", "x_high"), "dx")));
                stmts.push(value("acc", between(Expr::name("above"), Expr::name("below"), "dy")));
            }
            stmts
        });
        Ok(())
    }
}
