//! Mutations of bytes and text, for formats without a specific mutation.

use crate::{random_below, random_item};
use byoc::io::random::Random;

/// Integers at the limits of their types.
pub const EDGE_VALUES: [i64; 18] = [
    0,
    1,
    -1,
    2,
    3,
    7,
    63,
    64,
    127,
    255,
    65_535,
    i32::MAX as i64,
    i32::MIN as i64,
    u32::MAX as i64,
    1 << 36,
    i64::MAX / 8,
    i64::MAX,
    i64::MIN,
];

/// Maximum size of a mutated input in bytes.
const MAX_BYTES: usize = 64 << 10;

/// Applies one to four mutations; `tokens` are format tokens to insert.
pub fn bytes(seed: &[u8], random: &mut Random, tokens: &[&str]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random_below(random, 4) {
        mutate_once(&mut bytes, random, tokens);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

fn mutate_once(bytes: &mut Vec<u8>, random: &mut Random, tokens: &[&str]) {
    if bytes.is_empty() {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
        return;
    }
    let index = random_below(random, bytes.len());
    let length = 1 + random_below(random, 16).min(bytes.len() - index - 1);
    match random_below(random, if tokens.is_empty() { 8 } else { 12 }) {
        0 => bytes[index] ^= 1 << random_below(random, 8),
        1 => bytes[index] = random.next_u64() as u8,
        2 => bytes[index] = bytes[index].wrapping_add(*random_item(random, &[1, 2, 0xff, 0x80, 0x7f])),
        3 => drop(bytes.drain(index..index + length)),
        4 => {
            let copy = bytes[index..index + length].to_vec();
            let destination = random_below(random, bytes.len());
            bytes.splice(destination..destination, copy);
        }
        5 => {
            let edge_value = random_item(random, &EDGE_VALUES).to_le_bytes();
            let size = *random_item(random, &[1, 2, 4, 8]);
            let end = (index + size).min(bytes.len());
            bytes[index..end].copy_from_slice(&edge_value[..end - index]);
        }
        6 => bytes.truncate(index),
        7 => {
            let other_index = random_below(random, bytes.len());
            bytes.swap(index, other_index);
        }
        8 | 9 => drop(bytes.splice(index..index, random_item(random, tokens).bytes())),
        10 => drop(bytes.splice(index..index, random_item(random, &EDGE_VALUES).to_string().into_bytes())),
        _ => mutate_number(bytes, index, random),
    }
}

/// Replaces the next decimal number with one of [`EDGE_VALUES`].
fn mutate_number(bytes: &mut Vec<u8>, search_start: usize, random: &mut Random) {
    let Some(start) = bytes[search_start..].iter().position(u8::is_ascii_digit).map(|position| search_start + position)
    else {
        return;
    };
    let end =
        bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |position| start + position);
    bytes.splice(start..end, random_item(random, &EDGE_VALUES).to_string().into_bytes());
}
