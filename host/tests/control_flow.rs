//! Control flow from Relay text to results: data types and `match`, polymorphic functions, recursion, references.

use byoc::driver::plan::plan;
use byoc::runtime::exec::{Executor, Pool};
use byoc_core::analysis::verify;
use byoc_core::pass::{infer_type, monomorphize};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::ir::Module;
use byoc_ir::tensor::Tensor;
use byoc_ir::text::{ParseOptions, parse};
use std::sync::Arc;

const LIST: &str = r#"#[version = "0.0.5"]
type List[A] { Cons(A, List[A]), Nil }
type Option[A] { Some(A), No }
type Tree[A] { Rose(A, List[Tree[A]]) }

def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
  match (%xs) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil }
}
def @foldl[A, B](%f: fn (B, A) -> B, %start: B, %xs: List[A]) -> B {
  match (%xs) { Cons(%x, %rest) => @foldl(%f, %f(%start, %x), %rest), Nil => %start }
}
def @foldr[A, B](%f: fn (A, B) -> B, %end: B, %xs: List[A]) -> B {
  match (%xs) { Cons(%x, %rest) => %f(%x, @foldr(%f, %end, %rest)), Nil => %end }
}
def @rev[A](%xs: List[A]) -> List[A] { @foldl(fn (%done: List[A], %x: A) { Cons(%x, %done) }, Nil, %xs) }
def @append[A](%xs: List[A], %ys: List[A]) -> List[A] { @foldr(Cons, %ys, %xs) }
def @length[A](%xs: List[A]) -> int32 { match (%xs) { Cons(_, %rest) => 1 + @length(%rest), Nil => 0 } }
def @zip[A, B](%xs: List[A], %ys: List[B]) -> List[(A, B)] {
  match ((%xs, %ys)) { (Cons(%x, %r), Cons(%y, %s)) => Cons((%x, %y), @zip(%r, %s)), _ => Nil }
}
def @find[A](%wanted: fn (A) -> bool, %xs: List[A]) -> Option[A] {
  match (%xs) { Cons(%x, %rest) => if (%wanted(%x)) { Some(%x) } else { @find(%wanted, %rest) }, Nil => No }
}
def @upto(%n: int32, %xs: List[int32]) -> List[int32] { if (%n < 1) { %xs } else { @upto(%n - 1, Cons(%n, %xs)) } }
def @tmap[A, B](%f: fn (A) -> B, %t: Tree[A]) -> Tree[B] {
  match (%t) { Rose(%v, %cs) => Rose(%f(%v), @map(fn (%c) { @tmap(%f, %c) }, %cs)) }
}
def @tsum(%t: Tree[int32]) -> int32 {
  match (%t) { Rose(%v, %cs) => @foldl(fn (%a: int32, %c: Tree[int32]) { %a + @tsum(%c) }, %v, %cs) }
}
"#;

/// Parses a module and lowers it for execution on the host.
fn module(text: &str) -> Module {
    let parsed_module = parse(text, &ParseOptions::default());
    assert_eq!(parsed_module.diagnostics, [], "{text}");
    let module = infer_type(&parsed_module.module).unwrap_or_else(|faults| panic!("{faults:?}"));
    assert_eq!(verify(&module), Ok(()));
    let module = monomorphize(&module).unwrap();
    assert_eq!(verify(&module), Ok(()));
    module
}

/// Creates a host-only executor for a module.
fn executor(module: &Module) -> Executor {
    let lowered_program = plan(module, &[], &[]).unwrap();
    Executor::new(lowered_program.program, lowered_program.constants, Vec::new(), Arc::new(Pool::new(1).unwrap()))
        .unwrap()
}

fn run(module: &Module, inputs: &[Tensor]) -> Result<Vec<Tensor>, Diagnostic> {
    executor(module).run(inputs)
}

/// Prepends the list library to a module and runs `@main`.
fn run_ints(main: &str, inputs: &[i32]) -> Vec<i32> {
    let inputs: Vec<Tensor> = inputs.iter().map(|&i| Tensor::scalar(i)).collect();
    let results = run(&module(&format!("{LIST}{main}")), &inputs).unwrap();
    results.iter().map(|tensor| tensor.as_slice::<i32>()[0]).collect()
}

#[test]
fn runs_list_functions() {
    let sum = "fn (%a: int32, %b: int32) { %a + %b }";
    let text = format!("def @main(%n: int32) {{ @foldl({sum}, 0, @map(fn (%x) {{ %x * %x }}, @upto(%n, Nil))) }}");
    assert_eq!(run_ints(&text, &[10]), [385]);
    assert_eq!(run_ints(&text, &[0]), [0]);
    let text = "def @digits(%xs: List[int32]) -> int32 { @foldl(fn (%a: int32, %x: int32) { %a * 10 + %x }, 0, %xs) }
def @main(%n: int32) {
  let %xs = @upto(%n, Nil);
  (@digits(%xs), @digits(@rev(%xs)), @digits(@append(%xs, %xs)), @length(@append(@rev(%xs), %xs)))
}";
    assert_eq!(run_ints(text, &[3]), [123, 321, 123_123, 6]);
}

#[test]
fn instantiates_type_parameter_with_any_type() {
    let text = "def @main(%n: int32) {
  let %xs = @upto(%n, Nil);
  let %pairs = @zip(%xs, @map(fn (%x) { (%x * 2, fn (%y: int32) { %y + %x }) }, %xs));
  let %f = @foldl(fn (%a: int32, %p: (int32, (int32, fn (int32) -> int32))) { %p.1.1(%a + %p.0 * %p.1.0) }, 0, %pairs);
  let %lists = @map(fn (%x) { @upto(%x, Nil) }, %xs);
  (%f, @foldl(fn (%a: int32, %l: List[int32]) { %a + @length(%l) }, 0, %lists))
}";
    // The sum of 2x² + x for x from 1 to 3, and 1 + 2 + 3.
    assert_eq!(run_ints(text, &[3]), [28 + 6, 6]);
    let text = format!(
        "{LIST}def @main(%x: Tensor[(2), float32]) {{
  let %xs = Cons(%x, Cons(nn.relu(%x), Nil));
  @foldl(fn (%a: Tensor[(2), float32], %x: Tensor[(2), float32]) {{ add(%a, %x) }}, %x, @rev(%xs))
}}"
    );
    let input = Tensor::from_slice(&[2], &[-1f32, 2.0]);
    assert_eq!(run(&module(&text), &[input]).unwrap(), [Tensor::from_slice(&[2], &[-2f32, 6.0])]);
}

#[test]
fn runs_options_trees_and_constructor_values() {
    let text = "def @main(%n: int32, %k: int32) {
  match (@find(fn (%x) { %x > %k }, @upto(%n, Nil))) { Some(%x) => %x, No => -1 }
}";
    assert_eq!(run_ints(text, &[9, 4]), [5]);
    assert_eq!(run_ints(text, &[9, 9]), [-1]);
    let text = "def @main(%n: int32) {
  let %leaf = fn (%x: int32) { Rose(%x, Nil) };
  let %t = Rose(%n, Cons(%leaf(1), Cons(Rose(2, Cons(%leaf(3), Nil)), Nil)));
  let %options = @map(Some, @upto(%n, Nil));
  let %some = @foldl(fn (%a: int32, %o: Option[int32]) { match (%o) { Some(%x) => %a + %x, No => %a } }, 0, %options);
  (@tsum(%t), @tsum(@tmap(fn (%x) { %x * 10 }, %t)), %some)
}";
    assert_eq!(run_ints(text, &[4]), [10, 100, 10]);
}

/// Returns the diagnostic for a module whose type parameters cannot be instantiated.
fn refusal(main: &str) -> String {
    let parsed_module = parse(&format!("{LIST}{main}"), &ParseOptions::default());
    assert_eq!(parsed_module.diagnostics, [], "{main}");
    let module = infer_type(&parsed_module.module).unwrap_or_else(|faults| panic!("{faults:?}"));
    monomorphize(&module).map_or_else(|diagnostic| diagnostic.to_string(), |_| "nothing".to_owned())
}

#[test]
fn instantiates_closures_at_several_types() {
    // A polymorphic closure bound by a let, bound to a numbered variable, or called directly, at types that the closure
    // does not mention.
    let text = "def @main(%n: int32) {
  let %id = fn [A](%x: A) -> A { %x };
  %0 = fn [A, B](%x: A, %y: B) -> (B, A) { (%y, %x) };
  let %f = cast(%id(1.5f), dtype=\"int32\");
  let %s = %0(%id(%n), %id((%n, 2f)));
  (%id(%n), %f, %s.0.0 + %s.1, (fn [A](%x: A) -> A { %x })(%n), @length(%id(Cons(%s, Nil))))
}";
    assert_eq!(run_ints(text, &[7]), [7, 1, 14, 7, 1]);
    // A recursive polymorphic closure, applied to a closure that captures a parameter.
    let text = "def @main(%n: int32) {
  let %repeat = fn [A](%f: fn (A) -> A, %x: A, %i: int32) -> A { if (%i < 1) { %x } else { %repeat(%f, %f(%x), %i - 1) } };
  let %add = fn (%x: int32) { %x + %n };
  let %pair = %repeat(fn (%p: (int32, float32)) { (%p.0 * 2, %p.1 + 1f) }, (1, 0f), %n);
  (%repeat(%add, 0, %n), %pair.0, cast(%pair.1, dtype=\"int32\"))
}";
    assert_eq!(run_ints(text, &[5]), [25, 32, 5]);
    // Nested closures with separate type parameters, which capture enclosing variables.
    let text = "def @twice[T](%x: T) -> (T, T) {
  let %outer = fn [A](%a: A) -> (A, (T, T)) {
    let %inner = fn [B](%b: B) -> (B, (A, T)) { (%b, (%a, %x)) };
    let %p = %inner(1);
    let %q = %inner(%p);
    (%q.1.0, (%p.1.1, %q.1.1))
  };
  let %r = %outer(%outer(2f));
  %r.1
}
def @main(%n: int32) { (@twice(%n), @twice(Cons(%n, Nil)).0, 3).0 }";
    assert_eq!(run_ints(text, &[9]), [9, 9]);
    // A polymorphic closure as a value: as an argument, as the result of an `if`, and under a second name.
    let text = "def @main(%n: int32) {
  let %wrap = fn [A](%x: A) -> Option[A] { Some(%x) };
  let %again = %wrap;
  let %chosen: fn (int32) -> Option[int32] = if (%n < 3) { %again } else { fn (%x: int32) { Some(0 - %x) } };
  let %sum = fn (%a: int32, %o: Option[int32]) { match (%o) { Some(%x) => %a + %x, No => %a } };
  (@foldl(%sum, 0, @map(%wrap, @upto(%n, Nil))), @foldl(%sum, 0, @map(%chosen, @upto(%n, Nil))), @length(@map(%again, Cons(1f, Nil))))
}";
    assert_eq!(run_ints(text, &[2]), [3, 3, 1]);
    assert_eq!(run_ints(text, &[3]), [6, -6, 1]);
}

#[test]
fn instantiates_polymorphic_recursion_of_closure() {
    // The types alternate, so each of the two instances must be in the scope of the other instance.
    let text = "def @main(%n: int32) {
  let %down = fn [A, B](%a: A, %b: B, %i: int32) -> int32 { if (%i < 1) { 0 } else { 1 + %down(%b, %a, %i - 1) } };
  %down(1, 2f, %n)
}";
    assert_eq!(run_ints(text, &[6]), [6]);
    let text = "def @main(%n: int32) {
  let %grow = fn [A](%a: A, %i: int32) -> int32 { if (%i < 1) { 0 } else { %grow(Cons(%a, Nil), %i - 1) } };
  %grow(1, %n)
}";
    assert_eq!(refusal(text), "E0206: a closure is used at ever larger types");
}

#[test]
fn rejects_type_parameters_at_run_time() {
    let text = "def @main(%n: int32) {
  let %both = fn (%f: fn [A](A) -> A) { (%f(%n), %f(1f)) };
  %both(fn [A](%x: A) -> A { %x })
}";
    let message = "E0205: %f has type parameters, but the function is known only at run time";
    assert!(refusal(text).starts_with(message), "{}", refusal(text));
}

#[test]
fn runs_loop_over_data_type_in_constant_memory() {
    // A loop of a million iterations over a counter inside an option.
    let text = "def @count(%o: Option[(int32, int32)]) -> int32 {
  match (%o) { Some((%i, %sum)) => if (%i < 1) { %sum } else { @count(Some((%i - 1, %sum + 1))) }, No => 0 }
}
def @main(%n: int32) { @count(Some((%n, 0))) }";
    assert_eq!(run_ints(text, &[1_000_000]), [1_000_000]);
    // A list of a million elements, built and consumed by loops, and dropped without recursion.
    let text = "def @main(%n: int32) { @foldl(fn (%a: int32, %x: int32) { %a + 1 }, 0, @upto(%n, Nil)) }";
    assert_eq!(run_ints(text, &[1_000_000]), [1_000_000]);
}

#[test]
fn reports_deep_recursion() {
    let text = format!("{LIST}def @main(%n: int32) {{ @length(@upto(%n, Nil)) }}");
    let executor = executor(&module(&text));
    assert_eq!(executor.run(&[Tensor::scalar(50_000i32)]).unwrap(), [Tensor::scalar(50_000i32)]);
    assert_eq!(executor.run(&[Tensor::scalar(200_000i32)]).unwrap_err().code, codes::runtime::CALL_DEPTH);
}

#[test]
fn reports_clauses_of_incomplete_match() {
    let text = format!(
        "{LIST}def @main(%n: int32) {{ match? (@upto(%n, Nil)) {{ Cons(%x, Nil) => %x, Cons(_, Cons(%y, _)) => %y }} }}"
    );
    let executor = executor(&module(&text));
    assert_eq!(executor.run(&[Tensor::scalar(1i32)]).unwrap(), [Tensor::scalar(1i32)]);
    assert_eq!(executor.run(&[Tensor::scalar(5i32)]).unwrap(), [Tensor::scalar(2i32)]);
    let error = executor.run(&[Tensor::scalar(0i32)]).unwrap_err();
    assert_eq!(error.code, codes::runtime::NO_CLAUSE);
    assert_eq!(error.notes, ["clauses: Cons(_, Nil), Cons(_, Cons(_, _))"]);
}

#[test]
fn evaluates_only_selected_clause_and_shared_code_once() {
    let text = "def @main(%n: int32) {
  let %r = ref(0);
  %0 = (ref_write(%r, ref_read(%r) + 1); %n * 2);
  let %y = match (@upto(%n, Nil)) {
    Nil => { ref_write(%r, 100); 7 },
    Cons(%x, _) => %0 + %x,
  };
  let %z = match (@upto(%n, Nil)) { Cons(_, _) => %y + 1, Nil => %y + 2 };
  (%y, %z, ref_read(%r))
}";
    assert_eq!(run_ints(text, &[3])[..2], [7, 8]);
    assert_eq!(run_ints(text, &[0])[..2], [7, 9]);
}

#[test]
fn runs_mutually_recursive_globals_and_unannotated_closures() {
    let text = "def @even(%n) { if (%n < 1) { 1 } else { @odd(%n - 1) } }
def @odd(%n) { if (%n < 1) { 0 } else { @even(%n - 1) } }
def @main(%n: int32) {
  let %a = %n;
  let %b = %a;
  let %sum = fn (%i, %s) { if (%i < 1) { %s } else { %sum(%i - 1, %s + %i) } };
  let %again = %sum;
  (@even(%b), @odd(%b), %again(%b, 0))
}";
    assert_eq!(run_ints(text, &[100_001]), [0, 1, 705_182_705]);
}

#[test]
fn runs_with_growing_shapes() {
    let text = r#"#[version = "0.0.5"]
def @grow(%i: int32, %x: Tensor[(?, 2), float32]) -> Tensor[(?, 2), float32] {
  if (%i < 1) { %x } else { @grow(%i - 1, concatenate((%x, nn.relu(%x)))) }
}
def @main(%n: int32, %x: Tensor[(1, 2), float32]) -> Tensor[(?, 2), float32] { @grow(%n, %x) }"#;
    let executor = executor(&module(text));
    for rounds in [0, 3, 10, 3] {
        let inputs = [Tensor::scalar(rounds), Tensor::from_slice(&[1, 2], &[1f32, -1.0])];
        let results = executor.run(&inputs).unwrap();
        assert_eq!(results[0].shape(), [1 << rounds, 2]);
        assert_eq!(results[0].as_slice::<f32>()[..2], [1.0, -1.0]);
        assert!(results[0].as_slice::<f32>()[2..].chunks(2).all(|row| row == [1.0, 0.0]));
    }
}

/// Returns an executor for `@collect`, which appends to `%rows` a row filled with `%i`, then a row filled with `%i -
/// 1`, and so on down to 1. `step` is the rest of the loop body, in which `%next` is the concatenation.
fn collecting(row: &str, axis: i32, shape: &str, step: &str) -> Executor {
    executor(&module(&format!(
        r#"#[version = "0.0.5"]
def @collect(%i: int32, %rows: Tensor[{shape}, float32], %last: Tensor[{shape}, float32]) {{
  if (%i < 1) {{ (%rows, %last) }} else {{
    let %row = full(cast(%i, dtype="float32"), shape={row}, dtype="float32");
    let %next = concatenate((%rows, %row), axis={axis});
    {step}
  }}
}}
def @main(%n: int32, %x: Tensor[{shape}, float32]) {{ @collect(%n, %x, %x) }}"#
    )))
}

#[test]
fn appends_rows_to_the_memory_of_a_loop() {
    let rows = |range: std::ops::RangeInclusive<i32>, len: usize| {
        range.rev().flat_map(|i| vec![i as f32; len]).collect::<Vec<_>>()
    };
    // A row has 40 kB, so that its memory comes from reusable blocks.
    let collect = collecting("[1, 10000]", 0, "(?, 10000)", "@collect(%i - 1, %next, %rows)");
    let append = collecting("[1, 10000]", 0, "(?, 10000)", "@collect(%i - 1, %next, %last)");
    let empty = Tensor::from_slice::<f32>(&[0, 10_000], &[]);
    for n in [0, 1, 2, 50] {
        let results = collect.run(&[Tensor::scalar(n), empty.clone()]).unwrap();
        assert_eq!(results[0].as_slice::<f32>(), rows(1..=n, 10_000));
        assert_eq!(results[1].as_slice::<f32>(), rows(2.min(n + 1)..=n, 10_000), "the rows before the last");
        let first_result = append.run(&[Tensor::scalar(n), empty.clone()]).unwrap().swap_remove(0);
        assert_eq!(first_result.as_slice::<f32>(), rows(1..=n, 10_000));
        // The result of the first run is an input of the second run, which must not modify it.
        let second_result = append.run(&[Tensor::scalar(3), first_result.clone()]).unwrap().swap_remove(0);
        assert_eq!(first_result.as_slice::<f32>(), rows(1..=n, 10_000));
        assert_eq!(second_result.as_slice::<f32>(), [rows(1..=n, 10_000), rows(1..=3, 10_000)].concat());
    }
}

#[test]
fn appends_only_what_is_adjacent_and_not_read_again() {
    let columns = collecting("[1, 2]", 1, "(1, ?)", "@collect(%i - 1, %next, %last)");
    let x = Tensor::from_slice(&[1, 1], &[9f32]);
    let results = columns.run(&[Tensor::scalar(3), x.clone()]).unwrap();
    assert_eq!(results[0], Tensor::from_slice(&[1, 7], &[9f32, 3.0, 3.0, 2.0, 2.0, 1.0, 1.0]));
    assert_eq!(results[1], x);
    let columns = collecting("[2, 1]", 1, "(2, ?)", "@collect(%i - 1, %next, %last)");
    let results = columns.run(&[Tensor::scalar(2), Tensor::from_slice(&[2, 1], &[8f32, 9.0])]).unwrap();
    assert_eq!(results[0], Tensor::from_slice(&[2, 3], &[8f32, 2.0, 1.0, 9.0, 2.0, 1.0]));
    // A concatenation of a tensor with itself, and a reference cell that retains the rows of the previous iteration.
    let doubled = collecting("[1]", 0, "(?)", "@collect(%i - 1, concatenate((%next, %next)), %last)");
    let results = doubled.run(&[Tensor::scalar(2), Tensor::from_slice::<f32>(&[0], &[])]).unwrap();
    assert_eq!(results[0], Tensor::from_slice(&[6], &[2f32, 2.0, 1.0, 2.0, 2.0, 1.0]));
    let text = r#"#[version = "0.0.5"]
def @collect(%i: int32, %rows: Tensor[(?), int32], %kept: ref(Tensor[(?), int32])) {
  if (%i < 1) { (%rows, ref_read(%kept)) } else {
    ref_write(%kept, %rows);
    @collect(%i - 1, concatenate((%rows, full(%i, shape=[1], dtype="int32"))), %kept)
  }
}
def @main(%n: int32, %x: Tensor[(?), int32]) { @collect(%n, %x, ref(%x)) }"#;
    let results = executor(&module(text)).run(&[Tensor::scalar(4), Tensor::from_slice::<i32>(&[0], &[])]).unwrap();
    assert_eq!(results, [Tensor::from_slice(&[4], &[4, 3, 2, 1]), Tensor::from_slice(&[3], &[4, 3, 2])]);
}

#[test]
fn runs_deeply_nested_tuple() {
    const LEVELS: usize = 100_000;
    let (opening, closing, fields) = ("(".repeat(LEVELS), ",)".repeat(LEVELS), ".0".repeat(LEVELS));
    let ty = format!("{opening}Tensor[(2), float32]{closing}");
    let header = "#[version = \"0.0.5\"]\n";
    let programs = [
        format!("{header}def @main(%x: Tensor[(2), float32], %c: bool) {{ {opening}nn.relu(%x){closing}{fields} }}"),
        format!("{header}def @main(%x: Tensor[(2), float32], %c: bool) {{ {opening}nn.relu(%x){closing} }}"),
        format!(
            "{header}def @main(%x: Tensor[(2), float32], %c: bool) {{
               %0 = if (%c) {{ {opening}nn.relu(%x){closing} }} else {{ {opening}%x{closing} }};
               %0{fields}
             }}"
        ),
        format!(
            "{header}def @f(%t: {ty}) {{ nn.relu(%t{fields}) }}
             def @main(%x: Tensor[(2), float32], %c: bool) {{
               let %cell = ref({opening}%x{closing});
               let %held = ref_read(%cell);
               @f(%held)
             }}"
        ),
    ];
    for text in &programs {
        let inputs = [Tensor::from_slice(&[2], &[-1f32, 2.0]), Tensor::from_bools(&[], &[true])];
        let results = executor(&module(text)).run(&inputs).unwrap();
        assert_eq!(results[0].as_slice::<f32>(), [0.0, 2.0]);
    }
}
