//! Per-region checks of a quantized network: device calls are compared with naive loops, C code with the plugin.

use super::{Fixture, build_from_files};
use byoc::driver::{BuildOptions, CompiledRegion, build};
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::plugin::to_graph::constant_handle;
use byoc::runtime::session::Session;
use byoc_ir::tensor::Tensor;
use byoc_plugin_api::{
    Call, Codegen, Constant, Executable, Graph, LoadRequest, Loader, Node, NodeKind, Region, TensorMut, TensorRef,
    TensorType, ValueRef,
};
use byoc_test_support::random::Random;
use byoc_test_support::workspace;
use serde_json::Value;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

/// Builds the model for the device and checks all of its regions, which must make `calls_wanted` device calls in total.
pub fn check(fixture: &Fixture, model: &Path, calls_wanted: usize) {
    let session = Session::new(&[fixture.plugins.path().to_owned()], 2).unwrap();
    let loaded_model = frontend::load(model, &LoadOptions::default()).unwrap_or_else(|e| panic!("{e:?}"));
    let options = BuildOptions { backends: vec!["nuc_fpga".into()], ..BuildOptions::default() };
    let output = build(&session, loaded_model, &options, &mut |_| {}).unwrap_or_else(|e| panic!("{e:?}"));
    let constants: Vec<Arc<Tensor>> = output.compiled.constants.iter().cloned().map(Arc::new).collect();
    let (codegen, _) = session.registry.codegen("nuc_fpga").unwrap_or_else(|e| panic!("{e:?}"));
    let device = Device {
        session: &session,
        codegen: &*codegen,
        loader: &*session.registry.loader("nuc_fpga", "nuc_fpga").unwrap(),
    };
    let regions: Vec<&CompiledRegion> = output.compiled.regions.iter().flatten().collect();
    assert!(regions.len() > 5);
    let mut calls = 0;
    for (index, region) in regions.into_iter().enumerate() {
        let handles: Vec<Constant> =
            region.constants.iter().map(|&i| constant_handle("", &constants[i as usize])).collect();
        let graph = Graph::from_json(&region.graph.to_string()).unwrap();
        calls += device.check_calls(&graph, &handles);
        device.check_source(fixture, index, region, &graph, &handles);
    }
    assert_eq!(calls, calls_wanted);
}

struct Device<'a> {
    session: &'a Session,
    codegen: &'a dyn Codegen,
    loader: &'a dyn Loader,
}

/// Tensor data in 64-bit words, which are aligned for every element type used here.
type Words = Vec<u64>;

impl Device<'_> {
    fn load(&self, symbol: &str, blob: &[u8], constants: &[Constant]) -> Box<dyn Executable> {
        let services = &self.session.services;
        self.loader.load(&LoadRequest { symbol, blob, constants, options: &Value::Null, services }).unwrap()
    }

    /// Checks each convolution and dense layer of a region separately, with its weights and with data over the full
    /// int8 range: the int32 results of the device call must equal those of a naive loop. Returns the number of layers.
    fn check_calls(&self, region: &Graph, constants: &[Constant]) -> usize {
        let layers = layers_of(region);
        for (index, (name, node, data, weight)) in layers.iter().enumerate() {
            let constant = &constants[*weight as usize];
            let mut graph = Graph::new("layer");
            let weight_type = TensorType::new(constant.dtype(), constant.shape());
            let (x, w) = (graph.push_input("x", data.clone()), graph.push_constant(0, weight_type));
            let attrs = node
                .attrs
                .iter()
                .filter(|attr| **name == *"nn.conv2d" || attr.key == "units" || attr.key == "out_dtype");
            let y = graph.push_op(name, [ValueRef::of(x), ValueRef::of(w)], attrs.cloned(), [node.outputs[0].clone()]);
            graph.outputs.push(ValueRef::of(y));
            let constants = [constant.clone()];
            let compiled =
                self.codegen.compile(&Region { graph: &graph, constants: &constants, options: &Value::Null }).unwrap();
            let inputs = random_words(data, index as u64);
            let memory =
                run(&*self.load("layer", &compiled.blob, &constants), &graph, std::slice::from_ref(&inputs)).remove(0);
            let expected = compute_accumulators(node, data, bytes_of(&inputs), constant);
            assert!(expected.iter().any(|&sum| sum != 0), "{name}: expected a nonzero result");
            let actual = bytes_of(&memory).chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap()));
            assert!(actual.take(expected.len()).eq(expected), "{name} {index} of {}", region.symbol);
        }
        layers.len()
    }

    /// Checks that the C code of a region compiles separately, links with the sample driver, and produces results that
    /// are bit-identical to the plugin's.
    fn check_source(
        &self,
        fixture: &Fixture,
        index: usize,
        region: &CompiledRegion,
        graph: &Graph,
        handles: &[Constant],
    ) {
        let executable = self.load(&region.symbol, &region.blob, handles);
        let inputs: Vec<Words> =
            graph.inputs.iter().zip(0..).map(|(input, seed)| random_words(&input.ty, seed)).collect();
        let memory = run(&*executable, graph, &inputs);

        let (file, object) = (fixture.path("region.c"), fixture.path(&format!("region{index}.so")));
        std::fs::write(&file, &region.source.as_ref().unwrap().text).unwrap();
        let sample = workspace().join("plugins/nuc_fpga/samples/driver.c");
        build_from_files(&[Path::new(&file), &sample], Path::new(&object));
        // SAFETY: neither the C code generated by the plugin nor the sample driver has constructors or destructors.
        let library = unsafe { libloading::Library::new(&object) }.unwrap();
        type Run = unsafe extern "C" fn(*const *const c_void, *const *mut c_void, *const *const c_void, *mut c_void);
        // SAFETY: the plugin defines the function of every region with the signature `Run`.
        let function = unsafe { library.get::<Run>(region.symbol.as_bytes()) }.unwrap();
        let inputs: Vec<*const c_void> = inputs.iter().map(|buffer| buffer.as_ptr().cast()).collect();
        let constants: Vec<*const c_void> = handles.iter().map(|c| c.bytes().as_ptr().cast()).collect();
        let mut c_outputs: Vec<Words> = memory.iter().map(|buffer| vec![0; buffer.len()]).collect();
        let results: Vec<*mut c_void> = c_outputs.iter_mut().map(|buffer| buffer.as_mut_ptr().cast()).collect();
        let mut workspace = Workspace::of(&*executable, graph);
        // SAFETY: `inputs`, `results`, `constants` and `workspace` have the sizes that `graph` and `prepare` state for
        // the region, and their owners outlive the call.
        unsafe {
            function(inputs.as_ptr(), results.as_ptr(), constants.as_ptr(), workspace.bytes().as_mut_ptr().cast())
        };
        assert!(c_outputs == memory, "{}", region.symbol);
        assert!(
            memory.iter().any(|buffer| buffer.iter().any(|&element| element != 0)),
            "{}: expected a nonzero result",
            region.symbol
        );
    }
}

/// Layer executed by the device: operator, node, data type, and index of the weight constant.
type Layer<'g> = (&'static str, &'g Node, TensorType, u32);

fn layers_of(region: &Graph) -> Vec<Layer<'_>> {
    let mut layers = Vec::new();
    for node in &region.nodes {
        match node.as_composite() {
            None => layers.extend(layer_of(region, node, &|_| None)),
            Some((_, body)) => {
                let constant_input = |input: u32| constant_of(region, node.inputs[input as usize]);
                layers.extend(body.nodes.iter().filter_map(|inner| layer_of(body, inner, &constant_input)));
            }
        }
    }
    layers
}

/// Returns the layer computed by a node, if any. `constant_input` maps an input of `graph` to the index of its bound
/// constant.
fn layer_of<'g>(graph: &Graph, node: &'g Node, constant_input: &dyn Fn(u32) -> Option<u32>) -> Option<Layer<'g>> {
    let name = match node.op()? {
        "nn.conv2d" | "qnn.conv2d" => "nn.conv2d",
        "nn.dense" | "qnn.dense" => "nn.dense",
        _ => return None,
    };
    let weight = node.inputs[1];
    let index = match graph.node(weight.node).kind {
        NodeKind::Input(input) => constant_input(input),
        _ => constant_of(graph, weight),
    };
    Some((name, node, graph.type_of(node.inputs[0]).clone(), index.expect("expected a constant weight")))
}

fn constant_of(graph: &Graph, value: ValueRef) -> Option<u32> {
    match graph.node(value.node).kind {
        NodeKind::Constant(index) => Some(index),
        _ => None,
    }
}

/// Computes the int32 accumulators with naive loops, for zero points of 0, one group and symmetric padding.
fn compute_accumulators(node: &Node, data: &TensorType, x: &[u8], weight: &Constant) -> Vec<i32> {
    let (xs, ws, w) = (data.shape().unwrap(), weight.shape(), weight.bytes());
    let product = |x: u8, w: u8| i32::from(x as i8) * i32::from(w as i8);
    if ws.len() == 2 {
        let dot = |x: &[u8], w: &[u8]| x.iter().zip(w).map(|(&x, &w)| product(x, w)).sum::<i32>();
        return x.chunks_exact(ws[1]).flat_map(|x| w.chunks_exact(ws[1]).map(move |w| dot(x, w))).collect();
    }
    assert_eq!(node.int("groups"), Some(1));
    let (padding, strides) = (node.ints("padding").unwrap(), node.ints("strides").unwrap());
    let out = node.outputs[0].shape().unwrap();
    let mut products = Vec::new();
    for n in 0..out[0] {
        for o in 0..out[1] {
            for (r, c) in (0..out[2]).flat_map(|r| (0..out[3]).map(move |c| (r, c))) {
                let mut sum = 0;
                for (i, v, u) in
                    (0..ws[1]).flat_map(|i| (0..ws[2]).flat_map(move |v| (0..ws[3]).map(move |u| (i, v, u))))
                {
                    let row = (r * strides[0] as usize + v).wrapping_sub(padding[0] as usize);
                    let column = (c * strides[1] as usize + u).wrapping_sub(padding[1] as usize);
                    if row < xs[2] && column < xs[3] {
                        let (x_at, w_at) = (
                            ((n * xs[1] + i) * xs[2] + row) * xs[3] + column,
                            ((o * ws[1] + i) * ws[2] + v) * ws[3] + u,
                        );
                        sum += product(x[x_at], w[w_at]);
                    }
                }
                products.push(sum);
            }
        }
    }
    products
}

fn bytes_of(buffer: &Words) -> &[u8] {
    // SAFETY: `buffer` owns `buffer.len() * 8` initialized bytes and stays borrowed for the lifetime of the slice.
    unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast(), buffer.len() * 8) }
}

fn size_of_type(ty: &TensorType) -> usize {
    ty.shape().unwrap().iter().product::<usize>() * ty.dtype.size()
}

fn random_words(ty: &TensorType, seed: u64) -> Words {
    let mut random = Random::new(seed);
    (0..size_of_type(ty).div_ceil(8)).map(|_| random.bits()).collect()
}

/// Workspace aligned to 64 bytes.
struct Workspace {
    memory: Vec<u8>,
    size: usize,
    plan: u64,
}

impl Workspace {
    fn of(executable: &dyn Executable, graph: &Graph) -> Workspace {
        let shapes: Vec<Vec<usize>> = graph.inputs.iter().map(|input| input.ty.shape().unwrap()).collect();
        let dims: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let plan = executable.prepare(&dims).unwrap();
        Workspace { memory: vec![0; plan.workspace + 64], size: plan.workspace, plan: plan.plan }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let alignment_padding = (64 - self.memory.as_ptr() as usize % 64) % 64;
        &mut self.memory[alignment_padding..alignment_padding + self.size]
    }
}

/// Runs a region on the given inputs; returns its outputs.
fn run(executable: &dyn Executable, graph: &Graph, inputs: &[Words]) -> Vec<Words> {
    let mut workspace = Workspace::of(executable, graph);
    let shapes: Vec<Vec<usize>> = graph.inputs.iter().map(|input| input.ty.shape().unwrap()).collect();
    let inputs: Vec<TensorRef<'_>> = graph
        .inputs
        .iter()
        .zip(&shapes)
        .zip(inputs)
        .map(|((input, shape), buffer)| {
            TensorRef::new(input.ty.dtype, shape, &bytes_of(buffer)[..size_of_type(&input.ty)])
        })
        .collect();
    let outputs: Vec<&TensorType> = graph.output_types().collect();
    let mut shapes: Vec<Vec<usize>> = outputs.iter().map(|ty| ty.shape().unwrap()).collect();
    let mut memory: Vec<Words> = outputs.iter().map(|ty| vec![0; size_of_type(ty).div_ceil(8)]).collect();
    let mut results: Vec<TensorMut<'_>> = outputs
        .iter()
        .zip(&mut shapes)
        .zip(&mut memory)
        .map(|((ty, shape), buffer)| {
            // SAFETY: the buffer was allocated above with at least `size_of_type(ty)` bytes, and this function does not
            // access it before the run ends.
            let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), size_of_type(ty)) };
            TensorMut::new(ty.dtype, shape, bytes)
        })
        .collect();
    let plan = workspace.plan;
    executable.run(Call { inputs: &inputs, outputs: &mut results, workspace: workspace.bytes(), plan }).unwrap();
    memory
}
