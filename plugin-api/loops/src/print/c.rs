//! C99 for programs, and C with the extensions of GCC and Clang for regions.

use super::c_types::{cast, int_literal, loaded, storage_type, stored, value_type};
use super::{Dialect, Lanes, Printer};
use crate::form::Form;
use crate::nest::stmt::{Parameter, visit};
use crate::nest::{Function, Memory, Place, Position, Stmt, Ty};
use byoc_plugin_api::DType;
use std::fmt::Write;

/// Functions of C by operator: Relay name, name for `float`, name for `double`. The prelude defines those with the prefix
/// `byoc_`.
const FUNCTIONS: &[(&str, &str, &str)] = &[
    ("exp", "byoc_exp", "exp"),
    ("erf", "byoc_erf", "erf"),
    ("tanh", "byoc_tanh", "tanh"),
    ("sigmoid", "byoc_sigmoid", "byoc_sigmoid64"),
    ("log", "logf", "log"),
    ("log2", "log2f", "log2"),
    ("log10", "log10f", "log10"),
    ("sqrt", "sqrtf", "sqrt"),
    ("sin", "sinf", "sin"),
    ("cos", "cosf", "cos"),
    ("tan", "tanf", "tan"),
    ("asin", "asinf", "asin"),
    ("acos", "acosf", "acos"),
    ("atan", "atanf", "atan"),
    ("sinh", "sinhf", "sinh"),
    ("cosh", "coshf", "cosh"),
    ("asinh", "asinhf", "asinh"),
    ("acosh", "acoshf", "acosh"),
    ("atanh", "atanhf", "atanh"),
    ("floor", "floorf", "floor"),
    ("ceil", "ceilf", "ceil"),
    ("round", "roundf", "round"),
    ("round_to_even", "rintf", "rint"),
    ("trunc", "truncf", "trunc"),
    ("abs", "fabsf", "fabs"),
    ("mod", "fmodf", "fmod"),
    ("floor_divide", "byoc_floor_divide", "byoc_floor_divide64"),
    ("floor_mod", "byoc_floor_mod", "byoc_floor_mod64"),
    ("power", "powf", "pow"),
    (crate::operators::elementwise::ROUND_TO_HALF, "byoc_round_half", "byoc_round_half"),
];

/// The form of the code, and the names of its region.
#[derive(Clone, Copy)]
pub struct C<'a> {
    /// Prefix of all names.
    pub symbol: &'a str,
    /// Form of the code.
    pub form: Form,
    /// True if no two pointers of the function refer to the same memory.
    pub restrict: bool,
}

impl Dialect for C<'_> {
    fn index_type(&self) -> &'static str {
        "int64_t"
    }

    fn value_type(&self, dtype: DType) -> &'static str {
        value_type(dtype).unwrap_or("void")
    }

    fn storage_type(&self, dtype: DType) -> &'static str {
        storage_type(dtype).unwrap_or("void")
    }

    fn vector_type(&self, _: i64) -> String {
        "byoc_vector".to_owned()
    }

    fn integer(&self, dtype: DType, value: i128) -> String {
        int_literal(dtype, value)
    }

    fn convert(&self, from: DType, to: DType, value: &str) -> String {
        cast(from, to, value).unwrap_or_default()
    }

    fn math(&self, name: &str, dtype: DType, _: i64, arguments: &[String]) -> String {
        let row = FUNCTIONS.iter().find(|row| row.0 == name);
        let function = row.map_or(name, |row| if dtype == DType::F64 { row.2 } else { row.1 });
        format!("{function}({})", arguments.join(", "))
    }

    fn load(&self, dtype: DType, address: &str, index: &str) -> String {
        loaded(dtype, &format!("{address}[{index}]"))
    }

    fn store(&self, dtype: DType, address: &str, index: &str, value: &str) -> String {
        format!("{address}[{index}] = {};", stored(dtype, value))
    }

    fn load_vector(&self, _: i64, address: &str, index: &str, _: i64, _: Option<&str>) -> String {
        format!("*(const byoc_vector *)({address} + {index})")
    }

    fn store_vector(&self, _: &Lanes, address: &str, index: &str, _: i64, value: &str) -> String {
        format!("*(byoc_vector *)({address} + {index}) = {value};")
    }

    fn position(&self, position: Position, dim: u8) -> String {
        // Tasks have no positions: these names stand in the listing of a device's schedule.
        match position {
            Position::Global => format!("item{dim}"),
            Position::Local => format!("local_item{dim}"),
            Position::Group => format!("group{dim}"),
        }
    }

    fn barrier(&self) -> &'static str {
        ""
    }

    fn simd(&self) -> Option<&'static str> {
        (self.form == Form::Tasks).then_some("BYOC_IVDEP")
    }

    fn array(&self, _: bool) -> (&'static str, &'static str) {
        ("", if self.form == Form::Tasks { "BYOC_ALIGNED " } else { "" })
    }

    fn pointer(&self, _: &Memory) -> &'static str {
        ""
    }
}

impl C<'_> {
    /// Returns the address of a place, from the arguments of a function.
    fn source(&self, place: Place) -> String {
        let (symbol, is_region) = (self.symbol, self.form == Form::Tasks);
        match place {
            Place::Input(i) => format!("args->in[{i}]"),
            Place::Output(i) => format!("args->out[{i}]"),
            Place::Constant(i) if is_region => format!("args->constants[{i}]"),
            Place::Packed(i) if is_region => format!("(const void *)(args->packed + {symbol}_at_p{i})"),
            Place::Constant(_) | Place::Packed(_) => format!("{symbol}_{place}"),
            Place::Work(i) => format!("(void *)(args->work + {symbol}_at_w{i})"),
        }
    }

    /// Appends the constants of a function.
    pub fn constants(&self, function: &Function, text: &mut String) {
        let printer = Printer::new(self, 1);
        let Some(last) = function.constants.len().checked_sub(1) else { return };
        text.push_str("enum {\n");
        for (i, (name, value, comment)) in function.constants.iter().enumerate() {
            let comma = if i < last { "," } else { "" };
            let _ = writeln!(text, "    {name} = {}{comma} /* {comment} */", printer.index(value));
        }
        text.push_str("};\n\n");
    }

    /// Appends the definition of a function.
    pub fn function(&self, function: &Function, text: &mut String) {
        let is_read = |name: &str| function.body.iter().any(|stmt| stmt.reads(name));
        let Function { name, parameters, body, .. } = function;
        let symbol = self.symbol;
        let uses = function.uses();
        let mut unused: Vec<&str> = Vec::new();
        match parameters {
            Some(parameters) => {
                let _ = write!(text, "static BYOC_INLINE void {name}(const {symbol}_args *args");
                for parameter in parameters {
                    let (ty, name) = match parameter {
                        Parameter::Index(name) => ("int64_t ", name),
                        Parameter::Floats(name) => ("const float *restrict ", name),
                    };
                    let _ = write!(text, ", {ty}{name}");
                    unused.extend((!is_read(name)).then_some(name.as_str()));
                }
                text.push_str(") {\n");
                unused.extend(uses.is_empty().then_some("args"));
            }
            None if self.form == Form::Tasks => {
                let _ = writeln!(text, "static void {name}(void *arg, int64_t task) {{");
                let _ = writeln!(text, "    const {symbol}_args *args = arg;");
                unused.extend((!is_read("task")).then_some("task"));
                unused.extend((uses.is_empty() && !is_read("args")).then_some("args"));
            }
            None => {
                let _ = writeln!(text, "void {name}(const {symbol}_args *args) {{");
                unused.extend(uses.is_empty().then_some("args"));
            }
        }
        for (place, &(dtype, is_written)) in &uses {
            let ty = storage_type(dtype).unwrap_or("void");
            let (qualifier, restrict) =
                (if is_written { "" } else { "const " }, if self.restrict { "restrict " } else { "" });
            let _ = writeln!(text, "    {qualifier}{ty} *{restrict}{place} = {};", self.source(*place));
        }
        for name in unused {
            let _ = writeln!(text, "    (void){name};");
        }
        let mut printer = Printer::new(self, 1);
        printer.statements(body);
        text.push_str(&printer.text);
        text.push_str("}\n\n");
    }

    /// Appends statements inside of a function, indented by one level.
    pub fn statements(&self, stmts: &[Stmt], text: &mut String) {
        let mut printer = Printer::new(self, 1);
        printer.statements(stmts);
        text.push_str(&printer.text);
    }
}

/// Returns the size in bytes of a function's local arrays.
pub fn stack_bytes(function: &Function) -> i64 {
    let mut bytes = 0;
    visit(&function.body, &mut |stmt| {
        if let Stmt::Array { ty: Ty::Of(dtype), len, .. } = stmt {
            bytes += len.as_index().unwrap_or(0) * dtype.size() as i64;
        }
    });
    bytes
}
