//! Run inputs and outputs of the library interface.

use byoc_ir::tensor::{Tensor, TensorView};
use smallvec::SmallVec;
use std::ops::Index;
use std::sync::Arc;

/// Value of one input.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// Tensor whose bytes are shared with the run, not copied.
    Tensor(Tensor),
    /// Borrowed elements, which are copied to memory that later runs reuse.
    View(TensorView<'a>),
}

impl From<Tensor> for Input<'_> {
    fn from(tensor: Tensor) -> Self {
        Input::Tensor(tensor)
    }
}

impl From<&Tensor> for Input<'_> {
    fn from(tensor: &Tensor) -> Self {
        Input::Tensor(tensor.clone())
    }
}

impl<'a> From<TensorView<'a>> for Input<'a> {
    fn from(view: TensorView<'a>) -> Self {
        Input::View(view)
    }
}

/// Run inputs: values in the order of the model's inputs, or (name, value) pairs in any order.
#[derive(Clone, Debug)]
pub struct Inputs<'a>(pub(crate) SmallVec<[(Option<&'a str>, Input<'a>); 4]>);

impl<'a> Inputs<'a> {
    /// Collects values in the order of the model's inputs.
    pub fn ordered<T: Into<Input<'a>>>(values: impl IntoIterator<Item = T>) -> Inputs<'a> {
        Inputs(values.into_iter().map(|value| (None, value.into())).collect())
    }

    /// Collects values by name.
    pub fn named<T: Into<Input<'a>>>(values: impl IntoIterator<Item = (&'a str, T)>) -> Inputs<'a> {
        Inputs(values.into_iter().map(|(name, value)| (Some(name), value.into())).collect())
    }
}

impl<'a, T: Into<Input<'a>>, const N: usize> From<[T; N]> for Inputs<'a> {
    fn from(values: [T; N]) -> Self {
        Inputs::ordered(values)
    }
}

impl<'a, T: Into<Input<'a>>, const N: usize> From<[(&'a str, T); N]> for Inputs<'a> {
    fn from(values: [(&'a str, T); N]) -> Self {
        Inputs::named(values)
    }
}

impl<'a> From<&'a [Tensor]> for Inputs<'a> {
    fn from(values: &'a [Tensor]) -> Self {
        Inputs::ordered(values)
    }
}

impl<'a> From<&'a Vec<Tensor>> for Inputs<'a> {
    fn from(values: &'a Vec<Tensor>) -> Self {
        Inputs::ordered(values)
    }
}

impl From<Vec<Tensor>> for Inputs<'_> {
    fn from(values: Vec<Tensor>) -> Self {
        Inputs::ordered(values)
    }
}

/// Run results: one tensor per output, accessible by position and by name.
#[derive(Clone, Debug)]
pub struct Outputs {
    pub(crate) names: Arc<[String]>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Outputs {
    /// Returns the output with the given name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(self.names.iter().position(|own_name| own_name == name)?)
    }

    /// Iterates over names and tensors, in the order of the model.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }

    /// Returns the number of outputs.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns true if the model has no outputs.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the tensors, in the order of the model.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }
}

impl Index<usize> for Outputs {
    type Output = Tensor;

    fn index(&self, index: usize) -> &Tensor {
        &self.tensors[index]
    }
}

impl Index<&str> for Outputs {
    type Output = Tensor;

    /// Returns the output with the given name.
    ///
    /// # Panics
    /// If the model has no output of that name; [`Outputs::get`] returns `None` instead.
    fn index(&self, name: &str) -> &Tensor {
        self.get(name).unwrap_or_else(|| panic!("the model has no output \"{name}\""))
    }
}
