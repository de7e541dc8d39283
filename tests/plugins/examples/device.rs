//! Simulated device with separate memory and threads, for tests of the host. It computes with the host's reference
//! kernels, after a delay that a file beside the library specifies.

use byoc_plugin_api::device::{
    BufferHandle, Completion, DEVICE_LOST, DeviceMemory, HostBytes, MEMORY_KEY, MemoryKey, Transfer, WORKSPACE_KEY,
    answer_memory, dependencies, submit, workspace,
};
use byoc_plugin_api::{
    Attr, AttrValue, BackendOption, Call, Candidate, Codegen, CompiledRegion, DESCRIBE_KEY, DEVICES_KEY, DType,
    Description, Device, DeviceInfo, Error, Estimate, Executable, Graph, IF, LoadRequest, Loader, NodeKind, Prepared,
    RefusalCode, Region, Result, Services, Span, Tensor, TensorMut, TensorRef, ValueRef, Verdict, WHILE, run_options,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

byoc_plugin_api::declare_plugin!("device", "1.0.0");
byoc_plugin_api::register!(|context, registry| {
    let path = context.path.with_extension("json");
    let text = if path.exists() { std::fs::read_to_string(&path)? } else { "{}".to_owned() };
    let config: Config = serde_json::from_str(&text)?;
    registry.codegen("device", Backend(config.clone()));
    registry.loader(
        "device",
        DeviceLoader { config, lost: Arc::default(), first: OnceLock::new(), second: OnceLock::new() },
    );
    Ok(())
});

/// DLPack device type `kDLExtDev`, for devices without a dedicated code.
const EXTENSION: i32 = 12;

/// Contents of the configuration file beside the library.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// Duration of a run in milliseconds.
    milliseconds: u64,
    /// True if the device serves one run at a time.
    one_run: bool,
    /// Blob format version.
    format: i64,
    /// Maximum number of operators in a region; 0 for no limit.
    max_operators: usize,
    /// True if each of the two devices is a separate backend with memory; the first lacks `nn.relu`, the second lacks
    /// `add`.
    per_device: bool,
    /// True if regions may contain branches.
    control_flow: bool,
    /// True if regions may contain while loops.
    loops: bool,
    /// True if a region's first output may share the memory of its first input.
    in_place: bool,
    /// True if the device offers page-locked memory and reads host memory in place.
    shares_memory: bool,
    /// Size in bytes of each run's workspace in device memory.
    workspace: usize,
    /// Verdicts that contain estimates: `region` for verdicts on regions, `parts` for verdicts on operators.
    estimates: String,
    /// Simulated fault. `lost`: a run reports that the device is gone; `hang`: a run never ends; `full`: memory is
    /// exhausted; `early`: a run is reported as complete too early; `unordered`: a run does not wait for the runs that
    /// it depends on; `past_end`: a run writes a byte past the end of an output; `host_only`: there is no device
    /// memory; `workspace`: a run writes a byte past the end of its workspace; `shared`: a buffer that should share
    /// host memory has its own, zeroed memory; `branch`: an `if` takes the wrong branch; `state`: a loop does not
    /// change the last value of its state.
    fault: String,
}

struct Backend(Config);

impl Backend {
    /// Describes the backend, which supports one additional operator if the option `wide` is set.
    fn description(&self, options: &Value) -> Description {
        let is_wide = options["backend_options"]["wide"] == "true";
        let operators = ["nn.conv2d", "nn.bias_add", "nn.relu", "add", "multiply", "nn.max_pool2d", "tanh", "nn.dense"];
        let option = |about: &str, values: &[&str], load| BackendOption {
            about: about.into(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
            load,
            ..BackendOption::default()
        };
        let level = BackendOption { run: true, ..option("Level of detail of a run", &["low", "high"], false) };
        Description {
            about: "host reference kernels on separate device memory".into(),
            operators: operators.into_iter().chain(is_wide.then_some("sigmoid")).map(String::from).collect(),
            device_memory: true,
            per_device: self.0.per_device,
            control_flow: self.0.control_flow,
            loops: self.0.loops,
            options: [
                ("wide".to_owned(), option("Support for an additional operator", &["false", "true"], false)),
                ("fault".to_owned(), option("Simulated device failure", &["none", "lost"], true)),
                ("level".to_owned(), level),
            ]
            .into(),
            ..Description::default()
        }
    }
}

impl Backend {
    fn estimate(&self, operators: u64) -> Estimate {
        let time = 1_000_000 * self.0.milliseconds * operators;
        Estimate { nanoseconds: Some(time), launches: Some(operators), ..Estimate::default() }
    }
}

impl Codegen for Backend {
    fn describe(&self) -> Result<Description> {
        Ok(self.description(&Value::Null))
    }

    fn accept_region(&self, region: &Candidate) -> Verdict {
        let max_operators = self.0.max_operators;
        let operators = region.graph.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Op(_))).count();
        if max_operators > 0 && operators > max_operators {
            return Verdict::split(max_operators);
        }
        match self.0.estimates == "region" {
            true => Verdict::estimated(&self.estimate(operators as u64)),
            false => Verdict::Supported,
        }
    }

    /// Refuses `multiply` unless the option `wide` is set, and operators that a device lacks.
    fn judge(&self, candidate: &Candidate) -> Verdict {
        let attr = candidate.attrs.iter().find(|attr| attr.key == "options").map(|attr| &attr.value);
        let options = match attr {
            Some(AttrValue::Str(text)) => serde_json::from_str(text).unwrap_or_default(),
            _ => Value::Null,
        };
        let refuse = |detail: &str| Verdict::refused(RefusalCode::UnsupportedOp, detail);
        match (&*candidate.name, options["device"].as_str()) {
            ("nn.relu", Some("0")) if self.0.per_device => {
                return refuse("the first device does not support nn.relu");
            }
            ("add", Some("1")) if self.0.per_device => {
                return refuse("the second device does not support add");
            }
            _ => {}
        }
        if matches!(&*candidate.name, "device.if" | "device.while") {
            let description = self.description(&options);
            // Nested branches and the operators of loop conditions are also supported in control flow.
            let is_supported = |name: &str| {
                matches!(name, IF | "less" | "logical_and") || description.operators.iter().any(|known| known == name)
            };
            let operators = candidate.graph.operators();
            return match operators.iter().find(|(name, ..)| !is_supported(name)) {
                Some((name, ..)) => refuse(&format!("{name} in control flow is not supported")),
                None => Verdict::Supported,
            };
        }
        match &*candidate.name {
            "multiply" if options["backend_options"]["wide"] != "true" => {
                Verdict::refused(RefusalCode::UnsupportedOp, "expected the option wide=true, found wide=false")
                    .hint("set device.wide=true")
            }
            _ if self.0.estimates == "parts" => Verdict::estimated(&self.estimate(1)),
            _ => Verdict::Supported,
        }
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(match key {
            DESCRIBE_KEY => Some(self.description(&serde_json::from_slice(data)?).to_json().into_bytes()),
            DEVICES_KEY => Some(DeviceInfo::list_to_json(&[
                DeviceInfo { id: "0".into(), name: "first".into(), memory: 1 << 30, about: "float32".into() },
                DeviceInfo { id: "1".into(), name: "second, without memory".into(), ..DeviceInfo::default() },
            ])),
            _ => None,
        })
    }

    fn compile(&self, region: &Region<'_>) -> Result<CompiledRegion> {
        let mut compiled_region = CompiledRegion::new(&region.graph.symbol, "device", region.graph.to_json());
        compiled_region.metadata.push(Attr::new("format", self.0.format));
        if self.0.in_place {
            let in_place_pair = AttrValue::List(vec![AttrValue::Int(0), AttrValue::Int(0)].into());
            compiled_region.metadata.push(Attr::new("in_place", AttrValue::List(vec![in_place_pair].into())));
        }
        Ok(compiled_region)
    }
}

struct DeviceLoader {
    config: Config,
    lost: Arc<AtomicBool>,
    /// Encoded reply to the memory query for each device.
    first: OnceLock<Vec<u8>>,
    second: OnceLock<Vec<u8>>,
}

impl Loader for DeviceLoader {
    fn load(&self, region: &LoadRequest<'_>) -> Result<Box<dyn Executable>> {
        let mut graph = Graph::from_json(&String::from_utf8_lossy(region.blob))?;
        let mut config = self.config.clone();
        corrupt_control_flow(&mut graph, &config.fault);
        if let Some(fault) = region.options["backend_options"]["fault"].as_str() {
            config.fault = fault.to_owned();
        }
        Ok(Box::new(LoadedRegion {
            config,
            lost: self.lost.clone(),
            reference: Arc::new(region.services.reference(&graph, region.constants)?),
            services: region.services.clone(),
        }))
    }

    fn query(&self, key: &str, data: &[u8]) -> Result<Option<Vec<u8>>> {
        match key {
            MEMORY_KEY if self.config.fault == "host_only" => Ok(None),
            MEMORY_KEY => {
                let (device, mut config) = (MemoryKey::parse(data)?.device, self.config.clone());
                let memory = match device == "1" {
                    true => {
                        if !config.per_device {
                            config.fault = "full".into();
                        }
                        &self.second
                    }
                    false => &self.first,
                };
                let id = i32::from(device == "1");
                Ok(Some(memory.get_or_init(|| answer_memory(OwnMemory { config, id })).clone()))
            }
            "blob.native" => Ok(Some(b"false".to_vec())),
            "blob.compatible" => {
                let region: Value = serde_json::from_slice(data)?;
                let is_same_format = region["metadata"]["format"] == self.config.format;
                Ok(Some(if is_same_format { b"yes".to_vec() } else { b"recompile".to_vec() }))
            }
            _ => Ok(None),
        }
    }
}

/// Injects a control flow fault into a graph.
fn corrupt_control_flow(graph: &mut Graph, fault: &str) {
    for node in &mut graph.nodes {
        match &mut node.kind {
            NodeKind::Op(name) if *name == IF && fault == "branch" => {
                let results = node.inputs.len() / 2;
                node.inputs[1..].rotate_left(results);
            }
            NodeKind::Composite(composite) => {
                let body = &mut *composite.body;
                let last_state = body.outputs.len().saturating_sub(2) as u32;
                let input = body.nodes.iter().position(|node| node.kind == NodeKind::Input(last_state));
                if let (Some(input), true) = (input, composite.name == WHILE && fault == "state") {
                    body.outputs[last_state as usize + 1] = ValueRef::of(input as u32);
                }
                corrupt_control_flow(body, fault);
            }
            _ => {}
        }
    }
}

struct OwnMemory {
    config: Config,
    /// Device index.
    id: i32,
}

/// Device memory buffer, which resides in process memory.
struct Buffer {
    data: *mut u8,
    /// Allocation; `None` for a buffer that shares memory with the host.
    _owned: Option<Box<[u64]>>,
}

impl Buffer {
    fn leak(mut words: Box<[u64]>) -> BufferHandle {
        let data = words.as_mut_ptr().cast();
        Buffer { data, _owned: Some(words) }.into_handle()
    }

    fn into_handle(self) -> BufferHandle {
        NonNull::from(Box::leak(Box::new(self))).cast()
    }
}

/// Block of 64 bytes, for alignment.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "accessed through pointers")] [u8; 64]);

/// Page-locked memory that the host uses, keyed by address.
static PAGE_LOCKED: Mutex<BTreeMap<usize, Box<[Line]>>> = Mutex::new(BTreeMap::new());

/// Number of bytes copied to the device from page-locked memory.
static PAGE_LOCKED_BYTES: AtomicU64 = AtomicU64::new(0);

impl OwnMemory {
    fn bytes(transfer: Transfer) -> *mut u8 {
        // SAFETY: the host passes only handles from `allocate` and `import_host` that it has not released.
        let buffer = unsafe { &*transfer.buffer.as_ptr().cast::<Buffer>() };
        buffer.data.wrapping_add(transfer.offset)
    }
}

impl DeviceMemory for OwnMemory {
    fn device(&self) -> Device {
        Device { kind: EXTENSION, id: self.id }
    }

    fn alignment(&self) -> usize {
        128
    }

    fn serves_one_run(&self) -> bool {
        self.config.one_run
    }

    fn allocate(&self, bytes: usize) -> Result<BufferHandle> {
        if self.config.fault == "full" {
            return Err(
                Error::new(format!("failed to allocate {bytes} bytes of device memory")).hint("close other programs")
            );
        }
        Ok(Buffer::leak(vec![0x5a5a; bytes.div_ceil(8)].into()))
    }

    fn release(&self, buffer: BufferHandle) {
        if self.config.fault == "early" {
            return;
        }
        // SAFETY: `Buffer::into_handle` leaked the buffer, and the host releases it once.
        drop(unsafe { Box::from_raw(buffer.as_ptr().cast::<Buffer>()) });
    }

    fn copy_in(&self, destination: Transfer, source: &[u8]) -> Result<()> {
        let start = source.as_ptr() as usize;
        let block = PAGE_LOCKED.lock().unwrap().range(..=start).next_back().map(|(&at, lines)| at + 64 * lines.len());
        if block.is_some_and(|end| start + source.len() <= end) {
            PAGE_LOCKED_BYTES.fetch_add(source.len() as u64, Ordering::Relaxed);
        }
        // SAFETY: the host checks the range, and orders the copy after the runs that use the buffer.
        unsafe { OwnMemory::bytes(destination).copy_from_nonoverlapping(source.as_ptr(), source.len()) };
        Ok(())
    }

    fn copy_out(&self, source: Transfer, destination: &mut [u8]) -> Result<()> {
        // SAFETY: the host checks the range, and orders the copy after the runs that write the buffer.
        unsafe { destination.as_mut_ptr().copy_from_nonoverlapping(OwnMemory::bytes(source), destination.len()) };
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<Option<NonNull<u8>>> {
        if !self.config.shares_memory {
            return Ok(None);
        }
        let mut lines: Box<[Line]> = vec![Line([0x5a; 64]); bytes.div_ceil(64)].into();
        let address = NonNull::from(&mut *lines).cast::<u8>();
        PAGE_LOCKED.lock().unwrap().insert(address.as_ptr() as usize, lines);
        Ok(Some(address))
    }

    fn release_host(&self, memory: NonNull<u8>) {
        PAGE_LOCKED.lock().unwrap().remove(&(memory.as_ptr() as usize)).expect("expected page-locked memory");
    }

    fn import_host(&self, memory: HostBytes) -> Result<Option<BufferHandle>> {
        match (self.config.shares_memory, &*self.config.fault) {
            (false, _) => Ok(None),
            (true, "shared") => Ok(Some(Buffer::leak(vec![0; memory.len.div_ceil(8)].into()))),
            (true, _) => Ok(Some(Buffer { data: memory.address.as_ptr(), _owned: None }.into_handle())),
        }
    }
}

struct LoadedRegion {
    config: Config,
    lost: Arc<AtomicBool>,
    reference: Arc<Box<dyn Executable>>,
    services: Services,
}

/// Returns the device clock in nanoseconds.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Outcome of a run, or `None` while the run is in progress.
#[derive(Clone)]
struct Work(Arc<(Mutex<Option<Result<()>>>, Condvar)>);

impl Completion for Work {
    fn wait(&self, time: Duration) -> Result<bool> {
        let (outcome, condition) = &*self.0;
        let guard = outcome.lock().unwrap();
        let (guard, _) = condition.wait_timeout_while(guard, time, |outcome| outcome.is_none()).unwrap();
        guard.clone().map_or(Ok(false), |outcome| outcome.map(|()| true))
    }
}

/// Run operand: a tensor in device or host memory.
struct Operand {
    dtype: DType,
    shape: Vec<usize>,
    data: *mut c_void,
}

// SAFETY: the host keeps the memory valid until the work is complete.
unsafe impl Send for Operand {}

impl Operand {
    fn new(tensor: &Tensor, shape: &[usize]) -> Operand {
        let offset = tensor.byte_offset as usize;
        let data = match tensor.device.kind == EXTENSION {
            true => {
                let buffer = NonNull::new(tensor.data).expect("expected a device buffer, found null").cast();
                OwnMemory::bytes(Transfer { buffer, offset }).cast()
            }
            false => tensor.data.wrapping_add(offset).cast(),
        };
        Operand { dtype: tensor.dtype, shape: shape.to_vec(), data }
    }

    fn len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

impl LoadedRegion {
    /// Returns a closure that performs a run.
    fn work(
        &self,
        inputs: Vec<Operand>,
        outputs: Vec<Operand>,
        scratch: Option<Operand>,
    ) -> impl FnOnce() -> Result<()> + Send + 'static {
        let (config, reference, lost) = (self.config.clone(), self.reference.clone(), self.lost.clone());
        move || {
            // SAFETY: the host keeps the operands valid until the work is complete, and lets nothing else write to
            // them.
            let bytes =
                |operand: &Operand| unsafe { std::slice::from_raw_parts_mut(operand.data.cast::<u8>(), operand.len()) };
            // The mark reveals another run that uses the workspace at the same time.
            static MARKS: AtomicU64 = AtomicU64::new(0);
            let mark = MARKS.fetch_add(1, Ordering::Relaxed) as u8;
            scratch.iter().for_each(|scratch| bytes(scratch).fill(mark));
            std::thread::sleep(Duration::from_millis(config.milliseconds));
            if config.fault == "hang" {
                loop {
                    std::thread::park();
                }
            }
            if config.fault == "lost" || lost.load(Ordering::Relaxed) {
                lost.store(true, Ordering::Relaxed);
                return Err(Error::new("the device does not respond").code(DEVICE_LOST).hint("power-cycle the device"));
            }
            let inputs: Vec<TensorRef<'_>> =
                inputs.iter().map(|operand| TensorRef::new(operand.dtype, &operand.shape, bytes(operand))).collect();
            let mut shapes: Vec<Vec<usize>> = outputs.iter().map(|operand| operand.shape.clone()).collect();
            let mut targets: Vec<TensorMut<'_>> = outputs
                .iter()
                .zip(&mut shapes)
                .map(|(operand, shape)| TensorMut::new(operand.dtype, shape, bytes(operand)))
                .collect();
            reference.run(Call { inputs: &inputs, outputs: &mut targets, workspace: &mut [], plan: 0 })?;
            if scratch.iter().any(|scratch| bytes(scratch).iter().any(|&byte| byte != mark)) {
                return Err(Error::new("another run changed the workspace of this run"));
            }
            if let Some(last_output) = outputs.last().filter(|_| config.fault == "past_end") {
                let extended_operand =
                    Operand { dtype: DType::U8, shape: vec![last_output.len() + 1], data: last_output.data };
                bytes(&extended_operand)[last_output.len()] = 7;
            }
            Ok(())
        }
    }
}

impl Executable for LoadedRegion {
    fn query(&self, key: &str, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok((key == WORKSPACE_KEY).then(|| self.config.workspace.to_string().into_bytes()))
    }

    fn prepare(&self, inputs: &[&[usize]]) -> Result<Prepared> {
        self.reference.prepare(inputs)
    }

    fn run(&self, call: Call<'_, '_>) -> Result<()> {
        let inputs: Vec<Operand> = call.inputs.iter().map(|t| Operand::new(t.raw(), t.shape())).collect();
        let outputs: Vec<Operand> = call.outputs.iter().map(|t| Operand::new(t.raw(), t.shape())).collect();
        // Run options are only available on the thread on which the host makes the call.
        let level =
            run_options(&self.services, "device").and_then(|options| Some(options.get("level")?.as_str()?.to_owned()));
        self.services.counter(&format!("device.runs.{}", level.as_deref().unwrap_or("none")), 1);
        self.services.counter("device.page_locked_bytes", PAGE_LOCKED_BYTES.swap(0, Ordering::Relaxed));
        let scratch = workspace(&self.services).map(|workspace| {
            self.services.counter("device.workspace_bytes", workspace.bytes as u64);
            let data = OwnMemory::bytes(Transfer { buffer: workspace.buffer, offset: workspace.offset });
            let bytes = workspace.bytes + usize::from(self.config.fault == "workspace");
            Operand { dtype: DType::U8, shape: vec![bytes], data: data.cast() }
        });
        if inputs[0].data == outputs[0].data {
            self.services.counter("device.in_place", 1);
        }
        let work = self.work(inputs, outputs, scratch);
        let preceding_work: Vec<Work> = dependencies(&self.services).own::<Work>().cloned().collect();
        let completion = Work(Arc::default());
        let services = self.services.clone();
        let completion_of_run = completion.clone();
        let is_on_device = call.inputs.iter().all(|t| t.raw().device.kind == EXTENSION);
        let (is_early, is_unordered) = (self.config.fault == "early" && is_on_device, self.config.fault == "unordered");
        if is_early {
            *completion.0.0.lock().unwrap() = Some(Ok(()));
        }
        std::thread::spawn(move || {
            // Work that later runs depend on takes longer than those runs, so that it overwrites their results.
            if is_early || (is_unordered && preceding_work.is_empty()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let preceding_work = if is_unordered { Vec::new() } else { preceding_work };
            let dependencies_result =
                preceding_work.iter().try_for_each(|dependency| dependency.wait(Duration::MAX).map(|_| ()));
            let start = now();
            let outcome = dependencies_result.and_then(|()| work());
            let end = now();
            services.span(
                "kernel",
                &Span { track: "queue of the test's device", begin: start, end, now: now() },
                json!({}),
            );
            *completion_of_run.0.0.lock().unwrap() = Some(outcome);
            completion_of_run.0.1.notify_all();
        });
        let Err(work) = submit(&self.services, completion) else { return Ok(()) };
        while !work.wait(Duration::from_millis(10))? {
            if self.services.cancelled() {
                return Err(Error::cancelled());
            }
        }
        Ok(())
    }
}
