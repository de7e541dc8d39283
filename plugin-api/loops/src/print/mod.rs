//! Printers: a function of a loop nest as text. The languages share the syntax of C; a [`Dialect`] writes what differs, a
//! [`kernel::KernelDialect`] also the parameters of a kernel.

pub mod c;
pub mod c_types;
pub mod cuda;
pub mod kernel;
pub mod opencl;

use crate::nest::stmt::Grid;
use crate::nest::{Expr, Infix, Loop, Memory, Mode, Place, Position, Reduce, Stmt, Ty};
use byoc_plugin_api::DType;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Precedence of a conditional expression, a unary operator and an operand of a postfix operator.
const SELECT: u8 = 1;
const UNARY: u8 = 12;
const POSTFIX: u8 = 13;

/// Access of a vector to memory.
#[derive(Clone, Debug)]
pub struct Lanes {
    /// Index variable of the first element.
    pub var: String,
    /// Number of elements.
    pub width: i64,
    /// Number of elements that exist, as text; `None` if all do.
    pub valid: Option<String>,
}

/// Syntax in which a language differs from the others.
pub trait Dialect {
    /// Returns the type of an index.
    fn index_type(&self) -> &'static str;
    /// Returns the type of a value of an element type.
    fn value_type(&self, dtype: DType) -> &'static str;
    /// Returns the type of an element in memory.
    fn storage_type(&self, dtype: DType) -> &'static str;
    /// Returns the type of a vector of float32.
    fn vector_type(&self, width: i64) -> String;
    /// Formats a choice per element of a vector, of a condition and two values; `None` if it is written as `?:`.
    fn select(&self, _width: i64, _operands: [&str; 3]) -> Option<String> {
        None
    }
    /// Formats an integer.
    fn integer(&self, dtype: DType, value: i128) -> String;
    /// Formats a conversion of the variable or literal `value`.
    fn convert(&self, from: DType, to: DType, value: &str) -> String;
    /// Formats a function of the operator table on vectors of `width` elements.
    fn math(&self, name: &str, dtype: DType, width: i64, arguments: &[String]) -> String;
    /// Formats the value of an element in memory; `address` is the name of a pointer or array, `index` an index.
    fn load(&self, dtype: DType, address: &str, index: &str) -> String;
    /// Formats the store of a value to memory.
    fn store(&self, dtype: DType, address: &str, index: &str, value: &str) -> String;
    /// Formats a load of a vector whose elements are `stride` apart.
    fn load_vector(&self, width: i64, address: &str, index: &str, stride: i64, valid: Option<&str>) -> String;
    /// Formats a store of a vector whose elements are `stride` apart.
    fn store_vector(&self, lanes: &Lanes, address: &str, index: &str, stride: i64, value: &str) -> String;
    /// Formats the number of a work-item or a work-group.
    fn position(&self, position: Position, dim: u8) -> String;
    /// Returns the statement that waits for the work-group.
    fn barrier(&self) -> &'static str;
    /// Returns the line before a loop whose iterations are independent.
    fn simd(&self) -> Option<&'static str>;
    /// Returns the qualifiers of a local array, before its type and before its name.
    fn array(&self, is_shared: bool) -> (&'static str, &'static str);
    /// Returns the qualifier of a pointer to memory.
    fn pointer(&self, memory: &Memory) -> &'static str;
}

/// Text of a function under construction.
pub struct Printer<'d> {
    dialect: &'d dyn Dialect,
    /// Text so far.
    pub text: String,
    depth: usize,
    /// Arguments of the kernel, in parameter order, and its launch; `None` outside of kernels.
    kernel: Option<(&'d [Place], Grid)>,
    lanes: Option<Lanes>,
    /// Types of the variables and arrays that are declared.
    types: BTreeMap<String, Ty>,
    /// Memory of the pointer variables.
    pointers: BTreeMap<String, Memory>,
}

impl<'d> Printer<'d> {
    /// Creates a printer whose statements are indented by `depth` levels.
    pub fn new(dialect: &'d dyn Dialect, depth: usize) -> Printer<'d> {
        let (types, pointers) = (BTreeMap::new(), BTreeMap::new());
        Printer { dialect, text: String::new(), depth, kernel: None, lanes: None, types, pointers }
    }

    /// Appends a line.
    pub fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "{}{text}", "    ".repeat(self.depth));
    }

    /// Appends statements.
    pub fn statements(&mut self, stmts: &[Stmt]) {
        stmts.iter().for_each(|stmt| self.statement(stmt));
    }

    fn block(&mut self, head: &str, body: &[Stmt]) {
        self.line(&format!("{head} {{"));
        self.branch(body);
        self.line("}");
    }

    fn ty(&self, ty: Ty) -> String {
        match (ty, &self.lanes) {
            (Ty::Index, _) => self.dialect.index_type().to_owned(),
            (Ty::Of(DType::F32), Some(lanes)) => self.dialect.vector_type(lanes.width),
            (Ty::Of(dtype), _) => self.dialect.value_type(dtype).to_owned(),
            (Ty::Vector(width), _) => self.dialect.vector_type(width),
        }
    }

    /// Records the type of a variable, and returns it as text.
    fn declare(&mut self, name: &str, ty: Ty) -> String {
        let recorded = match (ty, &self.lanes) {
            (Ty::Of(DType::F32), Some(lanes)) => Ty::Vector(lanes.width),
            _ => ty,
        };
        self.types.insert(name.to_owned(), recorded);
        self.ty(ty)
    }

    /// Formats a value of the type, of a vector where lanes are computed.
    fn typed(&self, ty: Ty, value: &Expr) -> String {
        if ty == Ty::Index { self.index(value) } else { self.expr(value, 0) }
    }

    fn statement(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Let { name, ty, value, note } => {
                let value = self.typed(*ty, value);
                let ty = self.declare(name, *ty);
                let note = if note.is_empty() { String::new() } else { format!(" /* {note} */") };
                self.line(&format!("const {ty} {name} = {value};{note}"));
            }
            Stmt::Var { name, ty, value } => {
                let value = self.typed(*ty, value);
                let ty = self.declare(name, *ty);
                self.line(&format!("{ty} {name} = {value};"));
            }
            Stmt::Set { name, value } => {
                let is_index = self.types.get(name) == Some(&Ty::Index);
                let value = if is_index { self.index(value) } else { self.expr(value, 0) };
                self.line(&format!("{name} = {value};"));
            }
            Stmt::Array { name, ty, len, shared, values } => {
                let (before, aligned) = self.dialect.array(*shared);
                let values: Vec<String> = values.iter().map(|value| self.index(value)).collect();
                let values = if values.is_empty() { String::new() } else { format!(" = {{{}}}", values.join(", ")) };
                let len = self.index(len);
                let ty = self.declare(name, *ty);
                self.line(&format!("{before}{ty} {aligned}{name}[{len}]{values};"));
            }
            Stmt::Pointer { name, dtype, value } => {
                let (qualifier, ty) = (self.qualifier(value), self.dialect.storage_type(*dtype));
                if let Some(memory) = pointed(value) {
                    self.pointers.insert(name.clone(), memory.clone());
                }
                let value = self.index(value);
                self.line(&format!("{qualifier}const {ty} *{name} = {value};"));
            }
            Stmt::Store { memory, dtype, index, value } => {
                let name = self.memory(memory);
                let value = self.expr(value, 0);
                let text = match &self.lanes {
                    Some(lanes) => {
                        let stride = index.coefficient(&lanes.var).unwrap_or(1);
                        self.dialect.store_vector(lanes, &name, &self.index(index), stride, &value)
                    }
                    None => self.dialect.store(*dtype, &name, &self.index(index), &value),
                };
                self.line(&text);
            }
            Stmt::For(found) => self.print_loop(found),
            Stmt::Lanes { var, first, width, end, body } => self.print_lanes(var, first, *width, *end, body),
            Stmt::If { condition, then, otherwise } => self.print_branches(condition, then, otherwise),
            Stmt::Call(name, arguments) => {
                let arguments: Vec<String> = arguments.iter().map(|argument| self.index(argument)).collect();
                self.line(&format!("{name}({});", arguments.join(", ")));
            }
            Stmt::Foreign(lines, _) => lines.iter().for_each(|line| self.line(line)),
            Stmt::Reduce(reduce) => self.print_reduction(reduce),
            Stmt::Leave(condition) => {
                let condition = self.index(condition);
                self.line(&format!("if ({condition})\n{}return;", "    ".repeat(self.depth + 1)));
            }
            Stmt::Break(condition) => {
                let condition = self.index(condition);
                self.line(&format!("if ({condition})\n{}break;", "    ".repeat(self.depth + 1)));
            }
            Stmt::Barrier => self.line(self.dialect.barrier()),
        }
    }

    /// Prints a conditional statement, a chain of them without further nesting.
    fn print_branches(&mut self, condition: &Expr, then: &[Stmt], mut otherwise: &[Stmt]) {
        let condition = self.index(condition);
        self.line(&format!("if ({condition}) {{"));
        self.branch(then);
        while let [Stmt::If { condition, then, otherwise: rest }] = otherwise {
            let condition = self.index(condition);
            self.line(&format!("}} else if ({condition}) {{"));
            self.branch(then);
            otherwise = rest;
        }
        if !otherwise.is_empty() {
            self.line("} else {");
            self.branch(otherwise);
        }
        self.line("}");
    }

    fn branch(&mut self, stmts: &[Stmt]) {
        self.depth += 1;
        self.statements(stmts);
        self.depth -= 1;
    }

    fn print_loop(&mut self, found: &Loop) {
        let Loop { var, from, to, step, mode, body } = found;
        let ty = self.declare(var, Ty::Index);
        if let Mode::Items(dim) = mode {
            let (size, group) = self.items(*dim as usize);
            let position = self.dialect.position(Position::Global, *dim);
            self.line(&format!("const {ty} {var} = {position};"));
            if size % group.max(1) != 0 {
                self.statement(&Stmt::Leave(Expr::from(var).ge(to.clone())));
            }
            return self.statements(body);
        }
        // A loop of one point is its body, unless the body ends it.
        let ends = body.iter().any(|stmt| matches!(stmt, Stmt::Break(_)));
        if *from == Expr::Index(0) && *to == Expr::Index(1) && *step == Expr::Index(1) && !ends {
            let mut point = Vec::new();
            if body.iter().any(|stmt| stmt.reads(var)) {
                point.push(Stmt::index(var, 0));
            }
            point.extend(body.iter().cloned());
            let declares = |stmt: &Stmt| !matches!(stmt, Stmt::For(_) | Stmt::Call(..) | Stmt::Store { .. });
            if point.iter().any(declares) {
                self.line("{");
                self.branch(&point);
                self.line("}");
            } else {
                self.statements(&point);
            }
            return;
        }
        let (from, to) = (self.index(from), self.index(to));
        let step = if *step == Expr::Index(1) { format!("++{var}") } else { format!("{var} += {}", self.index(step)) };
        if let Some(line) = self.dialect.simd().filter(|_| *mode == Mode::Simd) {
            self.line(line);
        }
        self.block(&format!("for ({ty} {var} = {from}; {var} < {to}; {step})"), body);
    }

    fn print_lanes(&mut self, var: &str, first: &Expr, width: i64, end: Option<i64>, body: &[Stmt]) {
        let first = self.index(first);
        let ty = self.declare(var, Ty::Index);
        self.line(&format!("const {ty} {var} = {first};"));
        let valid = end.map(|end| {
            self.line(&format!("const {ty} {var}_valid = min({width}, {end} - {var});"));
            format!("{var}_valid")
        });
        self.lanes = Some(Lanes { var: var.to_owned(), width, valid });
        self.statements(body);
        self.lanes = None;
    }

    fn print_reduction(&mut self, reduce: &Reduce) {
        let Reduce { name, dtype, start, loops, value } = reduce;
        self.statement(&Stmt::Var { name: name.clone(), ty: Ty::Of(*dtype), value: start.clone() });
        let update = vec![Stmt::Set { name: name.clone(), value: value.clone() }];
        let nest = loops.iter().rev().fold(update, |body, level| vec![Loop { body, ..level.clone() }.into()]);
        self.statements(&nest);
    }

    fn lane_variable(&self) -> &str {
        self.lanes.as_ref().map_or("", |lanes| lanes.var.as_str())
    }

    fn memory(&self, memory: &Memory) -> String {
        match memory {
            Memory::Place(place) => self.place(*place),
            Memory::Local(name) => name.clone(),
        }
    }

    /// Returns the name of the pointer to a place: in a kernel, that of its parameter.
    fn place(&self, place: Place) -> String {
        match self.kernel {
            Some((arguments, _)) => format!("p{}", arguments.iter().position(|&found| found == place).unwrap_or(0)),
            None => place.to_string(),
        }
    }

    /// Returns the extent of the launch along a dimension, and the size of a work-group, for loops over work-items.
    fn items(&self, dim: usize) -> (i64, i64) {
        self.kernel.map_or((1, 1), |(_, grid)| (grid.items[dim], grid.local[dim] as i64))
    }

    /// Returns the qualifier of a pointer with the value of an address.
    fn qualifier(&self, address: &Expr) -> &'static str {
        pointed(address).map_or("", |memory| match memory {
            Memory::Local(name) if self.pointers.contains_key(name) => self.dialect.pointer(&self.pointers[name]),
            memory => self.dialect.pointer(memory),
        })
    }

    /// Formats an expression that is the same for all lanes.
    fn index(&self, expr: &Expr) -> String {
        self.print(expr, 0, false)
    }

    fn expr(&self, expr: &Expr, precedence: u8) -> String {
        self.print(expr, precedence, self.lanes.is_some())
    }

    /// Formats an expression as an operand of an operator with a precedence; `in_lanes` if it has a value per lane.
    fn print(&self, expr: &Expr, precedence: u8, in_lanes: bool) -> String {
        let width = self.lanes.as_ref().filter(|_| in_lanes).map_or(1, |lanes| lanes.width);
        let spread = |text: String| match width {
            1 => text,
            _ => format!("({})({text})", self.dialect.vector_type(width)),
        };
        let (text, own_precedence) = match expr {
            Expr::Index(value) => (value.to_string(), if *value < 0 { UNARY } else { POSTFIX }),
            Expr::Number(dtype, value) => (spread(c_types::literal(*dtype, *value)), POSTFIX),
            Expr::Integer(dtype, value) => {
                (self.dialect.integer(*dtype, *value), if *value < 0 { UNARY } else { POSTFIX })
            }
            Expr::Name(name) => {
                let is_scalar = matches!(self.types.get(name), Some(Ty::Of(_)));
                (if is_scalar { spread(name.clone()) } else { name.clone() }, POSTFIX)
            }
            Expr::Binary(infix, operands) => {
                let (sign, own) = infix.sign();
                // In C, these pairs of operators are easily mistaken, and compilers warn of them.
                let operand = |i: usize, least: u8| {
                    let text = self.print(&operands[i], least, in_lanes);
                    if least <= 8 && is_mistaken(*infix, &operands[i]) { format!("({text})") } else { text }
                };
                let sign = match (infix, width) {
                    (Infix::Or, 2..) => "|",
                    (Infix::And, 2..) => "&",
                    _ => sign,
                };
                (format!("{} {sign} {}", operand(0, own), operand(1, own + 1)), own)
            }
            Expr::Wrapping(infix, dtype, operands) => {
                let ty = self.dialect.value_type(*dtype);
                let unsigned = self.dialect.value_type(if *dtype == DType::I64 { DType::U64 } else { DType::U32 });
                let operand = |i: usize| format!("({unsigned}){}", self.print(&operands[i], UNARY, in_lanes));
                (format!("({ty})({} {} {})", operand(0), infix.sign().0, operand(1)), UNARY)
            }
            Expr::Negate(operand) => (format!("-{}", self.print(operand, UNARY, in_lanes)), UNARY),
            Expr::Select(operands) => {
                let [condition, then, otherwise] = &**operands;
                let condition = self.print(condition, SELECT + 1, in_lanes);
                let (then, otherwise) = (self.print(then, SELECT, in_lanes), self.print(otherwise, SELECT, in_lanes));
                match self.dialect.select(width, [&condition, &then, &otherwise]) {
                    Some(call) => (call, POSTFIX),
                    None => (format!("{condition} ? {then} : {otherwise}"), SELECT),
                }
            }
            Expr::Convert { from, to, value } => {
                (self.dialect.convert(*from, *to, &self.print(value, UNARY, in_lanes)), SELECT)
            }
            Expr::Cast(dtype, value) => {
                let value = self.print(value, UNARY, false);
                (spread(format!("({}){value}", self.dialect.value_type(*dtype))), UNARY)
            }
            Expr::Math(name, dtype, operands) => {
                let operands: Vec<String> = operands.iter().map(|operand| self.print(operand, 0, in_lanes)).collect();
                (self.dialect.math(name, *dtype, width, &operands), POSTFIX)
            }
            Expr::Call(name, operands) => {
                let operands: Vec<String> = operands.iter().map(|operand| self.print(operand, 0, false)).collect();
                (spread(format!("{name}({})", operands.join(", "))), POSTFIX)
            }
            Expr::Load(memory, dtype, index) => {
                let text = self.load(memory, *dtype, index, in_lanes);
                (text.unwrap_or_else(spread), POSTFIX)
            }
            Expr::Address(memory, _, index) => match &**index {
                Expr::Index(0) => (self.memory(memory), POSTFIX),
                index => (format!("{} + {}", self.memory(memory), self.print(index, 11, false)), 10),
            },
            Expr::LoadVector(memory, width, index) => {
                (self.dialect.load_vector(*width, &self.memory(memory), &self.index(index), 1, None), POSTFIX)
            }
            Expr::Position(position, dim) => (self.dialect.position(*position, *dim), POSTFIX),
        };
        if own_precedence < precedence { format!("({text})") } else { text }
    }

    /// Formats the load of an element, or of a vector of them; `Err` for one element, which all lanes get.
    fn load(&self, memory: &Memory, dtype: DType, index: &Expr, in_lanes: bool) -> Result<String, String> {
        let name = self.memory(memory);
        let is_vector_array =
            matches!(memory, Memory::Local(name) if matches!(self.types.get(name), Some(Ty::Vector(_))));
        let stride = index.coefficient(self.lane_variable());
        let at = self.index(index);
        match (&self.lanes, stride) {
            (Some(lanes), Some(stride)) if in_lanes && stride != 0 => {
                Ok(self.dialect.load_vector(lanes.width, &name, &at, stride, lanes.valid.as_deref()))
            }
            _ if is_vector_array => Ok(format!("{name}[{at}]")),
            _ => Err(self.dialect.load(dtype, &name, &at)),
        }
    }
}

/// Returns text that neither ends a comment of C nor begins one inside of it.
pub fn comment(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *")
}

/// Returns the memory that an address refers to.
fn pointed(address: &Expr) -> Option<&Memory> {
    match address {
        Expr::Address(memory, ..) => Some(memory),
        Expr::Select(operands) => pointed(&operands[1]),
        _ => None,
    }
}

/// Returns true if the operand of an infix operator gets parentheses although its own operator binds more tightly.
fn is_mistaken(infix: Infix, operand: &Expr) -> bool {
    let Expr::Binary(inner, _) = operand else { return false };
    let is_comparison = |infix: Infix| (7..=8).contains(&infix.sign().1);
    let is_bits = matches!(infix, Infix::BitAnd | Infix::BitOr | Infix::BitXor);
    match infix {
        Infix::Or => *inner == Infix::And,
        _ if is_bits || is_comparison(infix) => is_comparison(*inner) || (is_bits && inner.sign().1 >= 10),
        _ => false,
    }
}
