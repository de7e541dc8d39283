//! Steps that transform a loop nest without changing what it computes, the order of the terms of a sum apart.

use super::{Expr, Loop, Mode, Reduce, Step, Stmt};
use byoc_plugin_support::view::dense_strides;

/// Returns the perfect nest of loops over `0..dims[d]`, outermost first, around `body`.
pub fn nest(vars: &[String], dims: &[i64], body: Vec<Stmt>) -> Vec<Stmt> {
    vars.iter().zip(dims).rev().fold(body, |body, (var, &size)| vec![Loop::new(var, size, body).into()])
}

/// Returns declarations of `vars`, the indices of the element at row-major position `number` in a tensor of shape
/// `dims`.
pub fn decode(vars: &[String], dims: &[i64], number: &Expr) -> Vec<Stmt> {
    let strides = dense_strides(dims);
    let digit = |d: usize| {
        let quotient = number.clone() / strides[d];
        // The outermost digit needs no remainder.
        if dims[d] == 1 {
            Expr::Index(0)
        } else if dims[..d].iter().all(|&size| size == 1) {
            quotient
        } else {
            quotient % dims[d]
        }
    };
    vars.iter().enumerate().map(|(d, var)| Stmt::index(var, digit(d))).collect()
}

/// Returns the bounds of part `index` of the range `0..n`, divided into `parts` parts as evenly as possible.
fn share(n: impl Into<Expr>, index: &Expr, parts: i64) -> [Expr; 2] {
    let n = n.into();
    match parts {
        1 => [Expr::Index(0), n],
        _ => [n.clone() * index.clone() / parts, n * (index.clone() + 1) / parts],
    }
}

/// Returns the loop of `var` over part `index` of the range `0..n`, divided as by [`share`].
pub fn divided(var: &str, n: impl Into<Expr>, index: &str, parts: i64, body: Vec<Stmt>) -> Stmt {
    let [from, to] = share(n, &Expr::from(index), parts);
    Loop::new(var, to, body).starting(from).into()
}

/// Applies a step.
///
/// # Errors
/// If the nest has no loop of that name, or the loop does not have the form that the step transforms.
pub fn apply(stmts: &mut Vec<Stmt>, step: &Step) -> Result<(), String> {
    let (var, change): (&str, Box<dyn Fn(Loop) -> Result<Vec<Stmt>, String> + '_>) = match step {
        Step::Fuse { vars, into } => {
            let Some(var) = vars.first() else { return Ok(()) };
            (var, Box::new(move |outer| fuse(outer, vars, into)))
        }
        Step::Split { var, by, into } => (var, Box::new(move |whole| split(whole, *by, into))),
        Step::Sink { var, below } => (var, Box::new(move |outer| sink(outer, below))),
        Step::Parallel { var, tasks } => (
            var,
            Box::new(move |whole| {
                let [from, to] = share(whole.to.clone(), &Expr::name("task"), *tasks);
                Ok(vec![Loop { from, to, ..whole }.into()])
            }),
        ),
        Step::Simd { var } => (var, Box::new(|whole| Ok(hoist(whole.mode(Mode::Simd))))),
        Step::Items { var, dim } => (var, Box::new(|whole| Ok(vec![whole.mode(Mode::Items(*dim)).into()]))),
        Step::Vectorize { var, width } => (var, Box::new(move |whole| vectorize(whole, *width))),
        Step::Accumulate { var, len } => (var, Box::new(move |inner| accumulate(inner, *len))),
    };
    match replace(stmts, var, &change)? {
        true => Ok(()),
        false => Err(format!("{step}: expected a loop {var}, found none")),
    }
}

/// Replaces the loop over `var`. Returns false if there is none.
fn replace(
    stmts: &mut Vec<Stmt>,
    var: &str,
    change: &dyn Fn(Loop) -> Result<Vec<Stmt>, String>,
) -> Result<bool, String> {
    for i in 0..stmts.len() {
        if matches!(&stmts[i], Stmt::For(found) if found.var == var) {
            let Stmt::For(found) = stmts.remove(i) else { continue };
            stmts.splice(i..i, change(*found)?);
            return Ok(true);
        }
        for body in stmts[i].bodies_mut() {
            if replace(body, var, change)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the number of points of a loop that starts at 0.
fn extent(found: &Loop) -> Result<i64, String> {
    let size = found.to.as_index().filter(|_| found.from == Expr::Index(0) && found.step == Expr::Index(1));
    size.ok_or_else(|| format!("loop {}: expected a known number of points, found {:?}", found.var, found.to))
}

/// Joins the perfect nest of `vars` to one loop.
fn fuse(outer: Loop, vars: &[String], into: &str) -> Result<Vec<Stmt>, String> {
    let mut dims = vec![extent(&outer)?];
    let mut body = outer.body;
    for var in &vars[1..] {
        match <[Stmt; 1]>::try_from(body) {
            Ok([Stmt::For(inner)]) if inner.var == *var => {
                dims.push(extent(&inner)?);
                body = inner.body;
            }
            _ => return Err(format!("loop {var}: expected a perfect nest")),
        }
    }
    let mut stmts = decode(vars, &dims, &Expr::name(into));
    stmts.append(&mut body);
    Ok(vec![Loop::new(into, dims.iter().product::<i64>(), stmts).into()])
}

/// Splits a loop into blocks of `by` points: a loop over the blocks, `into[0]`, and one over the points of a block,
/// `into[1]`.
fn split(whole: Loop, by: i64, into: &[String; 2]) -> Result<Vec<Stmt>, String> {
    let size = extent(&whole)?;
    let [outer, inner] = into;
    if by >= size {
        let mut body = vec![Stmt::index(&whole.var, Expr::from(inner))];
        body.extend(whole.body);
        return Ok(vec![Loop::new(outer, 1, vec![Loop::new(inner, size, body).into()]).into()]);
    }
    let first = format!("{}_first", whole.var);
    let mut stmts = vec![Stmt::index(&first, Expr::from(outer) * by)];
    let mut count = Expr::Index(by);
    if size % by != 0 {
        let name = format!("{}_count", whole.var);
        stmts.push(Stmt::index(&name, (Expr::Index(size) - Expr::from(&first)).min(by)));
        count = Expr::from(&name);
    }
    let mut body = vec![Stmt::index(&whole.var, Expr::from(&first) + Expr::from(inner))];
    body.extend(whole.body);
    stmts.push(Loop::new(inner, count, body).into());
    Ok(vec![Loop::new(outer, (size + by - 1) / by, stmts).into()])
}

/// Moves the loop `outer` inside of the loop `below`, with what stands between them.
fn sink(outer: Loop, below: &str) -> Result<Vec<Stmt>, String> {
    let Loop { var, from, to, step, mode, mut body } = outer;
    let is_perfect = matches!(&body[..], [Stmt::For(inner)] if inner.var == below);
    let Some(Stmt::For(mut inner)) = body.pop().filter(|_| is_perfect) else {
        return Err(format!("loop {var}: expected the loop {below} alone inside of it"));
    };
    inner.body = vec![Loop { var, from, to, step, mode, body: inner.body }.into()];
    Ok(vec![Stmt::For(inner)])
}

/// Moves declarations at the start of a loop that do not depend on it before the loop.
fn hoist(mut whole: Loop) -> Vec<Stmt> {
    let mut stmts = Vec::new();
    let mut dependent = vec![whole.var.clone()];
    let mut body = Vec::new();
    let mut is_start = true;
    for stmt in whole.body {
        let is_dependent = dependent.iter().any(|name| stmt.reads(name));
        match &stmt {
            Stmt::Let { name, .. } | Stmt::Pointer { name, .. } if is_start => {
                if is_dependent {
                    dependent.push(name.clone());
                }
            }
            _ => is_start = false,
        }
        if is_start && !is_dependent { stmts.push(stmt) } else { body.push(stmt) }
    }
    whole.body = body;
    stmts.push(whole.into());
    stmts
}

/// Computes `width` points of a loop at once.
fn vectorize(whole: Loop, width: i64) -> Result<Vec<Stmt>, String> {
    let size = extent(&whole)?;
    if width == 1 {
        return Ok(vec![whole.into()]);
    }
    let vector = format!("{}_vector", whole.var);
    let lanes = Stmt::Lanes {
        var: whole.var,
        first: Expr::from(&vector) * width,
        width,
        end: (size % width != 0).then_some(size),
        body: whole.body,
    };
    Ok(vec![Loop::new(&vector, (size + width - 1) / width, vec![lanes]).into()])
}

/// Moves a loop of at most `len` points inside of the reduction that its body contains: the loop accumulates in an
/// array, one element per point.
fn accumulate(inner: Loop, len: i64) -> Result<Vec<Stmt>, String> {
    let Loop { var, from, to, step, body, .. } = inner;
    let around =
        |body: Vec<Stmt>| Loop::new(&var, to.clone(), body).starting(from.clone()).by(step.clone()).mode(Mode::Simd);
    let Some(position) = body.iter().position(|stmt| matches!(stmt, Stmt::Reduce(_))) else {
        return Err(format!("loop {var}: expected a reduction inside of it"));
    };
    let mut before = body;
    let mut after = before.split_off(position + 1);
    let Some(Stmt::Reduce(reduce)) = before.pop() else { return Ok(Vec::new()) };
    let Reduce { name, dtype, start, loops, value } = *reduce;
    // What does not depend on the loop goes before it, the rest into each of the new loops.
    let mut stmts = hoist(around(before));
    let Some(Stmt::For(rest)) = stmts.pop() else { return Ok(Vec::new()) };
    let before = rest.body;
    let array = format!("{name}s");
    let element = Expr::load(array.as_str(), dtype, Expr::from(&var));
    let store = |value: Expr| Stmt::store(array.as_str(), dtype, Expr::from(&var), value);
    stmts.push(Stmt::array(&array, dtype, len));
    stmts.push(around(vec![store(start)]).into());
    let mut value = value;
    value.substitute(&name, &element);
    let update = before.iter().cloned().chain([store(value)]).collect();
    let update: Vec<Stmt> = vec![around(update).into()];
    stmts.extend(loops.into_iter().rev().fold(update, |body, level| vec![Loop { body, ..level }.into()]));
    let mut finish = before;
    finish.push(Stmt::value(name, dtype, element));
    finish.append(&mut after);
    stmts.push(around(finish).into());
    Ok(stmts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nest::numbered;
    use byoc_plugin_api::DType;

    /// Interprets a nest whose stores go to a local array: returns the index of each store, in order.
    fn stores(stmts: &[Stmt], env: &mut Vec<(String, i64)>) -> Vec<i64> {
        fn value(expr: &Expr, env: &[(String, i64)]) -> i64 {
            match expr {
                Expr::Index(x) => *x,
                Expr::Name(name) => env.iter().rev().find(|entry| entry.0 == *name).unwrap().1,
                Expr::Binary(infix, operands) => {
                    let [a, b] = [value(&operands[0], env), value(&operands[1], env)];
                    match infix.sign().0 {
                        "+" => a + b,
                        "-" => a - b,
                        "*" => a * b,
                        "/" => a / b,
                        "%" => a % b,
                        "<" => i64::from(a < b),
                        sign => panic!("{sign}"),
                    }
                }
                Expr::Select(operands) => value(&operands[if value(&operands[0], env) != 0 { 1 } else { 2 }], env),
                other => panic!("{other:?}"),
            }
        }
        let mut indices = Vec::new();
        let depth = env.len();
        for stmt in stmts {
            match stmt {
                Stmt::Let { name, value: expr, .. } => env.push((name.clone(), value(expr, env))),
                Stmt::Store { index, .. } => indices.push(value(index, env)),
                Stmt::For(found) => {
                    for i in (value(&found.from, env)..value(&found.to, env)).step_by(value(&found.step, env) as usize)
                    {
                        env.push((found.var.clone(), i));
                        indices.extend(stores(&found.body, env));
                        env.pop();
                    }
                }
                Stmt::Lanes { var, first, width, end, body } => {
                    let first = value(first, env);
                    for i in first..(first + width).min(end.unwrap_or(i64::MAX)) {
                        env.push((var.clone(), i));
                        indices.extend(stores(body, env));
                        env.pop();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        env.truncate(depth);
        indices
    }

    fn points() -> Vec<Stmt> {
        let vars = numbered("i", 3);
        let index = (Expr::name("i0") * 4 + Expr::name("i1")) * 5 + Expr::name("i2");
        nest(&vars, &[3, 4, 5], vec![Stmt::store("t", DType::F32, index, Expr::Number(DType::F32, 0.0))])
    }

    #[test]
    fn steps_keep_the_points() {
        let all: Vec<i64> = (0..60).collect();
        let names = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let fuse = Step::Fuse { vars: numbered("i", 2), into: "row".into() };
        let split = Step::Split { var: "i2".into(), by: 2, into: names("block", "j") };
        let vectorize = Step::Vectorize { var: "i2".into(), width: 4 };
        let sink = Step::Sink { var: "i1".into(), below: "i2".into() };
        for (steps, is_in_order) in [
            (vec![], true),
            (vec![&fuse], true),
            (vec![&fuse, &split], true),
            (vec![&vectorize], true),
            (vec![&sink], false),
        ] {
            let mut stmts = points();
            steps.iter().for_each(|step| apply(&mut stmts, step).unwrap());
            let mut found = stores(&stmts, &mut Vec::new());
            if !is_in_order {
                assert_ne!(found, all);
                found.sort_unstable();
            }
            assert_eq!(found, all, "{steps:?}");
        }
        let parallel = Step::Parallel { var: "i0".into(), tasks: 2 };
        let mut stmts = points();
        apply(&mut stmts, &parallel).unwrap();
        let parts: Vec<i64> = (0..2).flat_map(|task| stores(&stmts, &mut vec![("task".to_owned(), task)])).collect();
        assert_eq!(parts, all);
    }

    #[test]
    fn a_step_needs_its_loop() {
        let missing = Step::Simd { var: "x".into() };
        assert_eq!(apply(&mut points(), &missing).unwrap_err(), "simd x: expected a loop x, found none");
        let not_adjacent = Step::Fuse { vars: vec!["i0".into(), "i2".into()], into: "row".into() };
        assert!(apply(&mut points(), &not_adjacent).is_err());
    }

    #[test]
    fn a_reduction_accumulates_below_a_loop() {
        let load = Expr::load("x", DType::F32, Expr::name("y") * 8 + Expr::name("c"));
        let reduce = Reduce {
            name: "acc".into(),
            dtype: DType::F32,
            start: Expr::Number(DType::F32, 0.0),
            loops: vec![Loop::new("y", 3, Vec::new())],
            value: Expr::name("acc") + load,
        };
        let mut stmts = nest(&["c".to_owned()], &[8], vec![Stmt::index("low", Expr::name("r")), reduce.into()]);
        apply(&mut stmts, &Step::Accumulate { var: "c".into(), len: 8 }).unwrap();
        let [Stmt::Let { .. }, Stmt::Array { .. }, Stmt::For(start), Stmt::For(sum), Stmt::For(_)] = &stmts[..] else {
            panic!("{stmts:?}")
        };
        assert_eq!((start.var.as_str(), sum.var.as_str()), ("c", "y"));
    }
}
