//! A region as the device runs it: a list of commands over numbered places in memory.

use crate::finish::{Element, Factor, MOST_SHIFT, Step};
use crate::layer::Layer;
use serde::{Deserialize, Serialize};

/// The most bytes of scratch memory that a program may ask for.
const MOST_WORKSPACE: u64 = 1 << 36;

/// Where every buffer in the scratch memory begins: at a multiple of this.
pub const ALIGN: u64 = 64;

/// A region.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The region's symbol.
    pub symbol: String,
    /// What goes in.
    pub inputs: Vec<Port>,
    /// What comes out.
    pub outputs: Vec<Port>,
    /// The region's constants; those that no command reads are none.
    pub constants: Vec<Option<Port>>,
    /// Bytes of scratch memory.
    pub workspace: u64,
    /// The commands, in order.
    pub commands: Vec<Command>,
}

/// A tensor that comes from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its element type.
    pub element: Element,
}

/// A tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The input of that number.
    Input(usize),
    /// The output of that number.
    Output(usize),
    /// The constant of that number.
    Constant(usize),
    /// The scratch memory from that byte on.
    Work(u64),
}

/// A call of the device, and the integer work after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The call.
    pub layer: Layer,
    /// Its first argument.
    pub feature: Place,
    /// Its second argument.
    pub kernel: Place,
    /// Its third argument.
    pub sums: Place,
    /// What follows; nothing if the sums are the result.
    pub finish: Option<Finish>,
    /// The model's nodes that it comes from, and the operators, for people.
    pub comment: String,
}

/// The integer work after a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finish {
    /// Where the result goes.
    pub out: Place,
    /// Its element type.
    pub element: Element,
    /// What is done with each sum.
    pub steps: Vec<Step>,
}

impl Port {
    /// Bytes it takes; none where that is no number.
    pub fn bytes(&self) -> Option<u64> {
        let count = self.shape.iter().try_fold(1u64, |all, &dim| all.checked_mul(dim as u64))?;
        count.checked_mul(self.element.size() as u64)
    }
}

impl Program {
    /// Checks every size, number and place: a program that passes reads and writes nothing beside its tensors and its
    /// scratch memory, and writes every output.
    ///
    /// # Errors
    /// The first thing that is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.workspace > MOST_WORKSPACE {
            return Err(format!("{} bytes of scratch memory", self.workspace));
        }
        let mut written = vec![false; self.outputs.len()];
        for (number, command) in self.commands.iter().enumerate() {
            let wrong = |what: String| format!("command {number}: {what}");
            self.check_command(command, &mut written).map_err(wrong)?;
        }
        match written.iter().position(|&written| !written) {
            Some(output) => Err(format!("no command writes output {output}")),
            None => Ok(()),
        }
    }

    fn check_command(&self, command: &Command, written: &mut [bool]) -> Result<(), String> {
        command.layer.check()?;
        let [feature, kernel, out] = command.layer.elements();
        let channels = command.layer.channels()[1];
        self.check_place(command.feature, Element::Int8, feature, written, false)?;
        self.check_place(command.kernel, Element::Int8, kernel, written, false)?;
        self.check_place(command.sums, Element::Int32, out, written, true)?;
        for place in [(command.feature, feature), (command.kernel, kernel)] {
            if overlap(place, (command.sums, 4 * out)) {
                return Err("the sums lie over an operand".into());
            }
        }
        if let Some(finish) = &command.finish {
            self.check_place(finish.out, finish.element, out, written, true)?;
            if overlap((finish.out, finish.element.size() as u64 * out), (command.sums, 4 * out)) {
                return Err("the result lies over the sums".into());
            }
            for step in &finish.steps {
                self.check_step(step, channels)?;
            }
        }
        Ok(())
    }

    fn check_step(&self, step: &Step, channels: usize) -> Result<(), String> {
        let factor = |&Factor(multiplier, shift): &Factor| {
            if multiplier < 0 || shift > MOST_SHIFT {
                return Err(format!("a factor of {multiplier} / 2^{shift}"));
            }
            Ok(())
        };
        match step {
            Step::Bias { constant, per_channel } => {
                let wanted = if *per_channel { channels as u64 } else { 1 };
                match self.constants.get(*constant) {
                    Some(Some(port)) if port.element == Element::Int32 && port.bytes() == Some(4 * wanted) => Ok(()),
                    _ => Err(format!("constant {constant} is no bias of {wanted} elements")),
                }
            }
            Step::Requantize { factors, range: [low, high], .. } => {
                if low > high || (factors.len() != 1 && factors.len() != channels) {
                    return Err(format!("{} factors for {channels} channels, range {low} to {high}", factors.len()));
                }
                factors.iter().try_for_each(factor)
            }
            Step::FixedPoint { factor: f } => factor(f),
            Step::Clip { .. } | Step::Cast { .. } => Ok(()),
        }
    }

    /// Checks that a place exists and holds so many elements.
    fn check_place(
        &self,
        place: Place,
        element: Element,
        count: u64,
        written: &mut [bool],
        write: bool,
    ) -> Result<(), String> {
        let port = match place {
            Place::Input(i) if !write => self.inputs.get(i),
            Place::Constant(i) if !write => self.constants.get(i).and_then(Option::as_ref),
            Place::Output(i) => {
                if let Some(slot) = written.get_mut(i) {
                    if !write && !*slot {
                        return Err(format!("output {i} is read before it is written"));
                    }
                    *slot |= write;
                }
                self.outputs.get(i)
            }
            Place::Work(at) => {
                let end = at.checked_add(count * element.size() as u64);
                if !at.is_multiple_of(ALIGN) || end.is_none_or(|end| end > self.workspace) {
                    return Err(format!("{count} elements at byte {at} of {} of scratch memory", self.workspace));
                }
                return Ok(());
            }
            Place::Input(_) | Place::Constant(_) => return Err(format!("{place:?} is written")),
        };
        let Some(port) = port else { return Err(format!("{place:?} does not exist")) };
        if port.element != element || port.bytes() != Some(count * element.size() as u64) {
            return Err(format!("{place:?} is {port:?}; {count} elements of {element:?} are wanted"));
        }
        Ok(())
    }
}

/// Returns true if two places share a byte.
fn overlap((a, a_bytes): (Place, u64), (b, b_bytes): (Place, u64)) -> bool {
    match (a, b) {
        (Place::Work(a), Place::Work(b)) => a < b + b_bytes && b < a + a_bytes,
        _ => a == b,
    }
}
