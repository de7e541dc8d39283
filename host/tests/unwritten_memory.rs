//! Programs that read memory before they write it: no run may see the tensors of an earlier run.

use byoc::runtime::exec::{Executor, OutputDims, Pool, Prepared, Program, Region, RegionCall};
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{Tensor, TensorViewMut};
use serde_json::{Value, json};
use std::sync::Arc;

/// Number of elements of the tensors in these programs.
const LEN: usize = 16;

fn tensor_type(len: usize) -> Value {
    json!(["float32", len])
}

fn value() -> Value {
    json!({ "type": tensor_type(LEN), "place": "value" })
}

fn arena(offset: usize, len: usize) -> Value {
    json!({ "type": tensor_type(len), "place": { "arena": offset } })
}

fn handle() -> Value {
    json!({ "type": null, "place": "value" })
}

fn kernel(op: &str, inputs: &[u32], out: u32) -> Value {
    json!({ "kernel": { "op": op, "args": inputs, "outs": [out] } })
}

fn ret(value: u32) -> Value {
    json!({ "return": { "values": [value] } })
}

/// A function from one tensor to another. Register 0 is its parameter, and register 1 a value.
fn function(name: &str, registers: Vec<Value>, code: Vec<Value>) -> Value {
    let end = |register: &Value| {
        let offset = register["place"]["arena"].as_u64()?;
        Some(offset + register["type"][1].as_u64().map_or(1, |len| 4 * len))
    };
    let arena = registers.iter().filter_map(end).max().unwrap_or(0).next_multiple_of(64);
    let registers: Vec<Value> = [value(), value()].into_iter().chain(registers).collect();
    json!({ "name": name, "params": 1, "results": 1, "arena": arena, "registers": registers, "code": code })
}

fn program(functions: Vec<Value>) -> Value {
    json!({
        "version": 2, "entry": 0, "sources": [], "constants": [],
        "inputs": [{ "name": "x", "type": tensor_type(LEN) }],
        "outputs": [{ "name": "y", "type": tensor_type(LEN) }],
        "regions": [{
            "symbol": "region", "backend": "test", "loader": "test", "fallback": 1, "origins": [], "flops": 0,
            "inputs": [tensor_type(LEN)], "outputs": [tensor_type(LEN)],
        }],
        "functions": functions,
    })
}

fn load(program: Value, region: Option<Arc<dyn Region>>) -> Result<Executor, Diagnostic> {
    let program: Program = serde_json::from_value(program).unwrap();
    Executor::new(program, Vec::new(), vec![region], Arc::new(Pool::new(1).unwrap()))
}

fn entry(registers: Vec<Value>, code: Vec<Value>) -> Value {
    program(vec![function("main", registers, code), function("host", vec![], vec![ret(0)])])
}

fn check_rejected(route: &str, program: Value) {
    let error = load(program, None).err().unwrap_or_else(|| panic!("{route}: expected an error, found a program"));
    assert_eq!(error.code, codes::runtime::BAD_PROGRAM, "{route}: {error}");
    assert!(error.message.contains("to be written before it is read"), "{route}: {error}");
}

fn check_accepted(route: &str, program: Value) {
    load(program, None).unwrap_or_else(|error| panic!("{route}: {error}"));
}

#[test]
fn rejects_reads_of_unwritten_memory_by_every_route() {
    let write = kernel("copy", &[0], 2);
    let one = || vec![arena(0, LEN)];
    let alias = json!({ "alias": { "op": "reshape", "attrs": { "newshape": [LEN] }, "args": [2], "outs": [3] } });
    let in_place = json!({ "kernel": { "op": "nn.relu", "args": [2], "outs": [3], "in_place": 0 } });
    let instrs = [
        ("kernel", kernel("copy", &[2], 1)),
        ("second operand", kernel("add", &[0, 2], 1)),
        ("tuple", json!({ "kernel": { "op": "concatenate", "args": [[0, 2]], "outs": [5] } })),
        ("move", json!({ "move": { "from": 2, "to": 1 } })),
        ("region", json!({ "region": { "region": 0, "inputs": [2], "outs": [1] } })),
        ("call", json!({ "call": { "function": 1, "args": [2], "outs": [1] } })),
        ("tail call", json!({ "tail_call": { "function": 1, "args": [2] } })),
        ("closure", json!({ "closure": { "function": 1, "captures": [2], "out": 4 } })),
        ("cell", json!({ "ref_new": { "values": [2], "out": 4 } })),
        ("data", json!({ "construct": { "tag": 0, "values": [2], "out": 4 } })),
        ("output", ret(2)),
    ];
    let wide = json!({ "type": tensor_type(2 * LEN), "place": "value" });
    let registers = || vec![arena(0, LEN), arena(0, LEN), handle(), wide.clone()];
    for (route, instr) in instrs {
        check_rejected(route, entry(registers(), vec![instr.clone(), write.clone(), ret(0)]));
        check_accepted(route, entry(registers(), vec![write.clone(), kernel("copy", &[0], 1), instr, ret(0)]));
    }
    for (route, instr) in [("alias", alias), ("in place", in_place)] {
        check_rejected(route, entry(registers(), vec![instr.clone(), write.clone(), ret(3)]));
        check_accepted(route, entry(registers(), vec![write.clone(), instr, ret(3)]));
    }

    // An iteration does not read what the previous one has written, nor a call what its caller has.
    let iteration =
        vec![kernel("copy", &[2], 1), write.clone(), json!({ "tail_call": { "function": 0, "args": [1] } })];
    check_rejected("loop", entry(one(), iteration));
    let callee = function("callee", one(), vec![ret(2)]);
    let call = json!({ "call": { "function": 1, "args": [0], "outs": [1] } });
    check_rejected("frame", program(vec![function("main", one(), vec![write.clone(), call, ret(1)]), callee.clone()]));
    let region = json!({ "region": { "region": 0, "inputs": [0], "outs": [1] } });
    check_rejected(
        "host program of a region",
        program(vec![function("main", one(), vec![write, region, ret(1)]), callee]),
    );
}

#[test]
fn follows_every_path_to_a_read() {
    let condition = json!({ "type": ["bool"], "place": { "arena": 64 } });
    let registers = || vec![arena(0, LEN), condition.clone(), handle()];
    let write = || kernel("copy", &[0], 2);
    let branch = |otherwise: u32| json!({ "branch": { "cond": 3, "otherwise": otherwise } });
    let jump = |to: u32| json!({ "jump": { "to": to } });
    let comparisons = json!({ "type": ["bool", LEN], "place": "value" });
    let compare = [("greater", vec![0, 0], 5), ("any", vec![5], 3)];
    let compare = compare.map(|(op, inputs, out)| kernel(op, &inputs, out));
    let with = |code: &[Value]| {
        let registers = registers().into_iter().chain([comparisons.clone()]).collect();
        entry(registers, compare.iter().chain(code).cloned().collect())
    };
    check_rejected("condition", entry(registers(), vec![branch(1), ret(0)]));
    // Instructions 0 and 1 compute the condition.
    check_rejected("one side", with(&[branch(4), write(), ret(2)]));
    check_rejected("other side", with(&[branch(4), jump(5), write(), ret(2)]));
    check_accepted("both sides", with(&[branch(5), write(), jump(6), write(), ret(2)]));
    check_accepted("before", with(&[write(), branch(5), jump(5), ret(2)]));
    check_rejected("jump over", with(&[jump(4), write(), ret(2)]));
    check_accepted("unreachable", with(&[jump(4), kernel("copy", &[2], 1), ret(0)]));
    check_accepted("side that ends", with(&[branch(4), ret(0), write(), ret(2)]));
    let construct = json!({ "construct": { "tag": 0, "values": [], "out": 4 } });
    let test = json!({ "test": { "value": 4, "tag": 0, "otherwise": 5 } });
    check_rejected("clause", with(&[construct, test, write(), ret(2)]));
}

#[test]
fn follows_every_byte_of_a_read() {
    let halves = || vec![arena(0, 2 * LEN), arena(0, LEN), arena(64, LEN), arena(64, 1)];
    let read = || {
        json!({ "kernel": { "op": "strided_slice", "attrs": { "begin": [0], "end": [16], "axes": [0] },
        "args": [2], "outs": [1] } })
    };
    let (first, second) = (|| kernel("copy", &[0], 3), || kernel("copy", &[0], 4));
    let scalar = json!({ "kernel": { "op": "strided_slice", "attrs": { "begin": [0], "end": [1], "axes": [0] },
        "args": [0], "outs": [5] } });
    check_rejected("first half", entry(halves(), vec![first(), read(), ret(1)]));
    check_rejected("second half", entry(halves(), vec![second(), read(), ret(1)]));
    check_rejected("one byte more", entry(halves(), vec![first(), scalar, read(), ret(1)]));
    check_accepted("both halves", entry(halves(), vec![second(), first(), read(), ret(1)]));
}

#[test]
fn follows_device_memory() {
    let device =
        |offset: usize| json!({ "type": tensor_type(LEN), "place": { "device": { "space": 0, "offset": offset } } });
    let with = |code: Vec<Value>| {
        let mut program = entry(vec![device(0), device(0)], code);
        program["spaces"] = json!([{ "backend": "test" }]);
        program["regions"][0]["space"] = json!(0);
        program["functions"][0]["device_arenas"] = json!([4096]);
        program
    };
    let copy = |from: u32, to: u32| json!({ "copy": { "from": from, "to": to } });
    let region = |input: u32, out: u32| json!({ "region": { "region": 0, "inputs": [input], "outs": [out] } });
    check_rejected("copy", with(vec![copy(2, 1), ret(1)]));
    check_rejected("region", with(vec![region(2, 1), ret(1)]));
    check_accepted("region", with(vec![copy(0, 2), region(2, 1), ret(1)]));
    // A device may read the tensor of register 2 in host memory. Then it is not at the place of register 3.
    check_rejected("shared tensor", with(vec![copy(0, 2), region(2, 1), region(3, 1), ret(1)]));
    check_accepted("copied tensor", with(vec![copy(0, 2), copy(2, 1), region(3, 1), ret(1)]));
}

#[test]
fn bounds_the_work_at_branches() {
    // Each branch would visit all ranges: tensors of one element, 64 bytes apart.
    let count = 2100;
    let mut registers: Vec<Value> = (0..count).map(|i| arena(64 * i, 1)).collect();
    registers.push(handle());
    let handle = 2 + count as u32;
    let mut code: Vec<Value> = (0..count as u32)
        .map(|i| {
            json!({ "kernel": { "op": "strided_slice", "attrs": { "begin": [0], "end": [1], "axes": [0] },
            "args": [0], "outs": [2 + i] } })
        })
        .collect();
    code.push(json!({ "construct": { "tag": 0, "values": [], "out": handle } }));
    let end = 2 * count + 1;
    code.extend((0..count).map(|_| json!({ "test": { "value": handle, "tag": 0, "otherwise": end } })));
    code.push(ret(0));
    let error = load(entry(registers, code), None).err().unwrap();
    assert!(error.message.contains("ranges of written memory"), "{error}");
}

/// Region that writes nothing but its workspace, whose previous contents become its result.
struct Leaking {
    exact: bool,
    returns_workspace: bool,
}

impl Region for Leaking {
    fn prepare(&self, _: &[&[usize]]) -> Result<Prepared, Diagnostic> {
        let outputs = vec![OutputDims { dims: [LEN].into_iter().collect(), exact: self.exact }];
        Ok(Prepared { outputs, workspace: 4 * LEN, ..Prepared::default() })
    }

    fn run(&self, call: RegionCall<'_, '_>) -> Result<(), Diagnostic> {
        if self.returns_workspace {
            call.outputs[0].data.copy_from_slice(call.workspace);
        }
        call.workspace.copy_from_slice(call.inputs[0].data);
        Ok(())
    }

    fn needs_zeroed_memory(&self) -> bool {
        true
    }
}

#[test]
fn regions_from_files_get_zeroed_memory() {
    let call = json!({ "region": { "region": 0, "inputs": [2], "outs": [3] } });
    // The result has the place of a tensor that the previous run left.
    let fixed = entry(
        vec![arena(0, LEN), arena(64, LEN)],
        vec![kernel("copy", &[0], 2), call, kernel("copy", &[3], 1), kernel("copy", &[0], 3), ret(1)],
    );
    let call = json!({ "region": { "region": 0, "inputs": [0], "outs": [1] } });
    let direct = entry(vec![], vec![call.clone(), ret(1)]);
    let mut dynamic = entry(vec![], vec![call, ret(1)]);
    for ty in ["inputs", "outputs"] {
        dynamic[ty][0]["type"] = json!(["float32", "n"]);
        dynamic["regions"][0][ty][0] = json!(["float32", "n"]);
    }
    for function in 0..2 {
        for register in 0..2 {
            dynamic["functions"][function]["registers"][register]["type"] = json!(["float32", "n"]);
        }
    }
    for (name, program, exact) in [("fixed", fixed, true), ("direct", direct, true), ("dynamic", dynamic, false)] {
        for returns_workspace in [false, true] {
            let executor = load(program.clone(), Some(Arc::new(Leaking { exact, returns_workspace }))).unwrap();
            for secret in [42.0f32, 7.0, 1.0] {
                let input = Tensor::from_slice(&[LEN], &[secret; LEN]);
                let results = executor.run(std::slice::from_ref(&input)).unwrap();
                assert_eq!(results[0].as_slice::<f32>(), [0.0; LEN], "{name}, workspace: {returns_workspace}");
                let mut memory = Tensor::from_slice(&[LEN], &[secret; LEN]).bytes().to_vec();
                let output = TensorViewMut { dtype: input.dtype(), shape: &[LEN], data: &mut memory };
                executor.run_into(std::slice::from_ref(&input), &mut [output], None, &Default::default()).unwrap();
                assert_eq!(memory, [0; 4 * LEN], "{name}, workspace: {returns_workspace}, caller's memory");
            }
        }
    }
}
