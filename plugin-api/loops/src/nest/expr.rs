//! Expressions of a loop nest.
//!
//! Index arithmetic is exact integer arithmetic; the constructors fold constants, so that `0 * x + y` is `y`. Values
//! have an element type, and their operations are those of the [operator table](crate::operators::elementwise).

use crate::nest::Place;
use byoc_plugin_api::DType;
use std::fmt;
use std::ops::{Add, Div, Mul, Rem, Sub};

/// Expression over index variables, local variables and memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// Integer of index arithmetic.
    Index(i64),
    /// Floating-point number of an element type.
    Number(DType, f64),
    /// Integer of an element type.
    Integer(DType, i128),
    /// Variable, or a macro of the dialect.
    Name(String),
    /// Infix operator.
    Binary(Infix, Box<[Expr; 2]>),
    /// Integer operator of an element type whose overflow wraps.
    Wrapping(Infix, DType, Box<[Expr; 2]>),
    /// Negation.
    Negate(Box<Expr>),
    /// The second expression where the first holds, otherwise the third. The printers evaluate only one of them.
    Select(Box<[Expr; 3]>),
    /// Conversion of a value between element types: from float to integer it rounds toward zero, saturates, and maps NaN
    /// to 0. The value is a variable or a literal.
    Convert {
        /// Type of the value.
        from: DType,
        /// Type of the result.
        to: DType,
        /// Converted value.
        value: Box<Expr>,
    },
    /// Conversion without a check, as a cast of C; from an index if `from` is `None`.
    Cast(DType, Box<Expr>),
    /// Function of the operator table, by Relay name, on values of the element type.
    Math(&'static str, DType, Vec<Expr>),
    /// Function of the prelude.
    Call(&'static str, Vec<Expr>),
    /// Element of a tensor or of a local array.
    Load(Memory, DType, Box<Expr>),
    /// Address of an element.
    Address(Memory, DType, Box<Expr>),
    /// Consecutive float32 elements.
    LoadVector(Memory, i64, Box<Expr>),
    /// Number of a work-item or of a work-group along a dimension.
    Position(Position, u8),
}

/// Numbering of a device's work-items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Work-item in the whole launch.
    Global,
    /// Work-item in its work-group.
    Local,
    /// Work-group.
    Group,
}

/// Memory that an expression reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Memory {
    /// Tensor.
    Place(Place),
    /// Local array, or pointer variable.
    Local(String),
}

/// Declares the infix operators, each with its sign and its precedence in C, and with what it computes.
macro_rules! infix_operators {
    ($($name:ident $sign:literal $precedence:literal $doc:literal;)*) => {
        /// Infix operators.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Infix {
            $(#[doc = $doc] $name,)*
        }

        impl Infix {
            /// Returns the sign and the precedence in C.
            pub fn sign(self) -> (&'static str, u8) {
                match self {
                    $(Infix::$name => ($sign, $precedence),)*
                }
            }
        }
    };
}

infix_operators! {
    Or "||" 2 "One of the conditions holds.";
    And "&&" 3 "Both conditions hold.";
    BitOr "|" 4 "Bits.";
    BitXor "^" 5 "Bits.";
    BitAnd "&" 6 "Bits.";
    Eq "==" 7 "Equality.";
    Ne "!=" 7 "Inequality.";
    Lt "<" 8 "Comparison.";
    Le "<=" 8 "Comparison.";
    Gt ">" 8 "Comparison.";
    Ge ">=" 8 "Comparison.";
    Add "+" 10 "Sum.";
    Sub "-" 10 "Difference.";
    Mul "*" 11 "Product.";
    Div "/" 11 "Quotient; of integers rounded toward zero.";
    Rem "%" 11 "Remainder of integers.";
}

/// Declares the methods that return a condition.
macro_rules! conditions {
    ($($method:ident $infix:ident)*) => {$(
        #[doc = concat!("Returns the condition of [`Infix::", stringify!($infix), "`].")]
        pub fn $method(self, b: impl Into<Expr>) -> Expr {
            Expr::binary(Infix::$infix, self, b.into())
        }
    )*};
}

/// Returns the operands of an expression, as a slice or as a mutable slice.
macro_rules! operands {
    ($expr:expr, $slice:ident, $one:path, $none:expr) => {
        match $expr {
            Expr::Binary(_, operands) | Expr::Wrapping(_, _, operands) => operands.$slice(),
            Expr::Select(operands) => operands.$slice(),
            Expr::Negate(operand)
            | Expr::Convert { value: operand, .. }
            | Expr::Cast(_, operand)
            | Expr::Load(_, _, operand)
            | Expr::Address(_, _, operand)
            | Expr::LoadVector(_, _, operand) => $one(operand),
            Expr::Math(_, _, operands) | Expr::Call(_, operands) => operands.$slice(),
            Expr::Index(_) | Expr::Number(..) | Expr::Integer(..) | Expr::Name(_) | Expr::Position(..) => $none,
        }
    };
}

impl Expr {
    /// Returns a variable.
    pub fn name(name: impl Into<String>) -> Expr {
        Expr::Name(name.into())
    }

    /// Returns a number of an element type.
    pub fn number(dtype: DType, value: f64) -> Expr {
        match dtype {
            DType::F32 | DType::F64 => Expr::Number(dtype, value),
            _ => Expr::Integer(dtype, value as i128),
        }
    }

    /// Returns an infix expression.
    pub fn binary(infix: Infix, a: Expr, b: Expr) -> Expr {
        Expr::Binary(infix, Box::new([a, b]))
    }

    conditions! { lt Lt le Le gt Gt ge Ge equal Eq not_equal Ne and And or Or }

    /// Returns `a` where the condition holds, otherwise `b`.
    pub fn select(self, a: impl Into<Expr>, b: impl Into<Expr>) -> Expr {
        Expr::Select(Box::new([self, a.into(), b.into()]))
    }

    /// Returns the smaller of two indices.
    pub fn min(self, b: impl Into<Expr>) -> Expr {
        match (self, b.into()) {
            (Expr::Index(x), Expr::Index(y)) => Expr::Index(x.min(y)),
            (x, y) => x.clone().lt(y.clone()).select(x, y),
        }
    }

    /// Returns the larger of two indices.
    pub fn max(self, b: impl Into<Expr>) -> Expr {
        match (self, b.into()) {
            (Expr::Index(x), Expr::Index(y)) => Expr::Index(x.max(y)),
            (x, y) => x.clone().gt(y.clone()).select(x, y),
        }
    }

    /// Returns the index, limited to `0..size`.
    pub fn clamp(self, size: i64) -> Expr {
        self.clone().lt(0).select(0, self.clone().ge(size).select(size - 1, self))
    }

    /// Returns a load of an element.
    pub fn load(memory: impl Into<Memory>, dtype: DType, index: Expr) -> Expr {
        Expr::Load(memory.into(), dtype, Box::new(index))
    }

    /// Returns the address of an element.
    pub fn address(memory: impl Into<Memory>, dtype: DType, index: Expr) -> Expr {
        Expr::Address(memory.into(), dtype, Box::new(index))
    }

    /// Returns a conversion as a cast of C.
    pub fn cast(self, dtype: DType) -> Expr {
        Expr::Cast(dtype, Box::new(self))
    }

    /// Returns the value of a constant index.
    pub fn as_index(&self) -> Option<i64> {
        if let Expr::Index(value) = self { Some(*value) } else { None }
    }

    /// Returns the operands.
    pub fn operands(&self) -> &[Expr] {
        operands!(self, as_slice, std::slice::from_ref, &[])
    }

    fn operands_mut(&mut self) -> &mut [Expr] {
        operands!(self, as_mut_slice, std::slice::from_mut, &mut [])
    }

    /// Calls `visit` with the expression and with each expression inside it.
    pub fn visit<'e>(&'e self, visit: &mut impl FnMut(&'e Expr)) {
        let mut stack = vec![self];
        while let Some(expr) = stack.pop() {
            visit(expr);
            stack.extend(expr.operands());
        }
    }

    /// Replaces a variable, and local arrays of that name are left alone.
    pub fn substitute(&mut self, name: &str, value: &Expr) {
        let mut stack = vec![self];
        while let Some(expr) = stack.pop() {
            if matches!(expr, Expr::Name(found) if found == name) {
                *expr = value.clone();
                continue;
            }
            stack.extend(expr.operands_mut());
        }
    }

    /// Returns true if the expression reads a variable, or a local array of that name.
    pub fn reads(&self, name: &str) -> bool {
        let mut is_read = false;
        self.visit(&mut |expr| {
            is_read |= match expr {
                Expr::Name(found) => found == name,
                Expr::Load(Memory::Local(found), ..)
                | Expr::Address(Memory::Local(found), ..)
                | Expr::LoadVector(Memory::Local(found), ..) => found == name,
                _ => false,
            };
        });
        is_read
    }

    /// Returns the factor of a variable in an index; `None` if the index is not linear in it.
    pub fn coefficient(&self, name: &str) -> Option<i64> {
        match self {
            Expr::Name(found) => Some(i64::from(found == name)),
            Expr::Binary(infix, operands) => {
                let [a, b] = &**operands;
                let (x, y) = (a.coefficient(name)?, b.coefficient(name)?);
                match (infix, a, b) {
                    (Infix::Add, ..) => Some(x + y),
                    (Infix::Sub, ..) => Some(x - y),
                    (Infix::Mul, _, Expr::Index(factor)) => Some(x * factor),
                    (Infix::Mul, Expr::Index(factor), _) => Some(y * factor),
                    _ => ((x, y) == (0, 0)).then_some(0),
                }
            }
            other => (!other.reads(name)).then_some(0),
        }
    }
}

impl From<i64> for Expr {
    fn from(value: i64) -> Expr {
        Expr::Index(value)
    }
}

impl From<&str> for Expr {
    fn from(name: &str) -> Expr {
        Expr::name(name)
    }
}

impl From<&String> for Expr {
    fn from(name: &String) -> Expr {
        Expr::name(name.as_str())
    }
}

impl From<Place> for Memory {
    fn from(place: Place) -> Memory {
        Memory::Place(place)
    }
}

impl From<&str> for Memory {
    fn from(name: &str) -> Memory {
        Memory::Local(name.to_owned())
    }
}

/// Folds index constants, and writes everything else as it is.
macro_rules! arithmetic {
    ($($trait:ident $method:ident $infix:ident |$a:ident, $b:ident| $fold:expr;)*) => {$(
        impl<T: Into<Expr>> $trait<T> for Expr {
            type Output = Expr;

            fn $method(self, other: T) -> Expr {
                let ($a, $b) = (self, other.into());
                let folded: Option<Expr> = $fold;
                folded.unwrap_or_else(|| Expr::binary(Infix::$infix, $a, $b))
            }
        }
    )*};
}

arithmetic! {
    Add add Add |a, b| match (&a, &b) {
        (Expr::Index(x), Expr::Index(y)) => Some(Expr::Index(x + y)),
        (Expr::Index(0), _) => Some(b.clone()),
        (_, Expr::Index(0)) => Some(a.clone()),
        (_, Expr::Index(y)) if *y < 0 => Some(Expr::binary(Infix::Sub, a.clone(), Expr::Index(-y))),
        _ => None,
    };
    Sub sub Sub |a, b| match (&a, &b) {
        (Expr::Index(x), Expr::Index(y)) => Some(Expr::Index(x - y)),
        (_, Expr::Index(0)) => Some(a.clone()),
        (_, Expr::Index(y)) if *y < 0 => Some(Expr::binary(Infix::Add, a.clone(), Expr::Index(-y))),
        _ => None,
    };
    Mul mul Mul |a, b| match (&a, &b) {
        (Expr::Index(x), Expr::Index(y)) => Some(Expr::Index(x * y)),
        (Expr::Index(0), _) | (_, Expr::Index(0)) => Some(Expr::Index(0)),
        (Expr::Index(1), _) => Some(b.clone()),
        (_, Expr::Index(1)) => Some(a.clone()),
        _ => None,
    };
    Div div Div |a, b| match (&a, &b) {
        (Expr::Index(x), Expr::Index(y)) if *y != 0 => Some(Expr::Index(x / y)),
        (_, Expr::Index(1)) | (Expr::Index(0), _) => Some(a.clone()),
        _ => None,
    };
    Rem rem Rem |a, b| match (&a, &b) {
        (Expr::Index(x), Expr::Index(y)) if *y != 0 => Some(Expr::Index(x % y)),
        (_, Expr::Index(1)) => Some(Expr::Index(0)),
        _ => None,
    };
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Place(place) => place.fmt(f),
            Memory::Local(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_folded() {
        let x = || Expr::name("x");
        let [zero, one, six] = [0, 1, 6].map(Expr::Index);
        assert_eq!(x() * zero.clone() + Expr::Index(3) * 2, six);
        assert_eq!((x() + zero.clone()) * one.clone(), x());
        assert_eq!(x() % one, zero);
        assert_eq!(Expr::Index(3).min(7), Expr::Index(3));
    }

    #[test]
    fn factors_of_variables() {
        let index = Expr::name("r") * 12 + (Expr::name("c") * 4 + 7);
        assert_eq!(index.coefficient("c"), Some(4));
        assert_eq!(index.coefficient("z"), Some(0));
        assert_eq!((Expr::name("c") % 4).coefficient("c"), None);
        assert!(index.reads("r") && !index.reads("q"));
    }
}
