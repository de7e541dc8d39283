//! Command list of a region: device calls and epilogues over numbered tensors.

use crate::epilogue::{Element, EpilogueOp, Factor, MAX_SHIFT};
use crate::layer::Layer;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum workspace size of a command list in bytes.
const MAX_WORKSPACE: u64 = 1 << 36;

/// Alignment of buffers in the workspace in bytes.
pub const ALIGN: u64 = 64;

/// Command list of a region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandList {
    /// Symbol of the region.
    pub symbol: String,
    /// Region inputs.
    pub inputs: Vec<Port>,
    /// Region outputs.
    pub outputs: Vec<Port>,
    /// Region constants; `None` for constants that no command reads.
    pub constants: Vec<Option<Port>>,
    /// Size of the workspace in bytes.
    pub workspace: u64,
    /// Commands in execution order.
    pub commands: Vec<Command>,
}

/// Type of an input, output or constant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    pub shape: Vec<usize>,
    /// Element type.
    pub element: Element,
}

/// Location of a tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Input, by index.
    Input(usize),
    /// Output, by index.
    Output(usize),
    /// Constant, by index.
    Constant(usize),
    /// Workspace, at a byte offset.
    Work(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Input(index) => write!(f, "input {index}"),
            Place::Output(index) => write!(f, "output {index}"),
            Place::Constant(index) => write!(f, "constant {index}"),
            Place::Work(offset) => write!(f, "workspace at byte {offset}"),
        }
    }
}

/// Device call with its epilogue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Kind and sizes of the call.
    pub layer: Layer,
    /// First pointer argument: the features.
    pub feature: Place,
    /// Second pointer argument: the kernel.
    pub kernel: Place,
    /// Third pointer argument: the accumulators.
    pub sums: Place,
    /// Epilogue; `None` if the accumulators are the result.
    #[serde(rename = "finish")]
    pub epilogue: Option<Epilogue>,
    /// Names of the operators and their source nodes in the model, for the comment in the C source.
    pub comment: String,
}

/// Epilogue of a device call, executed in integer arithmetic on the CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epilogue {
    /// Location of the result.
    pub out: Place,
    /// Element type of the result.
    pub element: Element,
    /// Operations on each accumulator, in order.
    pub steps: Vec<EpilogueOp>,
}

impl Port {
    /// Returns the tensor size in bytes; `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        let count = self.shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim as u64))?;
        count.checked_mul(self.element.size() as u64)
    }
}

impl CommandList {
    /// Checks every size, index and location. A list that passes accesses only its tensors and its workspace, and
    /// writes every output.
    ///
    /// # Errors
    /// If the list is invalid; the message describes the first violation.
    pub fn check(&self) -> Result<(), String> {
        if self.workspace > MAX_WORKSPACE {
            return Err(format!("workspace: expected at most {MAX_WORKSPACE} bytes, found {}", self.workspace));
        }
        let mut is_written = vec![false; self.outputs.len()];
        for (index, command) in self.commands.iter().enumerate() {
            let with_number = |problem: String| format!("command {index}: {problem}");
            self.check_command(command, &mut is_written).map_err(with_number)?;
        }
        match is_written.iter().position(|&is_written| !is_written) {
            Some(output) => Err(format!("no command writes output {output}")),
            None => Ok(()),
        }
    }

    fn check_command(&self, command: &Command, is_written: &mut [bool]) -> Result<(), String> {
        command.layer.check()?;
        let [feature, kernel, out] = command.layer.elements();
        let channels = command.layer.channels()[1];
        self.check_place(command.feature, Element::Int8, feature, is_written, false)?;
        self.check_place(command.kernel, Element::Int8, kernel, is_written, false)?;
        self.check_place(command.sums, Element::Int32, out, is_written, true)?;
        for place in [(command.feature, feature), (command.kernel, kernel)] {
            if tensors_overlap(place, (command.sums, 4 * out)) {
                return Err("the sums overlap an operand".into());
            }
        }
        if let Some(epilogue) = &command.epilogue {
            self.check_place(epilogue.out, epilogue.element, out, is_written, true)?;
            if tensors_overlap((epilogue.out, epilogue.element.size() as u64 * out), (command.sums, 4 * out)) {
                return Err("the result overlaps the sums".into());
            }
            for step in &epilogue.steps {
                self.check_step(step, channels)?;
            }
        }
        Ok(())
    }

    fn check_step(&self, step: &EpilogueOp, channels: usize) -> Result<(), String> {
        let factor = |&Factor(multiplier, shift): &Factor| {
            if multiplier < 0 || shift > MAX_SHIFT {
                return Err(format!(
                    "factor: expected a multiplier >= 0 and a shift <= {MAX_SHIFT}, found {multiplier} / 2^{shift}"
                ));
            }
            Ok(())
        };
        match step {
            EpilogueOp::Bias { constant, per_channel } => {
                let expected = if *per_channel { channels as u64 } else { 1 };
                match self.constants.get(*constant) {
                    Some(Some(port)) if port.element == Element::Int32 && port.bytes() == Some(4 * expected) => Ok(()),
                    Some(Some(port)) => Err(format!(
                        "constant {constant}: expected an int32 bias of size {expected}, found shape {:?} of {}",
                        port.shape, port.element
                    )),
                    _ => Err(format!("constant {constant}: expected an int32 bias of size {expected}, found none")),
                }
            }
            EpilogueOp::Requantize { factors, range: [low, high], .. } => {
                if low > high || (factors.len() != 1 && factors.len() != channels) {
                    return Err(format!(
                        "expected 1 or {channels} factors and a non-empty range, found a count of {} and a range of \
                         {low} to {high}",
                        factors.len()
                    ));
                }
                factors.iter().try_for_each(factor)
            }
            EpilogueOp::FixedPoint { factor: f } => factor(f),
            EpilogueOp::Clip { .. } | EpilogueOp::Cast { .. } => Ok(()),
        }
    }

    /// Checks that a location exists, contains `count` elements and may be accessed. Records a write to an output in
    /// `is_written`.
    fn check_place(
        &self,
        place: Place,
        element: Element,
        count: u64,
        is_written: &mut [bool],
        write: bool,
    ) -> Result<(), String> {
        let port = match place {
            Place::Input(i) if !write => self.inputs.get(i),
            Place::Constant(i) if !write => self.constants.get(i).and_then(Option::as_ref),
            Place::Output(i) => {
                if let Some(slot) = is_written.get_mut(i) {
                    if !write && !*slot {
                        return Err(format!("output {i} is read before it is written"));
                    }
                    *slot |= write;
                }
                self.outputs.get(i)
            }
            Place::Work(offset) => {
                let end = offset.checked_add(count * element.size() as u64);
                if !offset.is_multiple_of(ALIGN) || end.is_none_or(|end| end > self.workspace) {
                    return Err(format!(
                        "expected aligned elements within a workspace of {} bytes, found {count} elements at byte {offset}",
                        self.workspace
                    ));
                }
                return Ok(());
            }
            Place::Input(_) | Place::Constant(_) => {
                return Err(format!("{place}: expected a writable tensor, found a read-only one"));
            }
        };
        let Some(port) = port else { return Err(format!("{place} does not exist")) };
        if port.element != element || port.bytes() != Some(count * element.size() as u64) {
            let Port { shape, element: port_element } = port;
            return Err(format!(
                "{place}: expected {count} elements of {element}, found shape {shape:?} of {port_element}"
            ));
        }
        Ok(())
    }
}

/// Tests whether two tensors share memory.
fn tensors_overlap((a, a_bytes): (Place, u64), (b, b_bytes): (Place, u64)) -> bool {
    match (a, b) {
        (Place::Work(a), Place::Work(b)) => a < b + b_bytes && b < a + a_bytes,
        _ => a == b,
    }
}
