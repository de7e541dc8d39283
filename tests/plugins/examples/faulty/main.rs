//! Backend with exactly one deliberate mistake, selected by its file name: `faulty_swapped_strides.so` swaps the
//! strides. With any other file name, the backend is correct. It implements a few operators on float32, and `add` on
//! integers.

mod compute;
mod convolution;
mod misbehavior;

use byoc_plugin_api::*;
use compute::{Value, evaluate};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

declare_plugin!("faulty", env!("CARGO_PKG_VERSION"));
register!(|context, registry| {
    let mistake = context.path.file_stem().and_then(|file_stem| file_stem.to_str()).unwrap_or_default();
    let mistake = mistake.strip_prefix("faulty_").unwrap_or_default().to_owned();
    misbehavior::init(&mistake)?;
    let services = context.services.clone();
    registry.codegen("faulty", Faulty { mistake: mistake.clone(), services: services.clone() });
    registry.loader("faulty", Faulty { mistake, services });
    Ok(())
});

struct Faulty {
    mistake: String,
    services: Services,
}

impl Faulty {
    fn has_mistake(&self, mistake: &str) -> bool {
        self.mistake == mistake
    }
}

const PATTERNS: &str = "conv_bias: nn.bias_add(nn.conv2d(*, const), const)";
const OPERATORS: [&str; 5] = ["nn.conv2d", "nn.relu", "add", "nn.softmax", "concatenate"];

impl Codegen for Faulty {
    fn describe(&self) -> Result<Description> {
        misbehavior::panic_in(&self.mistake, "describe");
        let mut patterns = PATTERNS.to_owned();
        if self.has_mistake("three_bad_patterns") {
            patterns = format!("a: nn.relu(*\n{PATTERNS}\nb: nn.rleu(*)\nc: nn.relu(*) where\n");
        }
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let about = if self.has_mistake("two_descriptions") {
            format!("described {count} times before")
        } else {
            "at most one deliberate mistake".into()
        };
        Ok(Description { about, patterns, operators: OPERATORS.map(String::from).to_vec(), ..Description::default() })
    }

    fn judge(&self, candidate: &Candidate) -> Verdict {
        misbehavior::panic_in(&self.mistake, "judge");
        for (name, node, graph) in candidate.graph.operators() {
            let types: Vec<&TensorType> = node.inputs.iter().map(|&input| graph.type_of(input)).collect();
            let dtype = types.first().map_or(DType::F32, |ty| ty.dtype);
            let is_integer = name == "add" && matches!(dtype, DType::I8 | DType::I32);
            if dtype != DType::F32 && !is_integer {
                return Verdict::refused(
                    RefusalCode::UnsupportedDtype,
                    format!("{name}: input 0: expected float32, found {dtype}"),
                );
            }
            if types.iter().any(|ty| ty.shape().is_none()) {
                return Verdict::refused(
                    RefusalCode::DynamicDim,
                    format!("{name}: expected known dimensions, found an unknown dimension"),
                );
            }
            let layouts = [("data_layout", "NCHW"), ("kernel_layout", "OIHW")];
            for (key, supported_layout) in layouts {
                let layout = node.text(key).unwrap_or(supported_layout);
                if layout != supported_layout && !self.has_mistake("layout_ignored") {
                    return Verdict::refused(
                        RefusalCode::UnsupportedLayout,
                        format!("attribute {key}: expected {supported_layout}, found {layout}"),
                    );
                }
            }
            let out_layout = node.text("out_layout").unwrap_or_default();
            if !out_layout.is_empty() {
                return Verdict::refused(
                    RefusalCode::UnsupportedLayout,
                    format!("attribute out_layout: expected none, found {out_layout}"),
                );
            }
            let out_dtype = node.text("out_dtype").unwrap_or_default();
            if !["", "float32"].contains(&out_dtype) {
                return Verdict::refused(
                    RefusalCode::UnsupportedDtype,
                    format!("attribute out_dtype: expected float32, found {out_dtype}"),
                );
            }
            if name == "add" && types[0] != types[1] {
                return Verdict::refused(
                    RefusalCode::UnsupportedShape,
                    format!("expected operands of equal types, found {} and {}", types[0], types[1]),
                );
            }
            let axis = node.int("axis");
            if name == "nn.bias_add" && axis != Some(1) {
                let axis = axis.map_or_else(|| "none".to_owned(), |axis| axis.to_string());
                return Verdict::refused(
                    RefusalCode::UnsupportedAttr,
                    format!("attribute axis: expected 1, found {axis}"),
                );
            }
        }
        Verdict::Supported
    }

    fn judge_batch(&self, candidates: &[Candidate]) -> Result<Vec<Verdict>> {
        let mut verdicts: Vec<Verdict> = candidates.iter().map(|candidate| self.judge(candidate)).collect();
        if self.has_mistake("no_verdict") {
            verdicts.pop();
        }
        Ok(verdicts)
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        misbehavior::panic_in(&self.mistake, "compile");
        misbehavior::loop_forever(&self.mistake, "compile");
        misbehavior::compile_until_cancelled(&self.mistake, &self.services)?;
        if self.has_mistake("no_room") {
            return Err(Error::new("expected a region with at most 8 buffers, found 9")
                .hint("use a larger device")
                .code("ResourceLimit"));
        }
        let has_softmax = region.graph.operators().iter().any(|(name, ..)| *name == "nn.softmax");
        if has_softmax && self.has_mistake("no_softmax") {
            return Err("expected at most 0 exponentials, found some".into());
        }
        if has_softmax && self.has_mistake("names_softmax") {
            return Err("nn.softmax: expected a shape with a kernel, found another".into());
        }
        if self.has_mistake("claims_then_refuses") {
            for (name, node, _) in region.graph.operators() {
                let strides = node.ints("strides").unwrap_or_default();
                if strides.iter().any(|&s| s > 1) {
                    return Err(
                        format!("{name}: attribute strides: expected 1 along each axis, found {strides:?}").into()
                    );
                }
            }
        }
        let json = region.graph.to_json();
        let mut blob = format!("{:016x}{json}", checksum(json.as_bytes()));
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        if self.has_mistake("time_in_the_blob") {
            let text = format!("{json} {}", COUNTER.fetch_add(1, Ordering::Relaxed));
            blob = format!("{:016x}{text}", checksum(text.as_bytes()));
        }
        let symbol = if self.has_mistake("other_symbol") { "somebody_else" } else { region.graph.symbol.as_str() };
        let loader = if self.has_mistake("other_loader") { "somebody_else" } else { "faulty" };
        let mut compiled_region = CompiledRegion::new(symbol, loader, blob.into_bytes());
        if self.has_mistake("shared_scratch_one_at_a_time") {
            compiled_region.metadata.push(Attr::new("one_at_a_time", true));
        }
        Ok(compiled_region)
    }

    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        misbehavior::panic_in(&self.mistake, "query");
        match self.has_mistake("answers_everything") {
            true => Ok(Some(key.as_bytes().to_vec())),
            false => Ok(None),
        }
    }
}

impl Loader for Faulty {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        misbehavior::panic_in(&self.mistake, "load");
        misbehavior::loop_forever(&self.mistake, "load");
        let text = String::from_utf8_lossy(region.blob).into_owned();
        let (sum, json) = text.split_at_checked(16).unwrap_or(("", ""));
        let is_intact = u64::from_str_radix(sum, 16) == Ok(checksum(json.as_bytes()));
        let json = json.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ');
        let graph = match Graph::from_json(json) {
            Ok(graph) if is_intact => graph,
            _ if self.has_mistake("damaged_blob_accepted") => Graph::default(),
            _ => {
                return Err(format!(
                    "{}: expected a valid blob, found a corrupt blob of {} bytes",
                    region.symbol,
                    region.blob.len()
                )
                .into());
            }
        };
        misbehavior::log_after_unload(&self.mistake, region.services);
        let mut constants: Vec<Value> = region.constants.iter().map(Value::of_constant).collect();
        if self.has_mistake("stale_weights") {
            // Simulates a cache of packed weights with the shape as its only key.
            static PACKED_CONSTANTS: OnceLock<Mutex<Vec<Value>>> = OnceLock::new();
            let mut packed_constants =
                PACKED_CONSTANTS.get_or_init(Mutex::default).lock().unwrap_or_else(|p| p.into_inner());
            for constant in &mut constants {
                match packed_constants.iter().find(|existing| existing.dims == constant.dims) {
                    Some(existing) => constant.bytes.clone_from(&existing.bytes),
                    None => packed_constants.push(constant.clone()),
                }
            }
        }
        Ok(Box::new(LoadedRegion {
            mistake: self.mistake.clone(),
            graph,
            constants,
            services: region.services.clone(),
            runs: AtomicU64::new(0),
            busy: Mutex::default(),
        }))
    }

    fn query(&self, _: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.mistake == "query_is_an_error" { Err("no such key".into()) } else { Ok(None) }
    }
}

struct LoadedRegion {
    mistake: String,
    graph: Graph,
    constants: Vec<Value>,
    services: Services,
    runs: AtomicU64,
    busy: Mutex<()>,
}

impl LoadedRegion {
    fn has_mistake(&self, mistake: &str) -> bool {
        self.mistake == mistake
    }
}

impl Executable for LoadedRegion {
    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        misbehavior::panic_in(&self.mistake, "prepare");
        if self.has_mistake("zero_size") && inputs.iter().any(|dims| dims.contains(&0)) {
            return Err("expected at least one element, found none".into());
        }
        let mut dims: Vec<Vec<usize>> = self.graph.output_types().filter_map(TensorType::shape).collect();
        if self.graph.outputs.is_empty() {
            dims.push(inputs[0].to_vec());
        }
        if self.has_mistake("wrong_shape") {
            dims[0].reverse();
        }
        if self.has_mistake("one_output_more") {
            dims.push(vec![1]);
        }
        Ok(Prepared::exact(dims).with_workspace(64))
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        misbehavior::panic_in(&self.mistake, "run");
        misbehavior::loop_forever(&self.mistake, "run");
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let inputs: Vec<Value> = call.inputs.iter().map(Value::of_tensor).collect();
        let is_odd = inputs.first().is_some_and(|input| input.dims.iter().product::<usize>() % 2 == 1);
        if self.has_mistake("writes_input") && is_odd && !inputs[0].bytes.is_empty() {
            let address = call.inputs[0].raw().data;
            // SAFETY: deliberately unsound; the host passes guarded copies, which contain the damage.
            unsafe { *address ^= 1 };
        }
        // A per-region lock does not protect data shared by all regions.
        let _scratch_guard = self
            .has_mistake("shared_by_regions")
            .then(|| self.busy.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let inputs = match self.mistake.as_str() {
            "shared_scratch" | "shared_scratch_one_at_a_time" | "shared_by_regions" => copy_through_scratch(inputs),
            _ => inputs,
        };
        let results = evaluate(&self.mistake, &self.graph, &inputs, &self.constants)?;
        for (output, result) in call.outputs.iter_mut().zip(results) {
            let mut bytes = result.bytes;
            if self.has_mistake("reads_past_end") && is_odd && output.dtype() == DType::F32 && bytes.len() >= 4 {
                let input = &call.inputs[0];
                // SAFETY: deliberately unsound; the host passes guarded copies, so the read stays in the process.
                let value_past_end =
                    unsafe { input.raw().data.add(input.bytes().len()).cast::<f32>().read_unaligned() };
                let last_offset = bytes.len() - 4;
                let value =
                    f32::from_ne_bytes(bytes[last_offset..].try_into().expect("expected a last element of 4 bytes"))
                        + value_past_end;
                bytes[last_offset..].copy_from_slice(&value.to_ne_bytes());
            }
            if self.has_mistake("second_run_differs") && run == 1 && !bytes.is_empty() {
                bytes[0] ^= 0x40;
            }
            if self.has_mistake("one_thread_forgotten") && self.services.num_threads() == 1 {
                bytes.fill(0);
            }
            self.write(output, &bytes)?;
        }
        if self.has_mistake("writes_past_workspace") {
            let address = call.workspace.as_mut_ptr();
            // SAFETY: deliberately unsound; the host passes guarded copies, which contain the damage.
            unsafe { address.add(call.workspace.len()).write(7) };
        }
        Ok(())
    }

    fn query(&self, _: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

impl LoadedRegion {
    fn write(&self, output: &mut TensorMut<'_>, bytes: &[u8]) -> Result<()> {
        let is_odd = output.len() % 2 == 1;
        let start = output.raw().data;
        let target = output.bytes_mut();
        if target.len() != bytes.len() {
            return Err(format!("expected an output of {1} bytes, found {0}", bytes.len(), target.len()).into());
        }
        if self.has_mistake("writes_past_end") && is_odd {
            // SAFETY: deliberately unsound; the host passes guarded copies, which contain the damage.
            unsafe { start.add(target.len()).write(7) };
        }
        if self.has_mistake("writes_before_start") && is_odd {
            // SAFETY: deliberately unsound; the host passes guarded copies, which contain the damage.
            unsafe { start.sub(1).write(7) };
        }
        if self.has_mistake("adds_to_output") && bytes.len() >= 4 {
            let old_byte = target[0];
            target.copy_from_slice(bytes);
            target[0] = target[0].wrapping_add(old_byte);
            return Ok(());
        }
        if self.has_mistake("tail_of_odd_sizes") && is_odd {
            let size = bytes.len() - bytes.len().min(4);
            target[..size].copy_from_slice(&bytes[..size]);
            return Ok(());
        }
        if self.has_mistake("threads_lose_the_rest") {
            let threads = self.services.num_threads();
            let part_size = bytes.len() / size_of::<f32>() / threads * size_of::<f32>();
            return self.write_in_parts(target, bytes, threads, part_size, |part| part);
        }
        if self.has_mistake("race") {
            // Each task claims the next part; because of the race, two tasks may claim the same part.
            let next_part = AtomicU64::new(0);
            let part_size = bytes.len().div_ceil(8);
            return self.write_in_parts(target, bytes, 8, part_size, |_| {
                let claimed_part = next_part.load(Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_micros(50));
                next_part.store(claimed_part + 1, Ordering::Relaxed);
                claimed_part as usize
            });
        }
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn write_in_parts(
        &self,
        target: &mut [u8],
        bytes: &[u8],
        parts: usize,
        part_size: usize,
        select_part: impl Fn(usize) -> usize + Sync,
    ) -> Result<()> {
        struct Start(*mut u8);
        // SAFETY: the tasks below write within bounds; two tasks may write the same bytes, which is deliberate.
        unsafe impl Sync for Start {}
        let start = Start(target.as_mut_ptr());
        self.services.parallel_for(parts, |part| {
            let start = &start;
            let start_of_part = (select_part(part) * part_size).min(bytes.len());
            let end_of_part = (start_of_part + part_size).min(bytes.len());
            for (index, &byte) in bytes.iter().enumerate().take(end_of_part).skip(start_of_part) {
                // SAFETY: `index` is less than `bytes.len()`, the size of `target`; `write_volatile` needs no
                // reference.
                unsafe { start.0.add(index).write_volatile(byte) };
            }
        })
    }
}

/// Passes the inputs of a region through one scratch buffer shared by all regions.
fn copy_through_scratch(inputs: Vec<Value>) -> Vec<Value> {
    static SCRATCH: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let lock = || SCRATCH.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let value_of = |input: Value| {
        lock().clone_from(&input.bytes);
        std::thread::yield_now();
        let mut bytes = lock().clone();
        bytes.resize(input.bytes.len(), 0);
        Value { bytes, ..input }
    };
    inputs.into_iter().map(value_of).collect()
}

/// FNV-1a (Fowler, Noll and Vo), 64 bits.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
