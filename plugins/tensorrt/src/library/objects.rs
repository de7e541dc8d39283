//! Objects of the library, with their owners: each is deleted before those that it was made from.

use super::table::{self, Dims, Object};
use super::{TensorRt, logger};
use byoc_plugin_api::{DType, Error, Result};
use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_char};

/// Public object of the library that is deleted when it goes out of scope.
struct Owned(Object);

impl Owned {
    /// Takes over an object that a call returned.
    ///
    /// # Errors
    /// If the call failed; the message has the reason that the library logged.
    fn new(object: Object, what: &str) -> Result<Owned> {
        let messages = logger::take();
        if object.is_null() {
            let reason = logger::reason(&messages).unwrap_or_else(|| "the library gives no reason".to_owned());
            return Err(Error::new(format!("{what}: {reason}")));
        }
        Ok(Owned(object))
    }

    fn implementation(&self) -> Object {
        // SAFETY: the object is live until this value is dropped.
        unsafe { table::implementation(self.0) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object is live, and this value is its only owner.
        unsafe { table::object::delete(self.0) }
    }
}

/// Text of an object of the library.
///
/// # Safety
/// `text` is null, or NUL-terminated and valid during the call.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract of this function.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Layer of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub name: String,
    /// Number of the layer's kind in the library.
    pub kind: i32,
}

/// Input or output of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    /// Element type; `None` if the boundary has no counterpart.
    pub dtype: Option<DType>,
}

/// Element types by their number in the library.
const DTYPES: [(i32, DType); 8] = [
    (0, DType::F32),
    (1, DType::F16),
    (2, DType::I8),
    (3, DType::I32),
    (4, DType::BOOL),
    (5, DType::U8),
    (7, DType::BF16),
    (8, DType::I64),
];

/// Error of the parser.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParserError {
    /// Index of the node in the model; negative for none.
    pub node: i32,
    pub name: String,
    pub operator: String,
    pub description: String,
}

impl ParserError {
    /// Returns the reason in one line: operator, node, description.
    pub fn line(&self) -> String {
        let description = self.description.split_whitespace().collect::<Vec<_>>().join(" ");
        let description = logger::without_places(&description);
        match (self.operator.is_empty(), self.name.is_empty()) {
            (true, _) => description.to_owned(),
            (false, true) => format!("{}: {description}", self.operator),
            (false, false) => format!("{} ({}): {description}", self.operator, self.name),
        }
    }
}

/// Network that was parsed from an ONNX model, with its builder.
pub struct Network {
    // Fields are dropped in this order: the parser holds weights of the network, the network those of the builder.
    parser: Parser,
    network: Owned,
    builder: Owned,
}

struct Parser(Object);

impl Drop for Parser {
    fn drop(&mut self) {
        // SAFETY: the object is live, and this value is its only owner.
        unsafe { table::parser::delete(self.0) }
    }
}

impl Network {
    /// Parses an ONNX model, whose weights stand in it. The bytes have to outlive the network, which reads the weights
    /// there; [`Network::parse`] keeps them.
    ///
    /// # Errors
    /// If the parser refuses a node: its errors.
    fn parse_borrowed(library: &TensorRt, bytes: &[u8]) -> Result<Network, Vec<ParserError>> {
        let failed =
            |error: Error| vec![ParserError { node: -1, description: error.to_string(), ..ParserError::default() }];
        logger::take();
        // SAFETY: the functions and tables are those of a verified version, and the logger lives as long as the process.
        // Each object is live while it is used, and the bytes are valid during the call.
        unsafe {
            let builder = (library.create_builder)(logger::object(), library.number);
            let builder = Owned::new(builder, "cannot create a builder").map_err(failed)?;
            let network = table::builder::create_network(builder.implementation(), 0);
            let network = Owned::new(network, "cannot create a network").map_err(failed)?;
            let parser = (library.create_parser)(network.0, logger::object(), library.parser_number);
            if parser.is_null() {
                return Err(failed(Error::new("cannot create a parser")));
            }
            let parsed = Network { parser: Parser(parser), network, builder };
            let is_parsed = table::parser::parse(parser, bytes.as_ptr().cast(), bytes.len(), std::ptr::null()) & 1 == 1;
            logger::take();
            if is_parsed { Ok(parsed) } else { Err(parsed.errors()) }
        }
    }

    /// Parses an ONNX model, and calls `body` with the network.
    ///
    /// # Errors
    /// If the parser refuses a node: its errors.
    pub fn parse<T>(library: &TensorRt, bytes: &[u8], body: impl FnOnce(&Network) -> T) -> Result<T, Vec<ParserError>> {
        Network::parse_borrowed(library, bytes).map(|network| body(&network))
    }

    fn errors(&self) -> Vec<ParserError> {
        // SAFETY: the parser and its errors are live; the indices are in range.
        unsafe {
            let error = |index| {
                let error = table::parser::error(self.parser.0, index);
                if error.is_null() {
                    return ParserError::default();
                }
                ParserError {
                    node: table::parser_error::node(error),
                    name: text(table::parser_error::node_name(error)),
                    operator: text(table::parser_error::operator(error)),
                    description: text(table::parser_error::description(error)),
                }
            };
            (0..table::parser::error_count(self.parser.0).clamp(0, 100)).map(error).collect()
        }
    }

    /// Returns the layers.
    pub fn layers(&self) -> Vec<Layer> {
        let network = self.network.implementation();
        // SAFETY: the network and its layers are live; the indices are in range.
        unsafe {
            let layer = |index| {
                let layer = table::implementation(table::network::layer(network, index));
                Layer { name: text(table::layer::name(layer)), kind: table::layer::kind(layer) }
            };
            (0..table::network::layer_count(network)).map(layer).collect()
        }
    }

    /// Returns inputs and outputs.
    pub fn ports(&self) -> [Vec<Port>; 2] {
        let network = self.network.implementation();
        // SAFETY: as for `layers`.
        unsafe {
            let port = |tensor| {
                let tensor = table::implementation(tensor);
                let number = table::tensor::dtype(tensor);
                let dtype = DTYPES.iter().find(|(own, _)| *own == number).map(|(_, dtype)| *dtype);
                Port { name: text(table::tensor::name(tensor)), dtype }
            };
            let inputs = (0..table::network::input_count(network)).map(|i| port(table::network::input(network, i)));
            let inputs = inputs.collect();
            let outputs = (0..table::network::output_count(network)).map(|i| port(table::network::output(network, i)));
            [inputs, outputs.collect()]
        }
    }

    /// Creates settings for a build.
    ///
    /// # Errors
    /// If the library cannot.
    pub fn config(&self) -> Result<Config<'_>> {
        // SAFETY: the builder is live, and outlives the settings.
        let config = unsafe { table::builder::create_config(self.builder.implementation()) };
        let config = Owned::new(config, "cannot create the settings of a build")?;
        Ok(Config { config, cache: OnceCell::new(), network: self })
    }
}

/// Flag of the library: TF32 in products of float32.
const TF32: i32 = 6;
/// Pool of memory of the library: scratch memory of layers.
const WORKSPACE: i32 = 0;
/// Selectors of a profile's dimensions: lowest, typical and highest.
const SELECTORS: [i32; 3] = [0, 1, 2];

/// Settings of a build.
pub struct Config<'n> {
    // Dropped in this order: the settings refer to the cache until they go.
    config: Owned,
    cache: OnceCell<Owned>,
    network: &'n Network,
}

impl Config<'_> {
    /// Sets the compute capability, as ten times its number.
    ///
    /// # Errors
    /// If the library does not offer it.
    pub fn set_capability(&self, capability: i32) -> Result<()> {
        let config = self.config.implementation();
        // SAFETY: the settings are live.
        let is_set = unsafe {
            table::config::set_capability_count(config, 1) & 1 == 1
                && table::config::set_capability(config, capability, 0) & 1 == 1
        };
        logger::take();
        if is_set { Ok(()) } else { Err(Error::new(format!("capability {}", shown_capability(capability)))) }
    }

    /// Returns the capability that is set; `None` for none.
    pub fn capability(&self) -> Option<i32> {
        let config = self.config.implementation();
        // SAFETY: the settings are live, and the index is in range.
        unsafe { (table::config::capability_count(config) > 0).then(|| table::config::capability(config, 0)) }
    }

    /// Allows or forbids TF32.
    pub fn set_tf32(&self, is_allowed: bool) {
        let config = self.config.implementation();
        // SAFETY: the settings are live.
        unsafe {
            if is_allowed { table::config::set_flag(config, TF32) } else { table::config::clear_flag(config, TF32) }
        }
    }

    /// Returns true if TF32 is allowed.
    pub fn has_tf32(&self) -> bool {
        // SAFETY: the settings are live.
        unsafe { table::config::get_flag(self.config.implementation(), TF32) & 1 == 1 }
    }

    /// Limits the scratch memory of layers, in bytes.
    pub fn set_workspace(&self, bytes: usize) {
        // SAFETY: the settings are live.
        unsafe { table::config::set_pool_limit(self.config.implementation(), WORKSPACE, bytes) }
    }

    /// Sets the optimization level, and returns the one that is in effect.
    pub fn set_level(&self, level: i32) -> i32 {
        let config = self.config.implementation();
        // SAFETY: the settings are live.
        let level = unsafe {
            table::config::set_level(config, level);
            table::config::level(config)
        };
        logger::take();
        level
    }

    /// Adds a profile: the lowest, typical and highest dimensions of each input.
    ///
    /// # Errors
    /// If the library refuses dimensions.
    pub fn add_profile(&self, inputs: &[(String, [Dims; 3])]) -> Result<()> {
        // SAFETY: the builder and the settings are live; names and dimensions are valid during the calls, and the
        // library copies them. The profile belongs to the builder.
        unsafe {
            let profile = table::builder::create_profile(self.network.builder.implementation());
            if profile.is_null() {
                return Err(Error::new("cannot create an optimization profile"));
            }
            let implementation = table::implementation(profile);
            for (name, dims) in inputs {
                let c_name = CString::new(name.as_str()).map_err(|_| Error::new("expected a name without NUL"))?;
                for (selector, dims) in SELECTORS.into_iter().zip(dims) {
                    if table::profile::set_dims(implementation, c_name.as_ptr(), selector, dims) & 1 == 0 {
                        let (reason, sizes) = (logger::reason(&logger::take()).unwrap_or_default(), dims.as_slice());
                        return Err(Error::new(format!("profile of {name}: {sizes:?} refused: {reason}")));
                    }
                }
            }
            if table::profile::is_valid(implementation) & 1 == 0
                || table::config::add_profile(self.config.implementation(), profile) < 0
            {
                return Err(Error::new("the library refuses the optimization profile"));
            }
        }
        Ok(())
    }

    /// Sets the cache of timings.
    ///
    /// # Errors
    /// If the bytes are no cache of this version of the library.
    pub fn set_timing_cache(&self, bytes: &[u8]) -> Result<()> {
        let config = self.config.implementation();
        // SAFETY: the settings are live, the bytes valid during the call.
        let cache = unsafe { table::config::create_timing_cache(config, bytes.as_ptr().cast(), bytes.len()) };
        let cache = Owned::new(cache, "cannot read the timing cache")?;
        let cache = self.cache.get_or_init(|| cache);
        // SAFETY: the settings are live; the cache is kept beside them, and goes after them.
        let is_set = unsafe { table::config::set_timing_cache(config, cache.0, false) & 1 == 1 };
        succeeded(is_set, || "the library refuses the timing cache".to_owned())
    }

    /// Returns the cache of timings after a build.
    pub fn timing_cache(&self) -> Option<Vec<u8>> {
        // SAFETY: the settings are live; the cache belongs to them.
        unsafe {
            let cache = table::config::timing_cache(self.config.implementation());
            if cache.is_null() {
                return None;
            }
            let memory = table::timing_cache::serialize(table::implementation(cache));
            Owned::new(memory, "timing cache").ok().map(|memory| bytes_of(&memory))
        }
    }

    /// Builds and serializes an engine.
    ///
    /// # Errors
    /// If the library refuses the network; the message is the first error that it logs.
    pub fn build(&self) -> Result<Vec<u8>> {
        let Network { builder, network, .. } = self.network;
        logger::take();
        // SAFETY: builder, network and settings are live.
        let memory = unsafe { table::builder::build(builder.implementation(), network.0, self.config.0) };
        Owned::new(memory, "building the engine failed").map(|memory| bytes_of(&memory))
    }
}

/// Returns the bytes of a block of memory of the library.
fn bytes_of(memory: &Owned) -> Vec<u8> {
    let memory = memory.implementation();
    // SAFETY: the block is live, and has `size` bytes at `data`.
    unsafe {
        let (data, size) = (table::memory::data(memory), table::memory::size(memory));
        if data.is_null() { Vec::new() } else { std::slice::from_raw_parts(data, size).to_vec() }
    }
}

/// Formats a capability: 89 as 8.9.
pub fn shown_capability(capability: i32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}

/// Engine on the current device.
pub struct Engine {
    // Dropped in this order.
    engine: Owned,
    _runtime: Owned,
}

// SAFETY: the library permits calls of one engine from several threads.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

impl Engine {
    /// Reads a serialized engine.
    ///
    /// # Errors
    /// If the library refuses it, or there is no device.
    pub fn deserialize(library: &TensorRt, bytes: &[u8]) -> Result<Engine> {
        logger::take();
        // SAFETY: the function and tables are those of a verified version; the bytes are valid during the call.
        unsafe {
            let runtime = (library.create_runtime)(logger::object(), library.number);
            let runtime = Owned::new(runtime, "cannot create a run time")?;
            let engine = table::runtime::deserialize(runtime.implementation(), bytes.as_ptr().cast(), bytes.len());
            Ok(Engine { engine: Owned::new(engine, "cannot read the engine")?, _runtime: runtime })
        }
    }

    /// Creates a context for runs.
    ///
    /// # Errors
    /// If memory of the device is short.
    pub fn context(&self) -> Result<Context> {
        // SAFETY: the engine is live, and outlives its contexts: regions keep both in order.
        let context = unsafe { table::engine::create_context(self.engine.implementation(), 0) };
        Ok(Context(Owned::new(context, "cannot create a context")?))
    }
}

/// Context of runs, one at a time.
pub struct Context(Owned);

// SAFETY: a context may move between threads; it has no `Sync`, as runs in it must not overlap.
unsafe impl Send for Context {}

impl Context {
    /// Sets the dimensions of an input.
    ///
    /// # Errors
    /// If they are outside of the profile.
    pub fn set_input_shape(&self, name: &CStr, dims: &Dims) -> Result<()> {
        // SAFETY: the context is live, name and dimensions are valid during the call.
        let is_set = unsafe { table::context::set_input_shape(self.0.implementation(), name.as_ptr(), dims) & 1 == 1 };
        let sizes = dims.as_slice();
        succeeded(is_set, || format!("input {}: dimensions {sizes:?} refused", name.to_string_lossy()))
    }

    /// Sets the address of an input or output in memory of the device.
    ///
    /// # Errors
    /// If the library refuses it.
    ///
    /// # Safety
    /// The memory has the size of the tensor, and lives until the runs that are enqueued next are complete.
    pub unsafe fn set_address(&self, name: &CStr, address: *mut std::ffi::c_void) -> Result<()> {
        // SAFETY: the context is live; the rest by the contract of this function.
        let is_set = unsafe { table::context::set_address(self.0.implementation(), name.as_ptr(), address) & 1 == 1 };
        succeeded(is_set, || format!("{}: address refused", name.to_string_lossy()))
    }

    /// Enqueues a run in a stream.
    ///
    /// # Errors
    /// If the library refuses it.
    ///
    /// # Safety
    /// All addresses are set, and the stream is live.
    pub unsafe fn enqueue(&self, stream: *mut std::ffi::c_void) -> Result<()> {
        // SAFETY: the context is live; the rest by the contract of this function.
        let is_enqueued = unsafe { table::context::enqueue(self.0.implementation(), stream) & 1 == 1 };
        succeeded(is_enqueued, || "the run was refused".to_owned())
    }
}

fn succeeded(is_success: bool, what: impl FnOnce() -> String) -> Result<()> {
    let messages = logger::take();
    if is_success {
        return Ok(());
    }
    let reason = logger::reason(&messages).unwrap_or_else(|| "the library gives no reason".to_owned());
    Err(Error::new(format!("{}: {reason}", what())))
}
