//! Common form of convolutions and matrix products: a sum of products over taps and channels.
//!
//! `out[g, r, c] = Σ_t Σ_k a[g, r, t, k] * b[g, t, k, c]`. Rows `r` are pixels or rows of a matrix; columns `c` are
//! output channels, over which the code is vectorized. `a` is read in place, with each element broadcast to all lanes;
//! `b` is packed into panels as wide as a tile, ahead of the runs if it is constant and otherwise in a preceding phase. A
//! tile of rows and columns is accumulated in registers, and then passed through the elementwise operators of the group.
//! The forms differ in how a tile is computed: tasks of a region here, programs in `direct`, devices in `registers` and
//! `shared`.

use super::panels::{Operand, Width};
use super::tile::{Tile, dispatch, product};
use super::{Lowering, Phase};
use crate::form::Form;
use crate::nest::Step;
use crate::nest::transform::{decode, nest, share};
use crate::nest::{Expr, Function, Loop, Memory, Parameter, Place, Reduce, Stmt, element, indices, numbered};
use crate::packing::Packing;
use crate::schedule::contraction::{Contraction, Schedule, Tasks};
use crate::schedule::{LANES, round_up};
use byoc_plugin_api::DType;

impl Contraction {
    /// Returns the second operand, with the groups that have a matrix of their own outside of the panels.
    pub fn operand(&self, padded: i64) -> Operand {
        let own_groups = (0..self.parts[0]).filter(|&d| self.b_groups[d] != 0);
        let packing = Packing {
            offset: self.b_offset,
            outer: own_groups.map(|d| (self.body.domain[d], self.b_groups[d])).collect(),
            columns: (self.columns(), self.b_column),
            padded,
            width: padded.max(1),
            inner: self.taps.iter().map(|tap| (tap.0, tap.2)).chain([(self.k.0, self.k.2)]).collect(),
        };
        Operand { place: self.b, dtype: self.types.b, packing }
    }

    /// Returns the nest that the tiles compute: for each row and column, a sum over taps and channels.
    pub fn nest(&self) -> Vec<Stmt> {
        let [groups, rows] = self.parts;
        let mut vars = numbered("g", groups);
        vars.extend(numbered("r", rows));
        vars.push("c".into());
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
        let load = |place: Place, dtype: DType, at: Expr| Expr::load(place, dtype, at);
        let k = Expr::name("k");
        let a = load(self.a, self.types.a, a + k.clone() * self.k.1);
        let b = load(self.b, self.types.b, b + k * self.k.2);
        let zero = match self.types.sum {
            DType::F32 => Expr::Number(DType::F32, 0.0),
            sum => Expr::Integer(sum, 0),
        };
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

    /// Returns the number of terms of each sum.
    pub fn depth(&self) -> i64 {
        self.taps.iter().map(|tap| tap.0).product::<i64>() * self.k.0
    }
}

impl Lowering<'_, '_> {
    /// Adds the phases of a contraction.
    pub fn contraction(&mut self, c: Contraction, comment: Vec<String>) -> Result<(), String> {
        match self.form {
            Form::Tasks => self.tiled_contraction(&c, comment),
            Form::Program(..) => self.direct_contraction(&c, comment),
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
        let Schedule { body, a_view, groups, rows, columns, depth, tile, .. } = &schedule;
        let (groups, rows, columns, depth) = (*groups, *rows, *columns, *depth);
        let row_dims = &body.domain[groups..groups + rows];
        let len = row_dims[rows - 1];
        let outer_rows: i64 = row_dims[..rows - 1].iter().product();
        let group_count: i64 = body.domain[..groups].iter().product();
        let Tasks { groups: group_tasks, rows: row_tasks, columns: column_tasks } = schedule.tasks;
        let padded_columns = round_up(columns, LANES);
        let operand = c.operand(padded_columns);
        let name = self.phase_after_packing(&operand);
        let [mr, nr, tail, row_tail] =
            ["mr", "nr", "tail", "row_tail"].map(|suffix| Expr::name(format!("{name}_{suffix}")));
        let width = Width::Name(format!("{name}_nr"));
        let b = self.panels(&operand, &width)?;

        let mut vars = numbered("g", groups);
        vars.extend(numbered("r", rows));
        vars.push("c".into());
        let outer_vars = &vars[..groups + rows - 1];
        let pick = |wide: i64, narrow: i64| Expr::Call("BYOC_PICK", vec![wide.into(), narrow.into()]);
        let vector = || Expr::name("BYOC_VL");
        let constant =
            |suffix: &str, value: Expr, comment: &str| (format!("{name}_{suffix}"), value, comment.to_owned());
        let constants = vec![
            constant("mr", pick(tile.wide.0, tile.narrow.0), "rows of a tile"),
            constant("nr", pick(tile.wide.1, tile.narrow.1) * vector(), "columns of a tile"),
            constant("tail", Expr::Index(padded_columns) % nr.clone(), "columns of the last panel, 0 if it is full"),
            constant("row_tail", Expr::Index(len) % mr.clone(), "rows of the last tile of a row, 0 if it is full"),
        ];
        // Applies the group's elementwise operators to a tile of accumulators.
        let index = |name: &str| Parameter::Index(name.to_owned());
        let mut parameters = vec![Parameter::Floats("t".into())];
        parameters.extend(outer_vars.iter().map(|var| index(var)));
        parameters.extend(["row", "rows", "column", "columns"].map(index));
        let (rows_of_tile, columns_of_tile) = (Expr::name("rows"), Expr::name("columns"));
        let finished = Tile {
            body,
            vars: &vars,
            stride: nr.clone(),
            rows: rows_of_tile,
            columns: columns_of_tile,
            sum: DType::F32,
        };
        let finish_name = format!("{name}_finish");
        let finish = Function {
            name: finish_name.clone(),
            parameters: Some(parameters),
            constants: Vec::new(),
            body: vec![finished.finish()],
        };

        let tiles_in_row = (Expr::Index(len) + mr.clone() - 1) / mr.clone();
        let at_row = Expr::name("tile") % Expr::name("tiles_in_row") * mr.clone();
        let mut tile_index = indices(&vars);
        tile_index[groups + rows - 1] = Expr::name("row");
        let group_index = element(&schedule.b_index, &indices(&vars)) * schedule.packed_size;
        let is_full = Expr::name("full").not_equal(0);
        let is_whole = Expr::name("whole").not_equal(0);
        // Because of the padding to `LANES`, even a full panel may hold fewer columns than its width.
        let panel_width = match columns % LANES {
            0 => nr.clone(),
            _ => (Expr::Index(columns) - Expr::name("column")).min(nr.clone()),
        };
        let last_width = Expr::Index(columns) - (Expr::name("panels") - 1) * nr.clone();
        let case = |condition: Option<Expr>, rows: &Expr, width: &Expr, columns: &Expr| {
            let row_stride = a_view.strides[groups + schedule.rows - 1];
            let mut arguments = vec![rows.clone(), width.clone() / vector(), nr.clone(), row_stride.into()];
            arguments.extend(schedule.sums.iter().flat_map(|&(n, stride)| [Expr::Index(n), Expr::Index(stride)]));
            arguments.extend(["a", "b", "t"].map(Expr::from));
            let mut finish_arguments = vec![Expr::name("args"), Expr::name("t")];
            finish_arguments.extend(indices(outer_vars));
            finish_arguments.extend([Expr::name("row"), rows.clone(), Expr::name("column"), columns.clone()]);
            let calls =
                vec![Stmt::Call("byoc_tile".into(), arguments), Stmt::Call(finish_name.clone(), finish_arguments)];
            (condition, calls)
        };
        let mut in_tile = vec![Stmt::index("row", at_row)];
        in_tile.extend(decode(
            &vars[groups..groups + rows - 1],
            &row_dims[..rows - 1],
            &if outer_rows == 1 { Expr::Index(0) } else { Expr::name("tile") / Expr::name("tiles_in_row") },
        ));
        let address = |place: Place, index: Expr| Expr::address(Memory::Place(place), DType::F32, index);
        in_tile.extend([
            Stmt::Pointer { name: "a".into(), dtype: DType::F32, value: address(c.a, element(a_view, &tile_index)) },
            Stmt::index("whole", row_tail.clone().equal(0).or((Expr::name("row") + mr.clone()).le(len))),
        ]);
        in_tile.extend(dispatch(vec![
            case(Some(is_full.clone().and(is_whole.clone())), &mr, &nr, &panel_width),
            case(Some(is_full), &row_tail, &nr, &panel_width),
            case(Some(is_whole), &mr, &tail, &last_width),
            case(None, &row_tail, &tail, &last_width),
        ]));
        let [tile_from, tile_to] = share("tiles", &Expr::name("m"), row_tasks);
        let in_panel = vec![
            Stmt::index("column", Expr::name("panel") * nr.clone()),
            Stmt::Pointer {
                name: "b".into(),
                dtype: DType::F32,
                value: address(b, group_index + Expr::name("column") * depth),
            },
            Stmt::index("full", tail.equal(0).or((Expr::name("panel") + 1).lt("panels"))),
            Loop::new("tile", tile_to, in_tile).starting(tile_from).into(),
        ];
        let [panel_from, panel_to] = share("panels", &Expr::name("n"), column_tasks);
        let mut in_group = decode(&vars[..groups], &body.domain[..groups], &Expr::name("g"));
        in_group.push(Loop::new("panel", panel_to, in_panel).starting(panel_from).into());
        let task = || Expr::name("task");
        let [group_from, group_to] = share(group_count, &Expr::name("group"), group_tasks);
        let main = vec![
            Stmt::index("tiles_in_row", tiles_in_row),
            Stmt::index("tiles", Expr::name("tiles_in_row") * outer_rows),
            Stmt::index("panels", (Expr::Index(padded_columns) + nr.clone() - 1) / nr.clone()),
            Stmt::index("m", task() / column_tasks % row_tasks),
            Stmt::index("n", task() % column_tasks),
            Stmt::index("group", if group_tasks == 1 { Expr::Index(0) } else { task() / (column_tasks * row_tasks) }),
            Stmt::array("t", DType::F32, mr * nr),
            Loop::new("g", group_to, in_group).starting(group_from).into(),
        ];
        let mut phase = Phase::new("product", comment);
        phase.nest = c.nest();
        phase.tasks = group_tasks * row_tasks * column_tasks;
        let sizes = vec![(tile.wide.0, tile.wide.1 * 16), (tile.narrow.0, tile.narrow.1 * 8)];
        phase.schedule = vec![
            Step::Pack { operand: c.b, ahead: matches!(b, Place::Packed(_)) },
            Step::Parallel { var: "group, panel, tile".into(), tasks: phase.tasks },
            Step::Tile { sizes },
        ];
        phase.functions = vec![finish, Function { name, parameters: None, constants, body: main }];
        phase.touch(c.a);
        phase.touch(b);
        phase.touch_all(body);
        self.push_functions(phase);
        Ok(())
    }

    /// Returns the name of the phase that follows the one that packs `b`, if there is one.
    pub fn phase_after_packing(&self, b: &Operand) -> String {
        format!("{}_phase{}", self.symbol, self.phases.len() + usize::from(b.is_packed_at_run()))
    }
}
