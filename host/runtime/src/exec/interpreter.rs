//! Interpreter of programs: a loop over the instructions of the topmost activation on an explicit stack.
//!
//! A tail call replaces the activation of its caller, so a loop runs in constant memory.

use super::device::{Footprint, Unfinished};
use super::direct;
use super::frame::{Frame, ReadError, Scope};
use super::inputs::{show, wrong_output};
use super::load::{Code, RegionStep, Step};
use super::lock::lock;
use super::prepared::{PreparedProgram, RunBuffers};
use super::program::{Instr, Port, Reg};
use super::signature::admits;
use super::step::{self, RegionOutcome};
use super::trace::{Observer, StepEvent};
use super::value::{Cells, Closure, Data, Fields, Value, bad_program};
use crate::cancel::Cancel;
use byoc_ir::diag::{Diagnostic, codes};
use byoc_ir::tensor::{DType, Shape, Tensor, TensorViewMut};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;

/// Maximum call depth; deeper nesting is treated as infinite recursion.
const MAX_DEPTH: usize = 100_000;

/// Maximum total size of the arenas of nested calls, in bytes.
const MAX_ARENAS: usize = 8 << 30;

struct Activation<'e> {
    function: u32,
    code: &'e Code,
    frame: Frame,
    next: usize,
    /// Registers for the results of the call in progress.
    outs: &'e [Reg],
}

/// Control flow after a step.
enum Flow<'e> {
    Next,
    Jump(u32),
    /// Call to a function, with the registers for its results. The arguments are in [`RunBuffers::args`].
    Call(u32, &'e [Reg]),
    TailCall(u32),
    Return(&'e [Reg]),
}

/// Destination of the results of a run.
pub(super) enum Results<'r, 't> {
    /// Owned tensors, appended to a list.
    Owned(&'r mut Vec<Tensor>),
    /// Caller-provided memory, one tensor per output.
    Into(&'r mut [TensorViewMut<'t>]),
}

impl<'t> Results<'_, 't> {
    /// Returns the caller-provided memory.
    fn memory(&mut self) -> &mut [TensorViewMut<'t>] {
        match self {
            Results::Owned(_) => &mut [],
            Results::Into(outputs) => outputs,
        }
    }
}

/// Runs the entry function on inputs that have been checked.
pub(super) fn run(
    exec: &PreparedProgram,
    inputs: &[Tensor],
    results: &mut Results<'_, '_>,
    observer: Option<&dyn Observer>,
    cancel: &Cancel,
    max_calls: u64,
) -> Result<(), Diagnostic> {
    // Kernels, and plugins called on this thread, query the cancellation that is in scope.
    let _scope = cancel.enter();
    let mut interpreter = Interpreter {
        exec,
        observer,
        cancel,
        max_calls,
        stack: SmallVec::new(),
        arenas: 0,
        calls: 0,
        steps: 0,
        cells: Cells::default(),
        unfinished: Unfinished::default(),
        is_direct: false,
        buffers: exec.buffers(),
    };
    if let Results::Into(outputs) = results
        && let Ok(code) = exec.code(exec.program.entry)
    {
        interpreter.is_direct = direct::are_writable(&code.direct, &code.regs, inputs, outputs);
    }
    interpreter.buffers.scratch.keeps_buffers = matches!(results, Results::Into(_));
    let result = interpreter.start(inputs).and_then(|()| interpreter.run(results));
    let lost_regions = interpreter.unfinished.abandon();
    let Interpreter { stack, buffers, .. } = interpreter;
    for mut activation in stack {
        if !lost_regions.is_empty() {
            // A device that has not finished may still write to its memory.
            std::mem::forget(std::mem::take(&mut activation.frame.device));
            continue;
        }
        exec.recycle_frame(activation.function, activation.frame);
    }
    lost_regions
        .into_iter()
        .for_each(|region| exec.mark_lost(region, "the device did not finish its work within the grace period"));
    exec.recycle_buffers(buffers);
    result
}

/// Moves arguments into the first values of a frame: parameters are the first registers of a function, and each is a
/// value.
fn pass_args(args: &mut Vec<Value>, frame: &mut Frame) {
    for (slot, value) in frame.values.iter_mut().zip(args.drain(..)) {
        *slot = value;
    }
}

struct Interpreter<'e, 'o> {
    exec: &'e PreparedProgram,
    observer: Option<&'o dyn Observer>,
    cancel: &'o Cancel,
    /// Maximum number of calls; a run that exceeds it is treated as an infinite loop.
    max_calls: u64,
    stack: SmallVec<[Activation<'e>; 1]>,
    arenas: usize,
    /// Number of calls so far; an iteration of a loop counts as a call.
    calls: u64,
    /// Number of steps so far.
    steps: u64,
    cells: Cells,
    /// Unfinished device work.
    unfinished: Unfinished,
    /// True if steps write the direct results to caller-provided memory.
    is_direct: bool,
    buffers: RunBuffers,
}

impl<'e> Interpreter<'e, '_> {
    /// Calls the entry function.
    fn start(&mut self, inputs: &[Tensor]) -> Result<(), Diagnostic> {
        self.buffers.args.reserve(inputs.len())?;
        self.buffers.args.values.extend(inputs.iter().cloned().map(Value::Tensor));
        self.enter(self.exec.program.entry, &[])
    }

    fn run(&mut self, results: &mut Results<'_, '_>) -> Result<(), Diagnostic> {
        if self.cancel.is_set() {
            return Err(self.cancellation_error(0));
        }
        loop {
            let top = self.stack.last_mut().expect("an activation is running");
            let instruction = top.next;
            top.next += 1;
            self.steps += 1;
            let flow = match self.observer {
                None => self.step(instruction, results),
                Some(observer) => self.step_observed(instruction, observer, results),
            };
            // A cancelled step leaves its result undefined or fails, so the cancellation takes precedence over the
            // outcome.
            if self.cancel.is_set() {
                return Err(self.cancellation_error(instruction));
            }
            let flow = flow?;
            if matches!(flow, Flow::Call(..) | Flow::TailCall(_)) {
                self.calls += 1;
                if self.calls > self.max_calls {
                    return Err(self.call_limit_error());
                }
            }
            match flow {
                Flow::Next => {}
                Flow::Jump(to) => self.top().next = to as usize,
                Flow::Call(function, outs) => {
                    self.top().outs = outs;
                    self.enter(function, &[])?;
                }
                Flow::TailCall(function) => self.replace(function)?,
                Flow::Return(values) if self.stack.len() == 1 => return self.finish(values, results),
                Flow::Return(values) => self.leave(values)?,
            }
        }
    }

    /// Returns the diagnostic for a cancelled run: the reason and the current step.
    #[cold]
    fn cancellation_error(&self, instruction: usize) -> Diagnostic {
        let program = &self.exec.program;
        let location = self.stack.last().map(|top| {
            let function = &program.functions[top.function as usize];
            let operator = match function.code.get(instruction) {
                Some(Instr::Kernel(call) | Instr::Alias(call)) => format!(" ({})", call.op),
                Some(Instr::Region { region, .. }) => format!(" ({})", program.regions[*region as usize].symbol),
                _ => String::new(),
            };
            format!(", and was at step {instruction} of {} in {}{operator}", function.code.len(), function.name)
        });
        let progress = || format!("the run had executed {} steps{}", self.steps, location.unwrap_or_default());
        self.cancel.check(progress).err().unwrap_or_else(|| bad_program("the run ended without a cancellation"))
    }

    #[cold]
    fn call_limit_error(&self) -> Diagnostic {
        let name = self.stack.last().map_or("", |top| &self.exec.program.functions[top.function as usize].name);
        let message = format!("reached the limit of {} calls and loop iterations while running {name}", self.max_calls);
        Diagnostic::error(codes::runtime::STEP_LIMIT, message)
            .help("check that the loop condition becomes false, or bound the trip count")
    }

    fn top(&mut self) -> &mut Activation<'e> {
        self.stack.last_mut().expect("an activation is running")
    }

    /// Calls a function with the arguments in `buffers`.
    fn enter(&mut self, function: u32, outs: &'e [Reg]) -> Result<(), Diagnostic> {
        let code = self.exec.code(function)?;
        self.arenas = self.arenas.saturating_add(code.arenas.host);
        if self.stack.len() >= MAX_DEPTH || (self.arenas > MAX_ARENAS && !self.stack.is_empty()) {
            let name = &self.exec.program.functions[function as usize].name;
            let message =
                format!("reached the limit on nested calls at depth {} while calling {name}", self.stack.len());
            return Err(Diagnostic::error(codes::runtime::CALL_DEPTH, message)
                .help("make the recursive call a tail call, which needs no additional memory"));
        }
        if self.buffers.workspace.as_ref().len() < code.workspace {
            self.buffers.workspace = super::frame::allocate(code.workspace)?;
        }
        let mut frame = self.exec.frame(function, code)?;
        pass_args(&mut self.buffers.args.values, &mut frame);
        self.stack.push(Activation { function, code, frame, next: 0, outs });
        Ok(())
    }

    /// Replaces the running function with another function (tail call).
    fn replace(&mut self, function: u32) -> Result<(), Diagnostic> {
        if let Some(top) = self.stack.last_mut()
            && top.function == function
        {
            top.frame.values.fill(Value::Empty);
            top.frame.device.clear_imports();
            top.next = 0;
            pass_args(&mut self.buffers.args.values, &mut top.frame);
            return Ok(());
        }
        self.pop_frame();
        self.enter(function, &[])
    }

    fn pop_frame(&mut self) {
        if let Some(Activation { function, code, frame, .. }) = self.stack.pop() {
            self.arenas = self.arenas.saturating_sub(code.arenas.host);
            self.exec.recycle_frame(function, frame);
        }
    }

    /// Returns from the entry function with the results of the run.
    fn finish(&mut self, values: &[Reg], results: &mut Results<'_, '_>) -> Result<(), Diagnostic> {
        let exec = self.exec;
        let outputs = &exec.program.outputs;
        let output_error = |i: usize, tensor: &Tensor| match outputs.get(i) {
            Some(port) => bad_program(&format!("output \"{}\": expected {}, found {tensor:?}", port.name, show(port))),
            None => bad_program(&format!("expected {} outputs, found {}", outputs.len(), values.len())),
        };
        let is_direct = self.is_direct;
        let top = self.top();
        let scope = Scope { regs: &top.code.regs, constants: &exec.constants };
        match results {
            Results::Owned(tensors) => {
                for (i, &reg) in values.iter().enumerate() {
                    let tensor = scope.read_tensor(&top.frame, reg)?;
                    let is_admitted = |port: &Port| port.ty.dtype == tensor.dtype() && admits(&port.ty, tensor.shape());
                    if !outputs.get(i).is_some_and(is_admitted) {
                        return Err(output_error(i, &tensor));
                    }
                    tensors.push(tensor);
                }
            }
            Results::Into(tensors) => {
                for (i, (&reg, out)) in values.iter().zip(tensors.iter_mut()).enumerate() {
                    // The host program of a region always writes its results to registers.
                    if is_direct
                        && top.code.direct.iter().any(|result| result.reg == reg)
                        && scope.is_empty(&top.frame, reg)
                    {
                        continue;
                    }
                    scope.read_into(&top.frame, reg, out).map_err(|error| match error {
                        ReadError::Type(dtype, shape) => wrong_output(&outputs[i], out, dtype, &shape),
                        ReadError::Failed(diagnostic) => diagnostic,
                    })?;
                }
            }
        }
        self.pop_frame();
        Ok(())
    }

    /// Returns from a function to its caller.
    fn leave(&mut self, values: &[Reg]) -> Result<(), Diagnostic> {
        self.read_args(values, &[])?;
        self.pop_frame();
        let mut results = std::mem::take(&mut self.buffers.args.values);
        let constants = &self.exec.constants;
        let top = self.top();
        let scope = Scope { regs: &top.code.regs, constants };
        if top.outs.len() != results.len() {
            return Err(bad_program(&format!(
                "expected {} results of a closure, found {}",
                top.outs.len(),
                results.len()
            )));
        }
        for (&reg, value) in top.outs.iter().zip(results.drain(..)) {
            scope.write(&mut top.frame, reg, value)?;
        }
        self.buffers.args.values = results;
        Ok(())
    }

    /// Copies the contents of registers, then the captured values, into `buffers`.
    fn read_args(&mut self, regs: &[Reg], captures: &[Value]) -> Result<(), Diagnostic> {
        let top = self.stack.last().expect("an activation is running");
        let scope = Scope { regs: &top.code.regs, constants: &self.exec.constants };
        let args = &mut self.buffers.args;
        args.values.clear();
        args.reserve(regs.len() + captures.len())?;
        for &reg in regs {
            args.values.push(scope.read(&top.frame, reg)?);
        }
        args.values.extend(captures.iter().cloned());
        Ok(())
    }

    fn read(&self, reg: Reg) -> Result<Value, Diagnostic> {
        let top = self.stack.last().expect("an activation is running");
        Scope { regs: &top.code.regs, constants: &self.exec.constants }.read(&top.frame, reg)
    }

    fn read_all(&self, regs: &[Reg]) -> Result<Fields, Diagnostic> {
        Fields::collect(regs.len(), regs.iter().map(|&reg| self.read(reg)))
    }

    /// Copies the arguments for the function of a closure into `buffers`, and returns the function.
    fn closure_args(&mut self, closure: Reg, args: &[Reg]) -> Result<u32, Diagnostic> {
        let closure = match self.read(closure)? {
            Value::Closure(closure) => closure,
            value => return Err(bad_program(&format!("expected a closure as the callee, found {}", value.kind()))),
        };
        self.read_args(args, &closure.captures)?;
        if self.buffers.args.values.len() != self.exec.program.functions[closure.function as usize].params as usize {
            return Err(bad_program(&format!(
                "expected {} closure arguments, found {}",
                self.exec.program.functions[closure.function as usize].params,
                self.buffers.args.values.len()
            )));
        }
        Ok(closure.function)
    }

    fn step(&mut self, instruction: usize, results: &mut Results<'_, '_>) -> Result<Flow<'e>, Diagnostic> {
        let (exec, cancel) = (self.exec, self.cancel);
        let top = self.stack.last_mut().expect("an activation is running");
        let code = top.code;
        let scope = Scope { regs: &code.regs, constants: &exec.constants };
        let buffers = &mut self.buffers;
        let caller = if self.is_direct { results.memory() } else { &mut [] };
        let instr = match &code.steps[instruction] {
            Step::Nop => return Ok(Flow::Next),
            Step::Kernel(step) => {
                let frame = &mut top.frame;
                let body = || cancel.within(|| step::kernel(scope, frame, step, buffers, caller));
                exec.pool.install_unless(step.is_small, body).map_err(|e| self.kernel_error(instruction, e))?;
                return Ok(Flow::Next);
            }
            Step::Dynamic(step) => {
                let (frame, recycler) = (&mut top.frame, &buffers.recycler);
                let result = step::run_dynamic(scope, frame, step, recycler, (&exec.pool, cancel));
                result.map_err(|e| self.with_origins(instruction, e))?;
                return Ok(Flow::Next);
            }
            Step::Alias { from, out, shape, call } => {
                let shape = shape.as_deref();
                step::alias(scope, &mut top.frame, *from, *out, shape, call.as_deref())
                    .map_err(|e| self.with_origins(instruction, e))?;
                return Ok(Flow::Next);
            }
            Step::Region(step) => return self.region(step, caller),
            Step::Copy(copy) => {
                self.wait(Some(&copy.footprint))?;
                step::copy(scope, &mut self.top().frame, copy, &exec.spaces)?;
                return Ok(Flow::Next);
            }
            Step::Control(instr) => instr,
        };
        // Calls and returns replace the activation whose memory the devices use.
        if !self.unfinished.is_empty()
            && !matches!(instr, Instr::Jump { .. } | Instr::Branch { .. } | Instr::Free { .. })
        {
            self.wait(None)?;
        }
        let top = self.stack.last_mut().expect("an activation is running");
        Ok(match instr {
            Instr::Kernel(_) | Instr::Alias(_) | Instr::Region { .. } | Instr::Copy { .. } => {
                unreachable!("load converts these instructions to steps")
            }
            Instr::Move { from, to } => {
                let value = scope.read(&top.frame, *from)?;
                scope.write(&mut top.frame, *to, value)?;
                Flow::Next
            }
            Instr::Jump { to } => Flow::Jump(*to),
            Instr::Branch { cond, otherwise } => match scope.read_bool(&top.frame, *cond)? {
                true => Flow::Next,
                false => Flow::Jump(*otherwise),
            },
            Instr::Call { function, args, outs } => {
                self.read_args(args, &[])?;
                Flow::Call(*function, outs)
            }
            Instr::TailCall { function, args } => {
                self.read_args(args, &[])?;
                Flow::TailCall(*function)
            }
            Instr::Closure { function, captures, out } => {
                let captures = self.read_all(captures)?;
                let value = Value::Closure(Arc::new(Closure { function: *function, captures }));
                scope.write(&mut self.top().frame, *out, value)?;
                Flow::Next
            }
            Instr::CallClosure { closure, args, outs } => Flow::Call(self.closure_args(*closure, args)?, outs),
            Instr::TailCallClosure { closure, args } => Flow::TailCall(self.closure_args(*closure, args)?),
            Instr::RefNew { values, out } => {
                let value = self.cells.make(self.read_all(values)?);
                scope.write(&mut self.top().frame, *out, value)?;
                Flow::Next
            }
            Instr::RefRead { cell, outs } => {
                let values = self.read(*cell)?.cell()?.read();
                if values.len() != outs.len() {
                    return Err(bad_program(&format!(
                        "expected {} registers for the values of a cell, found {}",
                        values.len(),
                        outs.len()
                    )));
                }
                for (&reg, value) in outs.iter().zip(values) {
                    scope.write(&mut self.top().frame, reg, value)?;
                }
                Flow::Next
            }
            Instr::RefWrite { cell, values } => {
                let cell = self.read(*cell)?.cell()?;
                drop(cell.replace(Some(self.read_all(values)?)));
                Flow::Next
            }
            Instr::Construct { tag, values, out } => {
                let fields = self.read_all(values)?;
                let value = Value::Data(Arc::new(Data { tag: *tag, fields }));
                scope.write(&mut self.top().frame, *out, value)?;
                Flow::Next
            }
            Instr::Test { value, tag, otherwise } => match scope.read(&top.frame, *value)?.data()?.tag == *tag {
                true => Flow::Next,
                false => Flow::Jump(*otherwise),
            },
            Instr::Fields { value, outs } => {
                let data = scope.read(&top.frame, *value)?.data()?;
                if data.fields.len() != outs.len() {
                    return Err(bad_program(&format!(
                        "expected {} registers for the fields of a value, found {}",
                        data.fields.len(),
                        outs.len()
                    )));
                }
                for (&reg, field) in outs.iter().zip(&*data.fields) {
                    scope.write(&mut top.frame, reg, field.clone())?;
                }
                Flow::Next
            }
            Instr::Unmatched { clauses } => {
                let name = &exec.program.functions[top.function as usize].name;
                let message = format!("no clause of a match in {name} matches the value");
                let diagnostic = Diagnostic::error(codes::runtime::NO_CLAUSE, message);
                return Err(diagnostic.note(format!("clauses: {clauses}")).help("add a clause `_ => ...`"));
            }
            Instr::Free { regs } => {
                for &reg in regs {
                    scope.write(&mut top.frame, reg, Value::Empty)?;
                }
                Flow::Next
            }
            Instr::Return { values } => Flow::Return(values),
        })
    }

    /// Runs a region. If all of its operands are in the memory of one device, the device may continue to work while the
    /// next steps run; otherwise the region first waits for unfinished work, and then runs to completion.
    fn region(&mut self, step: &'e RegionStep, caller: &mut [TensorViewMut<'_>]) -> Result<Flow<'e>, Diagnostic> {
        let exec = self.exec;
        let footprint = step.fixed_plan.as_ref().and_then(|(operands, _)| operands.footprint.as_ref());
        let space = footprint.and_then(|footprint| exec.spaces[footprint.space as usize].as_ref());
        let is_concurrent = space.is_some_and(|space| !space.memory.serves_one_run());
        if !is_concurrent && !self.unfinished.is_empty() {
            self.wait(None)?;
        }
        let top = self.stack.last_mut().expect("an activation is running");
        let scope = Scope { regs: &top.code.regs, constants: &exec.constants };
        let dependencies = match (is_concurrent, footprint) {
            (true, Some(footprint)) => Some(self.unfinished.dependencies(footprint)),
            _ => None,
        };
        let result = {
            let _guard = space.filter(|_| !is_concurrent).map(|space| lock(&space.one_run));
            step::region(scope, &mut top.frame, step, &mut self.buffers, caller, dependencies.as_deref())
        };
        drop(dependencies);
        match result {
            Ok(RegionOutcome::Done) => Ok(Flow::Next),
            Ok(RegionOutcome::Started(event)) => {
                self.unfinished.push(event, footprint.cloned().unwrap_or_default(), step.index);
                Ok(Flow::Next)
            }
            Ok(RegionOutcome::OnHost) => {
                self.wait(None)?;
                self.read_args(&step.inputs, &[])?;
                Ok(Flow::Call(exec.program.regions[step.index as usize].fallback, &step.outs))
            }
            Err(diagnostic) => Err(exec.check_lost(diagnostic, step.index)),
        }
    }

    /// Waits for the unfinished work that conflicts with a step, or for all unfinished work if `step` is `None`.
    fn wait(&mut self, step: Option<&Footprint>) -> Result<(), Diagnostic> {
        if self.unfinished.is_empty() {
            return Ok(());
        }
        let exec = self.exec;
        self.unfinished.wait(step, self.cancel).map_err(|(diagnostic, region)| exec.check_lost(diagnostic, region))
    }

    fn step_observed(
        &mut self,
        instruction: usize,
        observer: &dyn Observer,
        results: &mut Results<'_, '_>,
    ) -> Result<Flow<'e>, Diagnostic> {
        let function = self.top().function as usize;
        let program = &self.exec.program;
        let (read, outputs_written) = program.functions[function].code[instruction].operands();
        let inputs = self.shapes(&read);
        let start = Instant::now();
        let flow = self.step(instruction, results)?;
        let duration = start.elapsed();
        let is_call = matches!(flow, Flow::Call(..));
        let step = &self.exec.steps()[function][instruction];
        observer.step(&StepEvent {
            step,
            program,
            inputs,
            outputs: if is_call { Vec::new() } else { self.shapes(&outputs_written) },
            on_host: is_call && step.backend.is_some(),
            start,
            duration,
        });
        observer.failure().map_or(Ok(flow), Err)
    }

    fn shapes(&self, regs: &[Reg]) -> Vec<(DType, Shape)> {
        let top = self.stack.last().expect("an activation is running");
        let scope = Scope { regs: &top.code.regs, constants: &self.exec.constants };
        let tensors =
            regs.iter().filter_map(|&reg| Some((scope.reg(reg).ty.as_ref()?.dtype, scope.shape(&top.frame, reg))));
        tensors.collect()
    }

    /// Converts the failure of a kernel into a diagnostic.
    fn kernel_error(&self, instruction: usize, error: step::StepError) -> Diagnostic {
        match error {
            step::StepError::Kernel(message) => {
                self.with_origins(instruction, Diagnostic::error(codes::runtime::KERNEL_FAILED, message))
            }
            step::StepError::Other(diagnostic) => diagnostic,
        }
    }

    /// Prefixes a diagnostic with the operator, and adds the operator's origins in the model as notes.
    fn with_origins(&self, instruction: usize, mut diagnostic: Diagnostic) -> Diagnostic {
        let program = &self.exec.program;
        let function = self.stack.last().map_or(0, |top| top.function);
        if let Some(Instr::Kernel(call) | Instr::Alias(call)) =
            program.functions[function as usize].code.get(instruction)
        {
            diagnostic.message = format!("{}: {}", call.op, diagnostic.message);
            for source in call.origins.iter().filter_map(|&i| program.sources.get(i as usize)) {
                diagnostic = diagnostic.note(format!("model operator: {} ({})", source.name, source.op));
            }
        }
        diagnostic
    }
}
