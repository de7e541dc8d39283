//! Kernels over the points of an index space: chains of elementwise operators, and copies.

use super::body::{Access, Body};
use super::{Grid, Lowering, Result, Storage};
use crate::fusion::is_float_group;
use crate::kernel::{KernelText, Point};
use crate::view_ops::{collapse, memory_order};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Maximum number of work-items per work-group.
const GROUP: i64 = 64;

/// Returns the smallest power of two >= `n`, capped at `limit`.
fn power_of_two(n: i64, limit: i64) -> i64 {
    (n.max(1) as u64).next_power_of_two().min(limit as u64) as i64
}

/// Returns an NDRange with `columns` work-items along the first dimension and `rows` along the second.
pub fn grid(columns: i64, rows: i64) -> Grid {
    let x = power_of_two(columns, GROUP);
    let y = power_of_two(rows, GROUP / x);
    Grid { local: [x as usize, y as usize, 1], items: [columns, rows, 1] }
}

impl KernelText {
    /// Appends declarations of the work-item's global IDs, and an early return for work-items past the active range.
    pub fn write_positions(&mut self, grid: &Grid) {
        let needs_guard = |d: usize| !(grid.items[d] as usize).is_multiple_of(grid.local[d]);
        self.line(1, "const int x = get_global_id(0);");
        if grid.items[1] > 1 {
            self.line(1, "const int m = get_global_id(1);");
        }
        let conditions = [(needs_guard(0), "x", 0), (needs_guard(1), "m", 1)];
        let conditions: Vec<String> = conditions
            .iter()
            .filter(|condition| condition.0)
            .map(|&(_, name, d)| format!("{name} >= {}", grid.items[d]))
            .collect();
        if !conditions.is_empty() {
            self.line(1, &format!("if ({})\n        return;", conditions.join(" || ")));
        }
    }

    /// Appends the declaration of a vector's first column, `c`. If `width` does not divide `columns`, also declares the
    /// number of valid columns, and returns its name.
    pub fn write_column(&mut self, columns: i64, width: i64) -> Option<String> {
        if width == 1 {
            self.line(1, "const int c = x;");
            return None;
        }
        self.line(1, &format!("const int c = x * {width};"));
        (columns % width != 0).then(|| {
            self.line(1, &format!("const int n = min({width}, {columns} - c);"));
            "n".to_owned()
        })
    }
}

impl Lowering<'_, '_> {
    /// Lowers a group without an anchor.
    pub fn lower_chain(&mut self, group_index: usize) -> Result<()> {
        let body = self.body(group_index, None)?;
        let is_float = is_float_group(self.ir, &self.grouping.groups[group_index]);
        let (name, comment) = self.group_names(group_index);
        self.map(body, is_float, "map", &name, &comment);
        Ok(())
    }

    /// Adds a copy of a tensor.
    pub fn copy(&mut self, source: &Storage, destination: &Storage, dtype: DType, name: &str) -> Result<()> {
        let access =
            |storage: &Storage| Access { name: "x0".into(), place: storage.place, view: storage.view.clone(), dtype };
        let domain = destination.view.shape.clone();
        let body = Body { domain, loads: vec![access(source)], lines: Vec::new(), stores: vec![access(destination)] };
        let comment = format!("layout conversion for {name}");
        self.map(body, dtype == DType::F32, "copy", "copy", &comment);
        Ok(())
    }

    /// Adds a kernel that executes a body at each point of its index space.
    pub fn map(&mut self, body: Body, is_float: bool, kind: &str, name: &str, comment: &str) {
        let Some(order) = body.stores.first().map(|store| memory_order(&store.view)) else { return };
        let body = body.permute(&order);
        let (domain, views) = collapse(&body.domain, &body.views());
        let mut body = Body { domain, ..body };
        for (access, view) in body.loads.iter_mut().chain(&mut body.stores).zip(views) {
            access.view = view;
        }
        let rank = body.domain.len();
        let columns = body.domain[rank - 1];
        let rows: i64 = body.domain[..rank - 1].iter().product();
        let gather_count = body.views().iter().filter(|view: &&&View| view.strides[rank - 1] > 1).count();
        let width = if is_float && gather_count == 0 { self.device.vector(columns) } else { 1 };
        let grid = grid((columns + width - 1) / width, rows);
        let mut text = KernelText::default();
        text.write_positions(&grid);
        let valid_columns = text.write_column(columns, width);
        let indices: Vec<String> = (0..rank - 1).map(|d| format!("i{d}")).collect();
        text.decode(1, &indices, &body.domain[..rank - 1], "m");
        body.emit(self.ir, &mut text, &Point { indices, column: "c".into(), valid: valid_columns, width }, 1);
        self.add_launch(kind, text, grid, name, comment);
    }
}
