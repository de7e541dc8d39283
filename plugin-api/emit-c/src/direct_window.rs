//! Depthwise convolutions in programs: the code is vectorized over channels, operands are read in place, and taps in
//! the padding are skipped.

use crate::direct::Sums;
use crate::literals::{c_type, loaded, storage_type};
use crate::loop_body::{Place, address};
use crate::lowering::{ConstantArray, Lowering, Phase, weight_bytes};
use crate::schedule::contraction::{Contraction, Types};
use crate::schedule::window::Depthwise;
use byoc_plugin_api::DType;
use std::fmt::Write;

impl Lowering<'_, '_> {
    /// Emits a depthwise convolution as part of a program. The index space is `[n, pixels.., channel]`; the last stride
    /// of `a_view` is the channel stride.
    pub fn direct_depthwise(&mut self, c: &Contraction, comment: Vec<String>) -> Result<(), String> {
        let Sums { levels, guards } = Sums::new(c)?;
        let body = &c.body;
        let rank = body.domain.len();
        let channels = body.domain[rank - 1];
        let [(n0, s0), (n1, s1), _] = levels;
        let mut taps = c.taps.clone();
        while taps.len() < 2 {
            taps.insert(0, (1, 0, 0));
        }
        let Place::Constant(index) = c.b else {
            return Err("depthwise convolution: expected constant weights, found runtime values".into());
        };
        let constant_count = self.ir.constants.len();
        let constant = self.ir.constants.get(index);
        let constant =
            constant.ok_or_else(|| format!("expected constant indices < {constant_count}, found {index}"))?;
        let (size, bytes) = (c.types.b.size(), constant.bytes());
        let mut data = Vec::new();
        for i in 0..n0 {
            for j in 0..n1 {
                for channel in 0..channels {
                    let element = c.b_offset + i * taps[0].2 + j * taps[1].2 + channel * c.b_column;
                    data.extend_from_slice(weight_bytes(bytes, element, size)?);
                }
            }
        }
        let weights_comment = format!("{n0} x {n1} taps x {channels} channels");
        let array = self.constant_array(ConstantArray { dtype: c.types.b, bytes: data, comment: weights_comment });
        let weights = Place::Packed(array);
        let block = channels.min(64);
        let (a_type, b_type) = (storage_type(c.types.a).unwrap_or("float"), storage_type(c.types.b).unwrap_or("float"));
        let sum_type = c_type(c.types.sum).unwrap_or("float");
        let name = self.phase_name();
        let mut vars: Vec<String> = (0..rank - 1).map(|d| format!("r{d}")).collect();
        vars.push("c".into());
        let mut code = self.head(&name);
        let w = &mut code;
        w.push_str(&self.pointers_of(body, &[(c.a, c.types.a), (weights, c.types.b)]));
        let vector_channels = self.vector_channels(c);
        if vector_channels > 0 {
            self.vector_depthwise(w, c, weights, vector_channels)?;
        }
        let tail_channels = channels - vector_channels;
        let block = tail_channels.min(block).max(1);
        if tail_channels > 0 {
            let _ = writeln!(w, "    {sum_type} u[{block}];");
        }
        let mut depth = 1;
        let mut scalar_code = String::new();
        let vector_code = std::mem::take(w);
        for (var, &n) in vars[..rank - 1].iter().zip(&body.domain) {
            let pad = "    ".repeat(depth);
            let _ = writeln!(w, "{pad}for (int64_t {var} = 0; {var} < {n}; ++{var}) {{");
            depth += 1;
        }
        let pad = "    ".repeat(depth);
        for (i, guard) in guards.iter().enumerate() {
            if let Some(guard) = guard {
                w.push_str(&guard.text(i, &vars[guard.row], levels[i].0, &pad));
            }
        }
        let range = |i: usize, n: i64| {
            if guards[i].is_some() { (format!("from{i}"), format!("to{i}")) } else { ("0".to_owned(), n.to_string()) }
        };
        let _ = writeln!(w, "{pad}for (int64_t first = {vector_channels}; first < {channels}; first += {block}) {{");
        let remaining_channels = tail_channels % block;
        let width = if remaining_channels == 0 {
            block.to_string()
        } else {
            format!("first + {block} <= {channels} ? {block} : {remaining_channels}")
        };
        let _ = writeln!(w, "{pad}    const int width = {width};");
        let zero = if c.types.sum == DType::F32 { "0.0f" } else { "0" };
        let _ = writeln!(w, "{pad}    for (int j = 0; j < width; ++j)\n{pad}        u[j] = {zero};");
        let ((y0, y1), (x0, x1)) = (range(0, n0), range(1, n1));
        let _ = writeln!(w, "{pad}    for (int64_t ky = {y0}; ky < {y1}; ++ky)");
        let _ = writeln!(w, "{pad}        for (int64_t kx = {x0}; kx < {x1}; ++kx) {{");
        let mut index = vars.clone();
        index[rank - 1] = "first".into();
        let _ = writeln!(
            w,
            "{pad}            const {a_type} *a = {} + ({} + ky * {s0} + kx * {s1});",
            c.a,
            address(&c.a_view, &index)
        );
        let _ =
            writeln!(w, "{pad}            const {b_type} *b = {weights} + ((ky * {n1} + kx) * {channels} + first);");
        let step = c.a_view.strides[rank - 1];
        let element = if step == 1 || channels == 1 { "a[j]".to_owned() } else { format!("a[j * {step}]") };
        let product = if c.types.sum == DType::F32 {
            format!("{} * {}", loaded(c.types.a, &element), loaded(c.types.b, "b[j]"))
        } else if c.a_zero == 0 {
            format!("({sum_type}){element} * ({sum_type})b[j]")
        } else {
            format!("(({sum_type}){element} - ({})) * ({sum_type})b[j]", c.a_zero)
        };
        let _ = writeln!(w, "{pad}            for (int j = 0; j < width; ++j)");
        let _ = writeln!(w, "{pad}                u[j] += {product};\n{pad}        }}");
        let _ = writeln!(w, "{pad}    for (int j = 0; j < width; ++j) {{");
        let _ = writeln!(w, "{pad}        const int64_t c = first + j;\n{pad}        (void)c;");
        let _ = writeln!(w, "{pad}        const {sum_type} acc = u[j];");
        w.push_str(&body.statements(&vars, depth + 2));
        let _ = writeln!(w, "{pad}    }}\n{pad}}}");
        for level in (1..depth).rev() {
            let _ = writeln!(w, "{}}}", "    ".repeat(level));
        }
        if tail_channels > 0 {
            scalar_code = std::mem::take(w);
        }
        code = format!("{vector_code}{scalar_code}}}\n\n");
        let mut phase = Phase { comment, code, ..Phase::default() };
        phase.call = self.call(&name, 1);
        phase.touch(c.a);
        phase.touch_all(body);
        self.phases.push(phase);
        Ok(())
    }

    /// Returns the number of channels that a depthwise convolution computes in full vectors.
    fn vector_channels(&self, c: &Contraction) -> i64 {
        let channels = c.columns();
        let is_contiguous = c.a_view.strides.last() == Some(&1) && c.types == Types::FLOAT;
        match self.machine() {
            Some(machine) if machine.vectors && is_contiguous => channels / machine.lanes * machine.lanes,
            _ => 0,
        }
    }

    /// Emits the loops over the channels that are computed in full vectors, in tiles of pixels.
    fn vector_depthwise(
        &self,
        w: &mut String,
        c: &Contraction,
        weights: Place,
        vector_channels: i64,
    ) -> Result<(), String> {
        let machine = self.machine().ok_or("depthwise convolution: expected a program, found a region")?;
        let Sums { levels, guards } = Sums::new(c)?;
        let body = &c.body;
        let rank = body.domain.len();
        let (channels, len) = (body.domain[rank - 1], body.domain[rank - 2]);
        let [(n0, s0), (n1, s1), _] = levels;
        let bounds = guards
            .iter()
            .zip(levels)
            .find_map(|(guard, (taps, _))| guard.filter(|g| g.row == rank - 2).map(|g| g.inside(taps, len)));
        let (low, high) = bounds.unwrap_or((0, len));
        let max_pixels = if machine.registers >= 32 { 8 } else { 5 };
        let pixels = Depthwise::new(&[1, 1, (high - low).max(1), machine.lanes], 1).pixels.min(max_pixels);
        let mut vars: Vec<String> = (0..rank - 1).map(|d| format!("r{d}")).collect();
        vars.push("c".into());
        let vector_width = 2 * machine.lanes;
        let _ = writeln!(w, "    float t[{}];", pixels * vector_width.min(vector_channels));
        for (start, end, n) in [
            (0, vector_channels / vector_width * vector_width, vector_width),
            (vector_channels / vector_width * vector_width, vector_channels, machine.lanes),
        ] {
            if start == end {
                continue;
            }
            let mut depth = 1;
            for (var, &size) in vars.iter().zip(&body.domain).take(rank - 2) {
                let _ = writeln!(w, "{}for (int64_t {var} = 0; {var} < {size}; ++{var}) {{", "    ".repeat(depth));
                depth += 1;
            }
            let pad = "    ".repeat(depth);
            for (i, guard) in guards.iter().enumerate() {
                if let Some(guard) = guard.filter(|g| g.row != rank - 2) {
                    w.push_str(&guard.text(i, &vars[guard.row], levels[i].0, &pad));
                }
            }
            let _ = writeln!(w, "{pad}for (int64_t first = {start}; first < {end}; first += {n}) {{");
            let _ = writeln!(w, "{pad}    int rows = 1;");
            let _ = writeln!(w, "{pad}    for (int64_t row = 0; row < {len}; row += rows) {{");
            depth += 2;
            let pad = "    ".repeat(depth);
            let border_case =
                if (low, high) == (0, len) { String::new() } else { format!("row < {low} || row >= {high} ? 1 : ") };
            let _ = match pixels {
                1 => writeln!(w, "{pad}rows = 1;"),
                _ => writeln!(w, "{pad}rows = {border_case}row + {pixels} <= {high} ? {pixels} : (int)({high} - row);"),
            };
            for (i, guard) in guards.iter().enumerate() {
                if let Some(guard) = guard.filter(|g| g.row == rank - 2) {
                    w.push_str(&guard.text(i, "row", levels[i].0, &pad));
                }
            }
            let mut index = vars.clone();
            (index[rank - 2], index[rank - 1]) = ("row".into(), "first".into());
            let mut a_at = address(&c.a_view, &index);
            let mut b_at = "first".to_owned();
            let mut arguments = String::new();
            for (i, (n, stride, step)) in [(n0, s0, n1 * channels), (n1, s1, channels)].into_iter().enumerate() {
                let count = if guards[i].is_some() { format!("to{i} - from{i}") } else { n.to_string() };
                if guards[i].is_some() {
                    let _ = write!(a_at, " + from{i} * {stride}");
                    let _ = write!(b_at, " + from{i} * {step}");
                }
                let _ = write!(arguments, "{count}, {stride}, {step}, ");
            }
            let _ = writeln!(w, "{pad}const float *a = {} + ({a_at});", c.a);
            let _ = writeln!(w, "{pad}const float *b = {weights} + ({b_at});");
            let remaining_pixels = (high - low).max(0) % pixels;
            let mut kinds = vec![pixels];
            kinds.extend((remaining_pixels > 1).then_some(remaining_pixels));
            kinds.extend((pixels > 1 && (remaining_pixels == 1 || (low, high) != (0, len))).then_some(1));
            let stride = c.a_view.strides[rank - 2];
            for (i, &rows) in kinds.iter().enumerate() {
                let call = format!("byoc_vector_depthwise({rows}, {n}, {stride}, {arguments}a, b, t);");
                let _ = match (kinds.len(), i) {
                    (1, _) => writeln!(w, "{pad}{call}"),
                    (_, 0) => writeln!(w, "{pad}if (rows == {rows})\n{pad}    {call}"),
                    (count, i) if i + 1 == count => writeln!(w, "{pad}else\n{pad}    {call}"),
                    _ => writeln!(w, "{pad}else if (rows == {rows})\n{pad}    {call}"),
                };
            }
            let last_var = &vars[rank - 2];
            let _ = writeln!(w, "{pad}for (int64_t i = 0; i < rows; ++i) {{");
            let _ = writeln!(w, "{pad}    const int64_t {last_var} = row + i;\n{pad}    (void){last_var};");
            let _ = writeln!(w, "{pad}    for (int64_t j = 0; j < {n}; ++j) {{");
            let _ = writeln!(w, "{pad}        const int64_t c = first + j;\n{pad}        (void)c;");
            let _ = writeln!(w, "{pad}        const float acc = t[i * {n} + j];");
            w.push_str(&body.statements(&vars, depth + 2));
            let _ = writeln!(w, "{pad}    }}\n{pad}}}");
            for level in (1..depth).rev() {
                let _ = writeln!(w, "{}}}", "    ".repeat(level));
            }
        }
        Ok(())
    }
}
