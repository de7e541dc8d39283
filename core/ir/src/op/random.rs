//! Random numbers by the counter-based generator Threefry-4x64 with 20 rounds (Salmon et al., "Parallel random numbers: as
//! easy as 1, 2, 3", 2011), as Relay defines it: without the last injection of the key. All state is in the key, so that
//! equal keys give equal numbers.
//!
//! A key has ten words: four of the key proper; four of the counter, namely two of the path, which tells the results of
//! splitting apart, an unused one, and the position; and two that have one bit, the next bit of the path.

use super::elementwise::one_flop_per_element;
use super::repeat::dims_of;
use super::scalar::{Reader, Writer};
use super::{AttrDef, AttrKind, Default, Evaluation, Params, Relation, TypeResult};
use crate::cancel::Ticks;
use crate::diag::{Diagnostic, codes};
use crate::ir::{Dim, Type};
use crate::op::facts::Properties;
use crate::tensor::{DType, TensorView, TensorViewMut};
use std::f64::consts::TAU;

const KEY_WORDS: usize = 10;
const OUT_SHAPE: AttrDef = AttrDef::new("out_shape", AttrKind::Ints, Default::Required, "shape of the random numbers");
const OUT_DTYPE: AttrDef = AttrDef::new("out_dtype", AttrKind::DType, Default::Str(""), "float32 or float64");

fn key_type() -> Type {
    Type::tensor(DType::U64, &[KEY_WORDS])
}

/// Checks that argument 0 is a key.
fn check_key(relation: &Relation<'_>) -> Result<(), Box<Diagnostic>> {
    let key = relation.tensor(0)?;
    let has_size = key.dims.len() == 1 && key.dims[0].fixed().is_none_or(|n| n == KEY_WORDS);
    if key.dtype == DType::U64 && has_size {
        Ok(())
    } else {
        Err(relation.mismatch(format!("key: expected {}, found {}", key_type(), relation.args[0])))
    }
}

fn with_key(numbers: Type) -> TypeResult {
    Ok(Type::tuple([key_type(), numbers]))
}

/// Rotation distances of the two halves of a block, repeated every eight rounds.
const ROTATIONS: [[u32; 2]; 8] = [[14, 16], [52, 57], [23, 40], [5, 37], [25, 33], [46, 12], [58, 22], [32, 32]];
/// Parity constant of the key schedule.
const PARITY: u64 = 0x1BD1_1BDA_A9FC_1A22;

/// Encrypts a counter.
fn threefry(key: [u64; 4], counter: [u64; 4]) -> [u64; 4] {
    let schedule = [key[0], key[1], key[2], key[3], key.iter().fold(PARITY, |parity, word| parity ^ word)];
    let inject = |block: &mut [u64; 4], round: usize| {
        for (i, word) in block.iter_mut().enumerate() {
            *word = word.wrapping_add(schedule[(round + i) % 5]);
        }
        block[3] = block[3].wrapping_add(round as u64);
    };
    let mut block = counter;
    for group in 0..5 {
        inject(&mut block, group);
        for round in 0..4 {
            let [left, right] = ROTATIONS[(group * 4 + round) % 8];
            block[0] = block[0].wrapping_add(block[1]);
            block[1] = block[1].rotate_left(left) ^ block[0];
            block[2] = block[2].wrapping_add(block[3]);
            block[3] = block[3].rotate_left(right) ^ block[2];
            block.swap(1, 3);
        }
    }
    block
}

/// State of a generator.
#[derive(Clone, Copy)]
struct Generator([u64; KEY_WORDS]);

impl Generator {
    fn read(view: &TensorView<'_>) -> Generator {
        let reader = Reader::new(view);
        Generator(std::array::from_fn(|i| reader.int(i) as u64))
    }

    fn write(&self, output: &mut TensorViewMut<'_>) {
        output.as_mut_slice::<u64>().copy_from_slice(&self.0);
    }

    fn block(&self, counter: [u64; 4]) -> [u64; 4] {
        let [a, b, c, d, ..] = self.0;
        threefry([a, b, c, d], counter)
    }

    fn counter(&self) -> [u64; 4] {
        let [.., a, b, c, d, _, _] = self.0;
        [a, b, c, d]
    }

    /// Replaces the key proper, with an empty path.
    fn with_key(key: [u64; 4], next_bit: u64) -> Generator {
        let [a, b, c, d] = key;
        Generator([a, b, c, d, 0, 0, 0, 0, next_bit, 0])
    }

    /// Returns the generator with the bit for the next bit of the path moved one position to the right.
    fn shifted(&self) -> Generator {
        let mut shifted = *self;
        [shifted.0[8], shifted.0[9]] = match [self.0[8], self.0[9]] {
            [1, _] => [0, 1 << 63],
            [0, low] => [0, low >> 1],
            [high, _] => [high >> 1, 0],
        };
        shifted
    }

    /// Returns the generator with the next bit of its path set, and the generator after it in the path.
    fn branched(&self) -> Generator {
        let mut branched = self.shifted();
        branched.0[4] |= self.0[8];
        branched.0[5] |= self.0[9];
        branched
    }

    fn is_path_full(&self) -> bool {
        self.0[8] == 0 && self.0[9] == 0
    }

    /// Splits the generator in two.
    fn split(&self) -> [Generator; 2] {
        if self.is_path_full() {
            let left = Generator::with_key(self.block(self.counter()), 1 << 62);
            let mut right = left;
            right.0[4] = 1 << 63;
            return [left, right];
        }
        [self.shifted(), self.branched()]
    }

    /// Returns `count` random words, and the generator of the words after them.
    fn generate(&self, count: usize) -> (Vec<u64>, Generator) {
        let mut generator = *self;
        if self.0[7] >= u64::MAX - count as u64 {
            generator = if self.is_path_full() {
                Generator::with_key(self.block([u64::MAX; 4]), 1 << 63)
            } else {
                let mut next = self.branched();
                (next.0[6], next.0[7]) = (0, 0);
                next
            };
        }
        let mut words = Vec::with_capacity(count);
        let counter = generator.counter();
        let mut ticks = Ticks::every(64);
        for i in 0..(count / 4) as u64 {
            if ticks.is_requested() {
                break;
            }
            words.extend(generator.block(counter.map(|word| word.wrapping_add(i))));
        }
        let rest = count % 4;
        if rest > 0 {
            generator.0[7] = generator.0[7].wrapping_add((count - rest) as u64);
            words.extend_from_slice(&generator.block(generator.counter())[..rest]);
        }
        generator.0[6] = 0;
        generator.0[7] = generator.0[7].wrapping_add(if rest > 0 { 4 } else { count as u64 });
        words.resize(count, 0);
        (words, generator)
    }

    /// Returns `count` numbers in [0, 1) with the precision of `dtype`, and the generator of the numbers after them.
    fn uniform(&self, count: usize, dtype: DType) -> (Vec<f64>, Generator) {
        let (words, next) = self.generate(count);
        let number = |word: u64| match dtype {
            DType::F32 => f64::from(f32::from_bits(word as u32 >> 9 | 1.0f32.to_bits()) - 1.0),
            _ => f64::from_bits(word >> 12 | 1.0f64.to_bits()) - 1.0,
        };
        (words.into_iter().map(number).collect(), next)
    }
}

operator! {
    name: "random.threefry_generate",
    doc: "The key for further numbers, and random words: the encrypted counter of the key and of the positions after it.",
    inputs: &["key"],
    attrs: &[OUT_SHAPE],
    relation: |relation| {
        check_key(relation)?;
        with_key(Type::tensor_of(DType::U64, dims_of(relation, &relation.params.ints("out_shape"))?))
    },
    reference: Some(|_, inputs, outputs| {
        let [key, words] = outputs else { return Err("expected two results".into()) };
        let (numbers, next) = Generator::read(&inputs[0]).generate(words.len());
        words.as_mut_slice::<u64>().copy_from_slice(&numbers);
        next.write(key);
        Ok(())
    }),
    flops: one_flop_per_element,
}

operator! {
    name: "random.threefry_split",
    doc: "Two keys whose numbers are independent of each other.",
    inputs: &["key"],
    relation: |relation| {
        check_key(relation)?;
        with_key(key_type())
    },
    reference: Some(|_, inputs, outputs| {
        let keys = Generator::read(&inputs[0]).split();
        keys.iter().zip(outputs).for_each(|(key, output)| key.write(output));
        Ok(())
    }),
    flops: one_flop_per_element,
}

/// Returns the element type of the random numbers.
fn number_type(relation: &Relation<'_>) -> Result<DType, Box<Diagnostic>> {
    let dtype = relation.params.dtype("out_dtype").filter(|dtype| matches!(dtype, DType::F32 | DType::F64));
    dtype.ok_or_else(|| {
        let found = relation.params.string("out_dtype");
        relation
            .error(codes::types::BAD_ATTRIBUTE, format!("out_dtype: expected float32 or float64, found \"{found}\""))
    })
}

/// Returns the type of a distribution with two parameters in arguments 1 and 2.
fn distribution_type(relation: &Relation<'_>) -> TypeResult {
    check_key(relation)?;
    let dtype = number_type(relation)?;
    for i in [1, 2] {
        if relation.args[i] != Type::scalar(dtype) {
            let (name, found) = (relation.def.inputs[i], &relation.args[i]);
            return Err(relation.mismatch(format!("{name}: expected {}, found {found}", Type::scalar(dtype))));
        }
    }
    with_key(Type::tensor_of(dtype, dims_of(relation, &relation.params.ints("out_shape"))?))
}

/// Rounds to float32 for a float32 result.
fn round(dtype: DType, value: f64) -> f64 {
    if dtype == DType::F32 { f64::from(value as f32) } else { value }
}

operator! {
    name: "random.uniform",
    doc: "The key for further numbers, and numbers of the uniform distribution in [low, high).",
    inputs: &["key", "low", "high"],
    attrs: &[OUT_SHAPE, OUT_DTYPE],
    relation: distribution_type,
    reference: Some(|_, inputs, outputs| {
        let [key, numbers] = outputs else { return Err("expected two results".into()) };
        let (values, next) = Generator::read(&inputs[0]).uniform(numbers.len(), numbers.dtype);
        next.write(key);
        let (dtype, [low, high]) = (numbers.dtype, [1, 2].map(|i| Reader::new(&inputs[i]).float(0)));
        let range = round(dtype, high - low);
        Writer::new(numbers).store(values.into_iter().map(|value| round(dtype, value * range) + low));
        Ok(())
    }),
    flops: one_flop_per_element,
    properties: Properties::EXACT.ulps(2.0),
}

operator! {
    name: "random.normal",
    doc: "The key for further numbers, and numbers of the normal distribution with a mean and a standard deviation \
          (scale), by the transformation of Box and Muller: sqrt(-2 log(1 - u)) sin(2 pi v), where the numbers u \
          precede the numbers v in the uniform distribution.",
    inputs: &["key", "mean", "scale"],
    attrs: &[OUT_SHAPE, OUT_DTYPE],
    relation: distribution_type,
    reference: Some(|_, inputs, outputs| {
        let [key, numbers] = outputs else { return Err("expected two results".into()) };
        let count = numbers.len();
        let twice = count.checked_mul(2).ok_or("out_shape: expected fewer elements")?;
        let (values, next) = Generator::read(&inputs[0]).uniform(twice, numbers.dtype);
        next.write(key);
        let [mean, scale] = [1, 2].map(|i| Reader::new(&inputs[i]).float(0));
        let (u, v) = values.split_at(count);
        let normal = |(u, v): (&f64, &f64)| (-2.0 * (1.0 - u).ln()).sqrt() * (TAU * v).sin() * scale + mean;
        Writer::new(numbers).store(u.iter().zip(v).map(normal));
        Ok(())
    }),
    flops: one_flop_per_element,
    properties: Properties::EXACT.ulps(64.0),
}

operator! {
    name: "random.uniform_like",
    doc: "Numbers of the uniform distribution in [0, 1), as many as the elements of a tensor, whose values have no effect.",
    inputs: &["key", "data"],
    attrs: &[OUT_DTYPE],
    relation: |relation| {
        check_key(relation)?;
        Ok(Type::tensor_of(number_type(relation)?, relation.tensor(1)?.dims.iter().cloned()))
    },
    reference: Some(|_, inputs, outputs| {
        let (values, _) = Generator::read(&inputs[0]).uniform(outputs[0].len(), outputs[0].dtype);
        Writer::new(&mut outputs[0]).store(values);
        Ok(())
    }),
    flops: one_flop_per_element,
}

operator! {
    name: "random.multinomial",
    doc: "The key for further numbers, and num_samples indices for each row of probabilities along the last axis. \
          Negative probabilities count as 0, and each row is divided by its sum.",
    inputs: &["key", "probs"],
    attrs: &[AttrDef::new("num_samples", AttrKind::Int, Default::Int(1), "number of indices for each row")],
    relation: |relation| {
        check_key(relation)?;
        let Some((_, rows)) = relation.tensor(1)?.dims.split_last() else {
            return Err(relation.mismatch(format!("probs: expected rank 1 or more, found {}", relation.args[1])));
        };
        let samples = dims_of(relation, &[relation.params.int("num_samples")])?;
        with_key(Type::tensor_of(DType::I32, rows.iter().cloned().chain(samples).collect::<Vec<Dim>>()))
    },
    reference: Some(multinomial),
    flops: |cost| cost.ret_len().saturating_mul(cost.arg_len(1)),
}

fn multinomial(_: Params<'_>, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Evaluation {
    let [key, indices] = outputs else { return Err("expected two results".into()) };
    let (values, next) = Generator::read(&inputs[0]).uniform(indices.len(), DType::F32);
    next.write(key);
    let classes = inputs[1].shape[inputs[1].shape.len() - 1];
    let samples = indices.shape[indices.shape.len() - 1];
    let probabilities: Vec<f32> = inputs[1].f64s().map(|p| (p as f32).max(0.0)).collect();
    let mut out = Writer::new(indices);
    let mut ticks = Ticks::every(classes);
    for (row, values) in values.chunks_exact(samples.max(1)).enumerate() {
        let probabilities = &probabilities[row * classes..][..classes];
        let total: f32 = probabilities.iter().sum();
        let mut sum = 0.0;
        let cumulative: Vec<f32> = probabilities
            .iter()
            .map(|p| {
                sum += p / total;
                sum
            })
            .collect();
        for (sample, &value) in values.iter().enumerate() {
            if ticks.is_requested() {
                return Ok(());
            }
            // The index with the least positive distance; the first one of several.
            let distance = |&sum: &f32| if sum - value as f32 > 0.0 { sum - value as f32 } else { 1.0 };
            let nearest = cumulative.iter().map(distance).enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
            out.set_int(row * samples + sample, nearest.map_or(0, |(index, _)| index as i128));
        }
    }
    Ok(())
}
