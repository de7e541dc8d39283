//! Generated inputs, random or constant. The generator is implemented here so that a seed yields the same values on
//! every platform and in every version.

use super::{DType, Element, OutOfMemory, Tensor};
use crate::with_dtype;

/// SplitMix64 (Steele, Lea and Flood 2014): one 64-bit state, passes BigCrush, sufficient for test data and weights.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniformly distributed number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a number with the standard normal distribution (Box-Muller transform).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Returns a tensor whose elements are all `value`.
///
/// # Errors
/// If the memory limit is exceeded or the system is out of memory.
pub fn filled(dtype: DType, shape: &[usize], value: f64) -> Result<Tensor, OutOfMemory> {
    let element_bytes = with_dtype!(dtype, T => bytemuck::bytes_of(&T::from_f64(value)).to_vec());
    Tensor::build(dtype, shape, |bytes| {
        bytes.chunks_exact_mut(element_bytes.len()).for_each(|c| c.copy_from_slice(&element_bytes))
    })
}

/// Returns a random tensor, for sizes known to be small.
///
/// # Panics
/// If the allocation fails. Use [`try_tensor`] for sizes that come from a model.
pub fn tensor(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    try_tensor(dtype, shape, seed).expect("a small tensor fits into memory")
}

/// Returns a random tensor: floats uniform in [0, 1), integers in [0, 10), Booleans 0 or 1.
///
/// # Errors
/// If the memory limit is exceeded or the system is out of memory.
pub fn try_tensor(dtype: DType, shape: &[usize], seed: u64) -> Result<Tensor, OutOfMemory> {
    let mut random = Random::new(seed);
    Tensor::build(dtype, shape, |bytes| {
        with_dtype!(dtype, T => {
            for value in bytemuck::cast_slice_mut::<u8, T>(bytes) {
                *value = T::from_f64(match dtype {
                    DType::Bool => (random.uniform() * 2.0).floor(),
                    d if d.is_int() || d.is_small_int() => (random.uniform() * 10.0).floor(),
                    // Lower-precision floats may round up to 1, which is still a valid probability.
                    _ => random.uniform(),
                });
            }
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_tensors_hold_the_value() {
        assert_eq!(filled(DType::I16, &[2], 3.0).unwrap(), Tensor::from_slice(&[2], &[3i16, 3]));
        assert_eq!(filled(DType::Bool, &[2], 1.0).unwrap(), Tensor::from_bools(&[2], &[true, true]));
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // Published test vector for seed 1234567.
        let mut random = Random::new(1234567);
        assert_eq!(random.next_u64(), 6457827717110365317);
        assert_eq!(random.next_u64(), 3203168211198807973);
    }

    #[test]
    fn values_are_in_range() {
        let ints = tensor(DType::I64, &[1000], 7).view().to_i64s().unwrap();
        assert!((0..10).all(|digit| ints.contains(&digit)) && ints.iter().all(|v| (0..10).contains(v)));
        let floats = tensor(DType::F32, &[1000], 7).view().to_f64s();
        assert!(floats.iter().all(|v| (0.0..=1.0).contains(v)));
        assert_eq!(tensor(DType::F32, &[5], 7), tensor(DType::F32, &[5], 7));
        assert_ne!(tensor(DType::F32, &[5], 7), tensor(DType::F32, &[5], 8));
    }

    #[test]
    fn normal_has_unit_variance() {
        let mut random = Random::new(3);
        let n = 20_000;
        let values: Vec<f64> = (0..n).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        assert!(
            mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05,
            "expected mean 0 and variance 1, found mean {mean} and variance {variance}"
        );
    }
}
