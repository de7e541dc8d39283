//! Common form of convolutions and matrix products: a sum of products over taps and channels.
//!
//! `out[g, r, c] = Σ_t Σ_k a[g, r, t, k] * b[g, t, k, c]`. Rows `r` are pixels or rows of a matrix; columns `c` are
//! output channels, over which the code is vectorized. `a` is read in place, with each element broadcast to all lanes;
//! `b` is packed into panels as wide as a tile, ahead of the runs if it is constant and otherwise in a preceding phase. A
//! tile of rows and columns is accumulated in registers, and then passed through the elementwise operators of the group.
//! The forms differ in how a tile is computed: tasks of a region here, programs in `direct`, devices in `registers` and
//! `shared`.

use super::panels::Operand;
use super::tile::{VectorTile, product};
use super::{Lowering, Phase};
use crate::form::Form;
use crate::nest::transform::{decode, divided, nest};
use crate::nest::{Expr, Loop, Place, Reduce, Stmt, element, indices, product_indices};
use crate::packing::Packing;
use crate::schedule::LANES;
use crate::schedule::contraction::{Contraction, Schedule, Tasks};
use byoc_plugin_api::DType;
use byoc_plugin_support::view::count;

impl Contraction {
    /// Returns the second operand, in panels of `width` columns; the groups that have a matrix of their own are outside of
    /// the panels.
    pub fn operand(&self, padded: i64, width: i64) -> Operand {
        let own_groups = (0..self.parts[0]).filter(|&d| self.b_groups[d] != 0);
        let packing = Packing {
            offset: self.b_offset,
            outer: own_groups.map(|d| (self.body.domain[d], self.b_groups[d])).collect(),
            columns: (self.columns(), self.b_column),
            padded,
            width,
            inner: self.taps.iter().map(|tap| (tap.0, tap.2)).chain([(self.k.0, self.k.2)]).collect(),
        };
        Operand { place: self.b, dtype: self.types.b, packing, width: None }
    }

    /// Returns the nest that the tiles compute: for each row and column, a sum over taps and channels.
    pub fn nest(&self) -> Vec<Stmt> {
        let [groups, rows] = self.parts;
        let vars = product_indices(groups, rows);
        let index = indices(&vars);
        let mut a = element(&self.a_view, &index);
        let own_matrix = (0..groups).fold(Expr::Index(0), |sum, d| sum + index[d].clone() * self.b_groups[d]);
        let mut b = own_matrix + self.b_offset + Expr::name("c") * self.b_column;
        let mut loops = Vec::new();
        let mut inside: Option<Expr> = None;
        for (t, &(count, a_stride, b_stride)) in self.taps.iter().enumerate() {
            let tap = Expr::name(format!("t{t}"));
            a = a + tap.clone() * a_stride;
            b = b + tap.clone() * b_stride;
            loops.push(Loop::new(&format!("t{t}"), count, Vec::new()));
            if let Some(guard) = self.guards.get(t).copied().flatten() {
                let position = index[groups + guard.row].clone() * guard.scale + guard.base + tap * guard.step;
                let holds = position.clone().ge(0).and(position.lt(guard.size));
                inside = Some(inside.take().map_or(holds.clone(), |others| others.and(holds)));
            }
        }
        loops.push(Loop::new("k", self.k.0, Vec::new()));
        let k = Expr::name("k");
        let a = Expr::load(self.a, self.types.a, a + k.clone() * self.k.1);
        let b = Expr::load(self.b, self.types.b, b + k * self.k.2);
        let zero = Expr::number(self.types.sum, 0.0);
        let product = product(self.types, self.a_zero, a, b);
        let term = match inside {
            Some(inside) => inside.select(product, zero.clone()),
            None => product,
        };
        let name = "acc".to_owned();
        let value = Expr::from(&name) + term;
        let mut stmts = vec![Reduce { name, dtype: self.types.sum, start: zero, loops, value }.into()];
        stmts.extend(self.body.statements(&index));
        nest(&vars, &self.body.domain, stmts)
    }
}

impl Lowering<'_, '_> {
    /// Adds the phases of a contraction.
    pub fn contraction(&mut self, c: Contraction, comment: Vec<String>) -> Result<(), String> {
        match self.form {
            Form::Tasks => self.tiled_contraction(&c, comment),
            Form::Program(machine, _) => self.direct_contraction(&c, machine, comment),
            Form::Device(device) if device.local_memory => self.shared_contraction(&c, comment),
            Form::Device(device) => self.register_contraction(&c, device.width, comment),
        }
    }

    /// Adds the phases of a contraction in a region.
    fn tiled_contraction(&mut self, c: &Contraction, comment: Vec<String>) -> Result<(), String> {
        if c.taps.len() > 2 {
            return Err(format!("expected at most 2 kernel axes, found {}", c.taps.len()));
        }
        let schedule = Schedule::new(c)?;
        let Schedule { merged, padded, wide, narrow, tasks, .. } = &schedule;
        let operand = c.operand(*padded, *padded);
        let name = self.phase_after_packing(&operand);
        let b = self.panels(&Operand { width: Some(format!("{name}_nr")), ..operand })?;
        let vars = merged.vars();
        let tile = VectorTile::new(name, ["mr", "rows", "columns", "panel"], &merged.body, &vars);
        let pick = |wide: i64, narrow: i64| Expr::Call("BYOC_PICK", vec![wide.into(), narrow.into()]);
        let rows = pick(wide.0, narrow.0);
        let columns = pick(wide.1, narrow.1) * Expr::name("BYOC_VL");
        let main = Tiled { c, schedule: &schedule, tile: &tile, b }.main();
        self.push_functions(Phase {
            nest: c.nest(),
            tasks: tasks.groups * tasks.rows * tasks.columns,
            functions: tile.functions([rows, columns], *padded, main),
            ..Phase::of("product", comment, &[c.a, b], &merged.body)
        });
        Ok(())
    }

    /// Returns the name of the phase that follows the one that packs `b`, if there is one.
    pub fn phase_after_packing(&self, b: &Operand) -> String {
        format!("{}_phase{}", self.symbol, self.phases.len() + usize::from(b.is_packed_at_run()))
    }
}

/// Contraction in a region: the loops of a task.
struct Tiled<'s> {
    c: &'s Contraction,
    schedule: &'s Schedule,
    tile: &'s VectorTile<'s>,
    /// Memory of the panels.
    b: Place,
}

impl Tiled<'_> {
    /// Returns the statements for the tile with the number `tile`, in a panel.
    fn in_tile(&self) -> Vec<Stmt> {
        let (Schedule { merged, sums, .. }, tile, columns) = (self.schedule, self.tile, self.c.columns());
        let (last_row, nr) = (merged.last_row(), || tile.columns.clone());
        let mut index = indices(tile.vars);
        index[last_row] = Expr::name("row");
        let outer_row = match count(merged.outer_row_dims()) {
            1 => Expr::Index(0),
            _ => Expr::name("tile") / Expr::name("tiles_in_row"),
        };
        let at_row = Expr::name("tile") % Expr::name("tiles_in_row") * tile.rows.clone();
        let mut stmts = vec![Stmt::index("row", at_row)];
        stmts.extend(decode(&tile.vars[merged.groups..last_row], merged.outer_row_dims(), &outer_row));
        let a = Expr::address(self.c.a, DType::F32, element(&merged.a_view, &index));
        stmts.extend([Stmt::pointer("a", DType::F32, a), tile.whole()]);
        stmts.extend(tile.calls("byoc_tile", |rows, width| {
            let row_stride = merged.a_view.strides[last_row];
            let mut arguments = vec![rows.clone(), width.clone() / Expr::name("BYOC_VL"), nr(), row_stride.into()];
            arguments.extend(sums.iter().flat_map(|&(n, stride)| [Expr::Index(n), Expr::Index(stride)]));
            // Because of the padding to `LANES`, even a full panel may hold fewer columns than its width.
            let real_columns = match columns % LANES {
                _ if *width == tile.tail => Expr::Index(columns) - (Expr::name("panels") - 1) * nr(),
                0 => nr(),
                _ => (Expr::Index(columns) - Expr::name("column")).min(nr()),
            };
            (arguments, real_columns)
        }));
        stmts
    }

    /// Returns the statements of a task.
    fn main(&self) -> Vec<Stmt> {
        let Schedule { merged, padded, tasks: Tasks { groups, rows, columns }, .. } = self.schedule;
        let (depth, nr, mr) = (self.c.depth(), || self.tile.columns.clone(), || self.tile.rows.clone());
        let name = |name: &str| Expr::name(name);
        let group = element(&merged.b_view, &indices(self.tile.vars)) * (depth * padded);
        let b = Expr::address(self.b, DType::F32, group + name("column") * depth);
        let in_panel = vec![
            Stmt::index("column", name("panel") * nr()),
            Stmt::pointer("b", DType::F32, b),
            Stmt::index("full", self.tile.tail.clone().equal(0).or((name("panel") + 1).lt("panels"))),
            divided("tile", "tiles", "m", *rows, self.in_tile()),
        ];
        let mut in_group = decode(&self.tile.vars[..merged.groups], merged.group_dims(), &name("g"));
        in_group.push(divided("panel", "panels", "n", *columns, in_panel));
        let group_task = if *groups == 1 { Expr::Index(0) } else { name("task") / (columns * rows) };
        vec![
            Stmt::index("tiles_in_row", (Expr::Index(merged.row_len()) + mr() - 1) / mr()),
            Stmt::index("tiles", name("tiles_in_row") * count(merged.outer_row_dims())),
            Stmt::index("panels", (Expr::Index(*padded) + nr() - 1) / nr()),
            Stmt::index("m", name("task") / *columns % *rows),
            Stmt::index("n", name("task") % *columns),
            Stmt::index("group", group_task),
            Stmt::array("t", DType::F32, mr() * nr()),
            divided("g", count(merged.group_dims()), "group", *groups, in_group),
        ]
    }
}
