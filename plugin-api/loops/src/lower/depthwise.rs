//! Depthwise convolutions in tiles of pixels and channels: the code is vectorized over channels.
//!
//! In a region, the data has a zero border, so every tap reads an element; in a program, taps in the padding are skipped,
//! and the channels that fill no vector are windows.

use super::direct::Sums;
use super::panels::Width;
use super::tile::{Tile, dispatch, dispatch_last};
use super::window::Range;
use super::{Lowering, Phase};
use crate::form::Form;
use crate::nest::Step;
use crate::nest::body::Storage;
use crate::nest::transform::{decode, nest, share};
use crate::nest::{Expr, Function, Loop, Parameter, Place, Stmt, element, indices, numbered};
use crate::schedule::contraction::Contraction;
use crate::schedule::window::Depthwise;
use crate::types::Types;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Returns the arguments that describe the two tap axes of a tile: number of taps, stride in the data, stride in the
/// weights.
fn tap_arguments(counts: [Expr; 2], levels: &[(i64, i64); 3], channels: i64) -> Vec<Expr> {
    let [count0, count1] = counts;
    let row = levels[1].0 * channels;
    vec![count0, levels[0].1.into(), row.into(), count1, levels[1].1.into(), channels.into()]
}

impl Lowering<'_, '_> {
    /// Adds a depthwise convolution of a region. The index space is `[n, pixels.., channel]`.
    pub fn depthwise(&mut self, c: &Contraction, comment: Vec<String>) -> Result<(), String> {
        let Sums { levels, .. } = Sums::new(c)?;
        let body = &c.body;
        let rank = body.domain.len();
        let Depthwise { channels, padded, len, rows, pixels, tasks } =
            Depthwise::new(&body.domain, levels[0].0 * levels[1].0);
        let operand = c.operand(padded);
        let name = self.phase_after_packing(&operand);
        let weights = self.panels(&operand, &Width::Columns(padded))?;
        let mut vars = numbered("r", rank - 1);
        vars.push("c".into());
        let outer_vars = &vars[..rank - 2];
        let [tile_pixels, nr, tail, row_tail] =
            ["pixels", "nr", "tail", "row_tail"].map(|suffix| Expr::name(format!("{name}_{suffix}")));
        let constant =
            |suffix: &str, value: Expr, comment: &str| (format!("{name}_{suffix}"), value, comment.to_owned());
        let pick = Expr::Call("BYOC_PICK", vec![pixels.into(), pixels.min(5).into()]);
        let constants = vec![
            constant("pixels", pick, "pixels of a tile"),
            constant("nr", Expr::name("BYOC_VL") * 2, "channels of a tile"),
            constant("tail", Expr::Index(padded) % nr.clone(), "channels of the last tile, 0 if it is full"),
            constant(
                "row_tail",
                Expr::Index(len) % tile_pixels.clone(),
                "pixels of the last tile of a row, 0 if it is full",
            ),
        ];
        let index = |name: &str| Parameter::Index(name.to_owned());
        let mut parameters = vec![Parameter::Floats("t".into())];
        parameters.extend(outer_vars.iter().map(|var| index(var)));
        parameters.extend(["row", "rows", "column", "columns", "width"].map(index));
        let tile = Tile {
            body,
            vars: &vars,
            stride: Expr::name("width"),
            rows: Expr::name("rows"),
            columns: Expr::name("columns"),
            sum: DType::F32,
        };
        let finish_name = format!("{name}_finish");
        let finish = Function {
            name: finish_name.clone(),
            parameters: Some(parameters),
            constants: Vec::new(),
            body: vec![tile.finish()],
        };

        let mut tile_index = indices(&vars);
        (tile_index[rank - 2], tile_index[rank - 1]) = (Expr::name("row"), Expr::name("column"));
        let (is_full, is_whole) = (Expr::name("full").not_equal(0), Expr::name("whole").not_equal(0));
        let case = |condition: Option<Expr>, rows: &Expr, width: &Expr| {
            let columns = match channels % 16 {
                0 => width.clone(),
                _ => (Expr::Index(channels) - Expr::name("column")).min(width.clone()),
            };
            let mut arguments = vec![rows.clone(), width.clone(), c.a_view.strides[rank - 2].into()];
            arguments.extend(tap_arguments([levels[0].0.into(), levels[1].0.into()], &levels, padded));
            arguments.extend(["a", "b", "t"].map(Expr::from));
            let mut finish_arguments = vec![Expr::name("args"), Expr::name("t")];
            finish_arguments.extend(indices(outer_vars));
            finish_arguments.extend([Expr::name("row"), rows.clone(), Expr::name("column"), columns, width.clone()]);
            let tile = Stmt::Call("byoc_vector_depthwise".into(), arguments);
            (condition, vec![tile, Stmt::Call(finish_name.clone(), finish_arguments)])
        };
        let pointer = |name: &str, place: Place, index: Expr| Stmt::Pointer {
            name: name.to_owned(),
            dtype: DType::F32,
            value: Expr::address(place, DType::F32, index),
        };
        let mut in_tile = vec![
            pointer("a", c.a, element(&c.a_view, &tile_index)),
            Stmt::index("whole", row_tail.clone().equal(0).or((Expr::name("row") + tile_pixels.clone()).le(len))),
        ];
        in_tile.extend(dispatch(vec![
            case(Some(is_full.clone().and(is_whole.clone())), &tile_pixels, &nr),
            case(Some(is_full), &row_tail, &nr),
            case(Some(is_whole), &tile_pixels, &tail),
            case(None, &row_tail, &tail),
        ]));
        let in_column = vec![
            pointer("b", weights, Expr::name("column")),
            Stmt::index("full", tail.equal(0).or((Expr::name("column") + nr.clone()).le(padded))),
            Loop::new("row", len, in_tile).by(tile_pixels.clone()).into(),
        ];
        let mut in_row = decode(outer_vars, &body.domain[..rank - 2], &Expr::name("r"));
        in_row.push(Loop::new("column", padded, in_column).by(nr.clone()).into());
        let [from, to] = share(rows, &Expr::name("task"), tasks);
        let main =
            vec![Stmt::array("t", DType::F32, tile_pixels * nr), Loop::new("r", to, in_row).starting(from).into()];
        let mut phase = Phase { tasks, ..Phase::new("depthwise", comment) };
        phase.schedule = vec![
            Step::Pack { operand: c.b, ahead: matches!(weights, Place::Packed(_)) },
            Step::Parallel { var: "r".into(), tasks },
            Step::Tile { sizes: vec![(pixels, 32), (pixels.min(5), 16)] },
        ];
        phase.functions = vec![finish, Function { name, parameters: None, constants, body: main }];
        phase.touch(c.a);
        phase.touch(weights);
        phase.touch_all(body);
        self.push_functions(phase);
        Ok(())
    }

    /// Adds a depthwise convolution of a program. The last stride of `a_view` is the channel stride, and `data` is the
    /// data with its dimensions in the order of the index space.
    pub fn direct_depthwise(
        &mut self,
        c: &Contraction,
        data: Storage,
        ranges: Vec<Range>,
        comment: Vec<String>,
    ) -> Result<(), String> {
        let channels = c.columns();
        let weights = self.panels(&c.operand(channels), &Width::Columns(channels))?;
        let vector_channels = self.vector_channels(c);
        if vector_channels > 0 {
            self.vector_depthwise(c, weights, vector_channels, comment.clone())?;
        }
        let rest = channels - vector_channels;
        if rest == 0 {
            return Ok(());
        }
        let last = c.body.domain.len() - 1;
        let body = c.body.slice(last, vector_channels, 1, rest);
        let data = Storage { view: data.view.slice(last, vector_channels, 1, rest), ..data };
        let mut shape: Vec<i64> = c.taps.iter().map(|tap| tap.0).collect();
        shape.push(channels);
        let view = View::dense(&shape).slice(shape.len() - 1, vector_channels, 1, rest);
        self.weighted_windows(body, (data, c.types, c.a_zero), ranges, (weights, view), comment)
    }

    /// Returns the number of channels that a depthwise convolution computes in full vectors.
    fn vector_channels(&self, c: &Contraction) -> i64 {
        let channels = c.columns();
        let is_contiguous = c.a_view.strides.last() == Some(&1) && c.types == Types::FLOAT;
        match self.form {
            Form::Program(machine, _) if machine.vectors && is_contiguous => channels / machine.lanes * machine.lanes,
            _ => 0,
        }
    }

    /// Adds the loops over the channels that are computed in full vectors, in tiles of pixels.
    fn vector_depthwise(
        &mut self,
        c: &Contraction,
        weights: Place,
        vector_channels: i64,
        comment: Vec<String>,
    ) -> Result<(), String> {
        let machine = self.machine().ok_or("depthwise convolution: expected a program, found a region")?;
        let sums = Sums::new(c)?;
        let body = &c.body;
        let rank = body.domain.len();
        let (channels, len) = (body.domain[rank - 1], body.domain[rank - 2]);
        let (low, high) = sums.inside(rank - 2, len);
        let max_pixels = if machine.registers >= 32 { 8 } else { 5 };
        let pixels = Depthwise::new(&[1, 1, (high - low).max(1), machine.lanes], 1).pixels.min(max_pixels);
        let mut vars = numbered("r", rank - 1);
        vars.push("c".into());
        let vector_width = 2 * machine.lanes;
        let even = vector_channels / vector_width * vector_width;
        let mut stmts = vec![Stmt::array("t", DType::F32, pixels * vector_width.min(vector_channels))];
        for (start, end, n) in [(0, even, vector_width), (even, vector_channels, machine.lanes)] {
            if start == end {
                continue;
            }
            let mut index = indices(&vars);
            (index[rank - 2], index[rank - 1]) = (Expr::name("row"), Expr::name("column"));
            let a = element(&c.a_view, &index);
            let counts = [sums.count(0), sums.count(1)];
            let b = Expr::name("column") + sums.skipped(0, levels_step(&sums, 0, channels)) + sums.skipped(1, channels);
            let a = a + sums.skipped(0, sums.levels[0].1) + sums.skipped(1, sums.levels[1].1);
            let cases = sums.row_counts(pixels, (low, high), len).into_iter().map(|rows| {
                let mut arguments = vec![Expr::Index(rows), n.into(), c.a_view.strides[rank - 2].into()];
                arguments.extend(tap_arguments(counts.clone(), &sums.levels, channels));
                arguments.push(Expr::address(c.a, DType::F32, a.clone()));
                arguments.push(Expr::address(weights, DType::F32, b.clone()));
                arguments.push(Expr::name("t"));
                (Expr::name("rows").equal(rows), vec![Stmt::Call("byoc_vector_depthwise".into(), arguments)])
            });
            let mut in_tile = sums.bounds_of(rank - 2, "row");
            in_tile.extend(dispatch_last(cases.collect()));
            let tile = Tile {
                body,
                vars: &vars,
                stride: Expr::Index(n),
                rows: Expr::name("rows"),
                columns: Expr::Index(n),
                sum: DType::F32,
            };
            in_tile.push(tile.finish());
            let rows = sums.row_tiles(pixels, (low, high), len, in_tile);
            let columns: Stmt = Loop::new("column", end, rows).starting(start).by(n).into();
            let mut inner = sums.bounds_before(rank - 2, &vars);
            inner.push(columns);
            stmts.extend(nest(&vars[..rank - 2], &body.domain[..rank - 2], inner));
        }
        let mut phase = Phase::new("depthwise", comment);
        phase.schedule = vec![Step::Tile { sizes: vec![(pixels, vector_width)] }];
        phase.touch(c.a);
        phase.touch_all(body);
        self.push(phase, stmts);
        Ok(())
    }
}

/// Returns the stride of a tap axis in the packed weights.
fn levels_step(sums: &Sums, axis: usize, channels: i64) -> i64 {
    if axis == 0 { sums.levels[1].0 * channels } else { channels }
}
