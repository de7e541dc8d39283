//! Test harness: regions under construction, compiled and run without a host.

use crate::backend::CCompiler;
use crate::loader::ObjectLoader;
use byoc_plugin_api::*;
use byoc_test_support::plugin::{self, Memory, services};
use byoc_test_support::random::Random;
use serde_json::json;
use std::path::Path;

/// Region under construction, with the values of its inputs.
pub struct Case {
    pub graph: Graph,
    pub constants: Vec<Constant>,
    inputs: Vec<Memory>,
    random: Random,
}

pub fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

impl Case {
    pub fn new() -> Case {
        Case { graph: Graph::new("region_0"), constants: Vec::new(), inputs: Vec::new(), random: Random::new(5) }
    }

    pub fn input_of(&mut self, dtype: DType, shape: &[usize]) -> ValueRef {
        self.inputs.push(Memory::of_floats(&self.random.floats(shape.iter().product())));
        let name = format!("x{}", self.inputs.len());
        ValueRef::of(self.graph.push_input(&name, TensorType::new(dtype, shape)))
    }

    pub fn input(&mut self, shape: &[usize]) -> ValueRef {
        self.input_of(DType::F32, shape)
    }

    pub fn constant(&mut self, shape: &[usize]) -> ValueRef {
        self.constants.push(plugin::floats(shape, &self.random.floats(shape.iter().product())));
        ValueRef::of(self.graph.push_constant(self.constants.len() as u32 - 1, f32s(shape)))
    }

    /// Adds a call with one result.
    pub fn op<const N: usize>(
        &mut self,
        name: &str,
        inputs: [ValueRef; N],
        attrs: Vec<Attr>,
        out: TensorType,
    ) -> ValueRef {
        ValueRef::of(self.graph.push_op(name, inputs, attrs, [out]))
    }

    /// Adds a call whose result has the type of its first operand.
    pub fn elementwise<const N: usize>(&mut self, name: &str, inputs: [ValueRef; N]) -> ValueRef {
        let ty = self.graph.type_of(inputs[0]).clone();
        self.op(name, inputs, Vec::new(), ty)
    }

    pub fn output(&mut self, value: ValueRef) {
        self.graph.outputs.push(value);
    }

    pub fn compile(&self, cache: Option<&Path>) -> CompiledRegion {
        let options = json!({ "threads": 2, "cache_dir": cache.map(|p| p.to_str().unwrap().to_owned()) });
        let region = Region { graph: &self.graph, constants: &self.constants, options: &options };
        CCompiler { services: services(1) }.compile(&region).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a compiled region once; returns its first result.
    pub fn run(&self, compiled_region: &CompiledRegion, threads: usize) -> Vec<f32> {
        let services = services(threads);
        let request = LoadRequest {
            symbol: &self.graph.symbol,
            blob: &compiled_region.blob,
            constants: &self.constants,
            services: &services,
            options: &json!({}),
        };
        let executable = ObjectLoader.load(&request).unwrap_or_else(|error| panic!("{error}"));
        let types = self.graph.inputs.iter().map(|input| input.ty.clone());
        let inputs: Vec<_> = types.zip(self.inputs.iter().cloned()).collect();
        let outputs: Vec<TensorType> = self.graph.output_types().cloned().collect();
        plugin::run(&*executable, &inputs, &outputs, 1)[0].floats()
    }
}
