//! Depthwise convolutions in tiles of pixels and channels: the code is vectorized over channels.
//!
//! In a region, the data has a zero border, so every tap reads an element; in a program, taps in the padding are skipped,
//! and the channels that fill no vector are windows.

use super::direct::Sums;
use super::tile::{VectorTile, dispatch_last, finish};
use super::window::Range;
use super::{Lowering, Phase};
use crate::form::{Form, Machine};
use crate::nest::body::Storage;
use crate::nest::transform::{decode, divided, nest};
use crate::nest::{Expr, Loop, Place, Stmt, element, indices, product_indices};
use crate::schedule::contraction::Contraction;
use crate::schedule::window::Depthwise;
use crate::types::Types;
use byoc_plugin_api::DType;
use byoc_plugin_support::view::View;

/// Returns the arguments of a tile of `rows` by `width`: its size, and for each of the two tap axes the number of taps,
/// the stride in the data, and the stride in the weights of `channels` channels.
fn arguments(c: &Contraction, sums: &Sums, rows: Expr, width: Expr, channels: i64) -> Vec<Expr> {
    let pixel = c.a_view.strides[c.body.domain.len() - 2];
    let mut arguments = vec![rows, width, pixel.into()];
    for (i, stride) in [sums.levels[1].0 * channels, channels].into_iter().enumerate() {
        arguments.extend([sums.count(i), sums.levels[i].1.into(), stride.into()]);
    }
    arguments
}

impl Lowering<'_, '_> {
    /// Adds a depthwise convolution of a region. The index space is `[n, pixels.., channel]`.
    pub fn depthwise(&mut self, c: &Contraction, comment: Vec<String>) -> Result<(), String> {
        let sums = Sums::new(c)?;
        let rank = c.body.domain.len();
        let Depthwise { channels, padded, len, rows, pixels, tasks } =
            Depthwise::new(&c.body.domain, sums.levels[0].0 * sums.levels[1].0);
        let operand = c.operand(padded, padded);
        let name = self.phase_after_packing(&operand);
        let weights = self.panels(&operand)?;
        let vars = product_indices(0, rank - 1);
        let words = ["pixels", "pixels", "channels", "tile"];
        let tile = VectorTile { is_dense: true, ..VectorTile::new(name, words, &c.body, &vars) };
        let (tile_pixels, nr) = (|| tile.rows.clone(), || tile.columns.clone());
        let mut tile_index = indices(&vars);
        (tile_index[rank - 2], tile_index[rank - 1]) = (Expr::name("row"), Expr::name("column"));
        let a = Expr::address(c.a, DType::F32, element(&c.a_view, &tile_index));
        let mut in_tile = vec![Stmt::pointer("a", DType::F32, a), tile.whole()];
        in_tile.extend(tile.calls("byoc_vector_depthwise", |rows, width| {
            let real_channels = match channels % 16 {
                0 => width.clone(),
                _ => (Expr::Index(channels) - Expr::name("column")).min(width.clone()),
            };
            (arguments(c, &sums, rows.clone(), width.clone(), padded), real_channels)
        }));
        let in_column = vec![
            Stmt::pointer("b", DType::F32, Expr::address(weights, DType::F32, Expr::name("column"))),
            Stmt::index("full", tile.tail.clone().equal(0).or((Expr::name("column") + nr()).le(padded))),
            Loop::new("row", len, in_tile).by(tile_pixels()).into(),
        ];
        let mut in_row = decode(tile.outer_vars(), &c.body.domain[..rank - 2], &Expr::name("r"));
        in_row.push(Loop::new("column", padded, in_column).by(nr()).into());
        let main = vec![Stmt::array("t", DType::F32, tile_pixels() * nr()), divided("r", rows, "task", tasks, in_row)];
        let sizes = [Expr::Call("BYOC_PICK", vec![pixels.into(), pixels.min(5).into()]), Expr::name("BYOC_VL") * 2];
        let functions = tile.functions(sizes, padded, main);
        self.push_functions(Phase { tasks, functions, ..Phase::of("depthwise", comment, &[c.a, weights], &c.body) });
        Ok(())
    }

    /// Adds a depthwise convolution of a program or a device. The last stride of `a_view` is the channel stride, and `data` is the
    /// data with its dimensions in the order of the index space.
    pub fn direct_depthwise(
        &mut self,
        c: &Contraction,
        data: Storage,
        ranges: Vec<Range>,
        comment: Vec<String>,
    ) -> Result<(), String> {
        let channels = c.columns();
        let weights = self.panels(&c.operand(channels, channels))?;
        let last = c.body.domain.len() - 1;
        let mut vector_channels = 0;
        if let Form::Program(machine, _) = self.form
            && machine.vectors
            && c.a_view.strides[last] == 1
            && c.types == Types::FLOAT
            && channels >= machine.lanes
        {
            vector_channels = channels / machine.lanes * machine.lanes;
            let stmts = vector_depthwise(c, weights, vector_channels, machine)?;
            self.push(Phase::of("depthwise", comment.clone(), &[c.a], &c.body), stmts);
        }
        let rest = channels - vector_channels;
        if rest == 0 {
            return Ok(());
        }
        let body = c.body.slice(last, vector_channels, 1, rest);
        let data = Storage { view: data.view.slice(last, vector_channels, 1, rest), ..data };
        let mut shape: Vec<i64> = c.taps.iter().map(|tap| tap.0).collect();
        shape.push(channels);
        let view = View::dense(&shape).slice(shape.len() - 1, vector_channels, 1, rest);
        self.weighted_windows(body, (data, c.types, c.a_zero), ranges, (weights, view), comment);
        Ok(())
    }
}

/// Returns the loops over the channels that are computed in full vectors, in tiles of pixels.
fn vector_depthwise(
    c: &Contraction,
    weights: Place,
    vector_channels: i64,
    machine: Machine,
) -> Result<Vec<Stmt>, String> {
    let (sums, channels, rank) = (Sums::new(c)?, c.columns(), c.body.domain.len());
    let max_pixels = if machine.registers >= 32 { 8 } else { 5 };
    let tiles = sums.tiles(rank - 2, c.body.domain[rank - 2], |len| {
        Depthwise::new(&[1, 1, len, machine.lanes], 1).pixels.min(max_pixels)
    });
    let vars = product_indices(0, rank - 1);
    let width = 2 * machine.lanes;
    let even = vector_channels / width * width;
    let mut index = indices(&vars);
    (index[rank - 2], index[rank - 1]) = (Expr::name("row"), Expr::name("column"));
    let a = element(&c.a_view, &index) + sums.skipped(0, sums.levels[0].1) + sums.skipped(1, sums.levels[1].1);
    let row = sums.levels[1].0 * channels;
    let b = Expr::name("column") + sums.skipped(0, row) + sums.skipped(1, channels);
    let mut stmts = vec![Stmt::array("t", DType::F32, tiles.most * width.min(vector_channels))];
    let parts = [(0, even, width), (even, vector_channels, machine.lanes)];
    for (start, end, n) in parts.into_iter().filter(|(start, end, _)| start != end) {
        let cases = tiles.counts().into_iter().map(|rows| {
            let mut arguments = arguments(c, &sums, rows.into(), n.into(), channels);
            arguments.push(Expr::address(c.a, DType::F32, a.clone()));
            arguments.push(Expr::address(weights, DType::F32, b.clone()));
            arguments.push(Expr::name("t"));
            (Expr::name("rows").equal(rows), vec![Stmt::Call("byoc_vector_depthwise".into(), arguments)])
        });
        let mut in_tile = sums.bounds_of(rank - 2, "row");
        in_tile.extend(dispatch_last(cases.collect()));
        in_tile.push(finish(&c.body, &vars, DType::F32, n, "column", n));
        let mut inner = sums.bounds_before(rank - 2, &vars);
        inner.push(Loop::new("column", end, tiles.loops(in_tile)).starting(start).by(n).into());
        stmts.extend(nest(&vars[..rank - 2], &c.body.domain[..rank - 2], inner));
    }
    Ok(stmts)
}
