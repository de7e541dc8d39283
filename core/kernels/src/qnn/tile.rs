//! Inner loops of integer accumulation: a few positions by 16 or 32 output channels, with the accumulators in
//! registers.
//!
//! Data are uint8 and weights int8, with four input channels per 32-bit word: the operands of the int8 dot product of
//! AVX-512 VNNI. Without VNNI, 16-bit products are added in pairs (AVX2) or one by one. All three variants
//! produce the same results, modulo 2^32.

#[cfg(target_arch = "x86_64")]
use crate::simd::{Level, permits};
use std::sync::LazyLock;

/// Number of output positions in a tile.
pub(super) const TILE_POSITIONS: usize = 8;
/// Number of output channels in a tile, and in a block of packed weights. If the last block has at most
/// [`HALF_CHANNELS`] channels, it is half as wide.
pub(super) const TILE_CHANNELS: usize = 32;
/// Number of output channels of a half-width block: the 32-bit lanes of a 512-bit register.
pub(super) const HALF_CHANNELS: usize = 16;

/// Accumulators of a tile: `sums[position][channel]`.
#[repr(align(64))]
pub(super) struct Accumulators(pub [[i32; TILE_CHANNELS]; TILE_POSITIONS]);

/// Operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// Data of an image as uint8, channels last.
    pub data: &'a [u8],
    /// Offset of the first tap of each position.
    pub positions: &'a [usize; TILE_POSITIONS],
    /// Offset of each tap from the first.
    pub taps: &'a [usize],
    /// Number of words of four input channels per tap.
    pub word_count: usize,
    /// Weights, indexed by tap, word, output channel, and input channel within the word.
    pub weights: &'a [i8],
    /// True if the block has [`TILE_CHANNELS`] output channels, false if it has [`HALF_CHANNELS`].
    pub is_wide: bool,
}

/// Instruction set that computes the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// Scalar code: one product at a time.
    Plain,
    /// 256-bit vectors (AVX2).
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors with int8 dot products (AVX-512 VNNI).
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

/// Returns the best instruction set that this processor supports.
pub(super) fn best_isa() -> Isa {
    static ISA: LazyLock<Isa> = LazyLock::new(|| *supported_isas().last().unwrap_or(&Isa::Plain));
    *ISA
}

/// Returns all instruction sets that this processor supports, from slowest to fastest.
pub(super) fn supported_isas() -> Vec<Isa> {
    let mut isas = vec![Isa::Plain];
    #[cfg(target_arch = "x86_64")]
    {
        if permits(Level::Avx2) && is_x86_feature_detected!("avx2") {
            isas.push(Isa::Avx2);
        }
        if permits(Level::Avx512) && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            isas.push(Isa::Vnni);
        }
    }
    isas
}

impl Tile<'_> {
    /// Computes the sums of the first `count` positions.
    ///
    /// # Panics
    /// If data or weights are shorter than the sizes require, which is a bug in the kernel.
    pub fn run(&self, isa: Isa, count: usize, accumulators: &mut Accumulators) {
        let width = if self.is_wide { TILE_CHANNELS } else { HALF_CHANNELS };
        let tap_end = self.taps.iter().max().copied().unwrap_or(0) + self.word_count * 4;
        assert!(count <= TILE_POSITIONS && self.weights.len() >= self.taps.len() * self.word_count * width * 4);
        assert!(
            self.positions[..count].iter().all(|position| position + tap_end <= self.data.len()),
            "all positions lie inside the data"
        );
        match isa {
            Isa::Plain => self.run_portable(count, width, accumulators),
            // SAFETY: `isa` is one of `supported_isas`, which detects AVX2; the assertions keep every read inside data
            // and weights.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::run_avx2(self, count, accumulators) },
            // SAFETY: `isa` is one of `supported_isas`, which detects AVX-512 VNNI; the assertions keep every read
            // inside data and weights.
            #[cfg(target_arch = "x86_64")]
            Isa::Vnni => unsafe {
                match (count, self.is_wide) {
                    (5.., true) => x86::run_vnni::<8, 2, 1>(self, count, accumulators),
                    (5.., false) => x86::run_vnni::<8, 1, 1>(self, count, accumulators),
                    (2.., true) => x86::run_vnni::<4, 2, 1>(self, count, accumulators),
                    (2.., false) => x86::run_vnni::<4, 1, 2>(self, count, accumulators),
                    (_, true) => x86::run_vnni::<1, 2, 4>(self, count, accumulators),
                    (_, false) => x86::run_vnni::<1, 1, 8>(self, count, accumulators),
                }
            },
        }
    }

    fn run_portable(&self, count: usize, width: usize, accumulators: &mut Accumulators) {
        for (position, accumulators) in self.positions[..count].iter().zip(&mut accumulators.0) {
            accumulators.fill(0);
            let mut weights = self.weights.chunks_exact(width * 4);
            for tap in self.taps {
                for word in self.data[position + tap..][..self.word_count * 4].as_chunks::<4>().0 {
                    let weights = weights.next().unwrap_or_default().as_chunks::<4>().0;
                    for (sum, w) in accumulators.iter_mut().zip(weights) {
                        for i in 0..4 {
                            *sum = sum.wrapping_add(i32::from(word[i]) * i32::from(w[i]));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Accumulators, HALF_CHANNELS, TILE_CHANNELS, Tile};
    use std::arch::x86_64::*;

    /// Returns the positions of the tile; the last position replaces those beyond `count`, whose results are ignored.
    fn clamp_positions<const P: usize>(tile: &Tile<'_>, count: usize) -> [usize; P] {
        std::array::from_fn(|p| tile.positions[p.min(count - 1)])
    }

    /// Computes the accumulators of a tile with int8 dot products. `U` consecutive words have accumulators of their own,
    /// so that a tile with few registers does not wait for its own sums.
    ///
    /// # Safety
    /// The caller guarantees that the processor supports AVX-512 VNNI, and that the reads of the tile's first `count`
    /// positions lie inside data and weights.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub unsafe fn run_vnni<const P: usize, const V: usize, const U: usize>(
        tile: &Tile<'_>,
        count: usize,
        accumulators: &mut Accumulators,
    ) {
        if count == 0 {
            return;
        }
        let positions = clamp_positions::<P>(tile, count);
        let mut acc = [[[_mm512_setzero_si512(); V]; P]; U];
        let mut w = tile.weights.as_ptr();
        for &tap in tile.taps {
            let mut x = tile.data.as_ptr().wrapping_add(tap);
            for _ in 0..tile.word_count / U {
                for acc in &mut acc {
                    // SAFETY: the caller guarantees that `word_count` words follow every tap of each position, and that
                    // the weights are complete.
                    unsafe { add_word(acc, &positions, &mut x, &mut w) };
                }
            }
            for _ in 0..tile.word_count % U {
                // SAFETY: as above.
                unsafe { add_word(&mut acc[0], &positions, &mut x, &mut w) };
            }
        }
        let mut sums = acc[0];
        for acc in &acc[1..] {
            for (sums, acc) in sums.iter_mut().flatten().zip(acc.iter().flatten()) {
                *sums = _mm512_add_epi32(*sums, *acc);
            }
        }
        for (acc, accumulators) in sums.into_iter().zip(&mut accumulators.0) {
            for (v, acc) in acc.into_iter().enumerate() {
                // SAFETY: the type `Accumulators` provides rows of two registers, and V is at most 2.
                unsafe { _mm512_storeu_si512(accumulators.as_mut_ptr().add(HALF_CHANNELS * v).cast(), acc) };
            }
        }
    }

    /// Adds the products of a word of each position with the weights of a word, and advances both pointers.
    ///
    /// # Safety
    /// The caller guarantees that the processor supports AVX-512 VNNI, that four bytes can be read at each position from
    /// `x`, and `V` registers from `w`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn add_word<const P: usize, const V: usize>(
        acc: &mut [[__m512i; V]; P],
        positions: &[usize; P],
        x: &mut *const u8,
        w: &mut *const i8,
    ) {
        // SAFETY: the caller guarantees that the weights of a word can be read.
        let weights: [__m512i; V] = std::array::from_fn(|v| unsafe { _mm512_loadu_si512(w.add(64 * v).cast()) });
        for (acc, &position) in acc.iter_mut().zip(positions) {
            // SAFETY: the caller guarantees that a word can be read at each position.
            let word = _mm512_set1_epi32(unsafe { x.add(position).cast::<i32>().read_unaligned() });
            for (acc, &weights) in acc.iter_mut().zip(&weights) {
                *acc = _mm512_dpbusd_epi32(*acc, word, weights);
            }
        }
        (*w, *x) = (w.wrapping_add(64 * V), x.wrapping_add(4));
    }

    /// Computes the accumulators of a tile. AVX2 adds pairs of 8-bit products with saturation to 16 bits, so the low
    /// seven bits and the highest bit of the data are multiplied separately; no pair then exceeds 16 bits.
    ///
    /// # Safety
    /// The caller guarantees that the processor supports AVX2, and that the reads of the tile's first `count` positions
    /// lie inside data and weights.
    #[target_feature(enable = "avx2")]
    pub unsafe fn run_avx2(tile: &Tile<'_>, count: usize, accumulators: &mut Accumulators) {
        let width = if tile.is_wide { TILE_CHANNELS } else { HALF_CHANNELS };
        let (low, high) = (_mm256_set1_epi8(0x7f), _mm256_set1_epi8(-128));
        let ones = _mm256_set1_epi16(1);
        for (position, accumulators) in tile.positions[..count].iter().zip(&mut accumulators.0) {
            for first in (0..width).step_by(HALF_CHANNELS) {
                let mut acc = [_mm256_setzero_si256(); 2];
                let mut w = first * 4;
                for tap in tile.taps {
                    for word in 0..tile.word_count {
                        // SAFETY: the caller guarantees that `word_count` words follow every tap of each position, and
                        // that each word has `width` times 4 bytes of weights.
                        let (x, weights) = unsafe {
                            let x = tile.data.as_ptr().add(position + tap + 4 * word).cast::<i32>().read_unaligned();
                            let w = tile.weights.as_ptr().add(w);
                            (x, [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(32).cast())])
                        };
                        let x = _mm256_set1_epi32(x);
                        let (bottom, top) = (_mm256_and_si256(x, low), _mm256_and_si256(x, high));
                        for (acc, weights) in acc.iter_mut().zip(weights) {
                            let bottom = _mm256_madd_epi16(_mm256_maddubs_epi16(bottom, weights), ones);
                            let top = _mm256_madd_epi16(_mm256_maddubs_epi16(top, weights), ones);
                            *acc = _mm256_add_epi32(*acc, _mm256_add_epi32(bottom, top));
                        }
                        w += width * 4;
                    }
                }
                for (i, acc) in acc.into_iter().enumerate() {
                    // SAFETY: the type `Accumulators` provides rows of at least `width` elements.
                    unsafe { _mm256_storeu_si256(accumulators.as_mut_ptr().add(first + 8 * i).cast(), acc) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_test_support::random::Random;

    /// Checks that every instruction set produces the sums of 64-bit arithmetic, also at the ends of the ranges.
    #[test]
    fn all_instruction_sets_agree() {
        let mut random = Random::new(1);
        let mut byte = || match random.below(5) {
            0 => 0xff,
            1 => 0x80,
            2 => 0x7f,
            _ => random.bits() as u8,
        };
        for round in 0..200 {
            let (word_count, is_wide, count) = (1 + round % 7, round % 2 == 0, 1 + round % TILE_POSITIONS);
            let width = if is_wide { TILE_CHANNELS } else { HALF_CHANNELS };
            let taps = [0, 4 * word_count, 12 * word_count + 3];
            let data: Vec<u8> = (0..200 + 40 * word_count).map(|_| byte()).collect();
            let weights: Vec<i8> = (0..taps.len() * word_count * width * 4).map(|_| byte() as i8).collect();
            let positions = std::array::from_fn(|p| 3 * p + round % 5);
            let tile = Tile { data: &data, positions: &positions, taps: &taps, word_count, weights: &weights, is_wide };
            for isa in supported_isas() {
                let mut accumulators = Accumulators([[-1; TILE_CHANNELS]; TILE_POSITIONS]);
                tile.run(isa, count, &mut accumulators);
                for p in 0..count {
                    for c in 0..width {
                        let mut expected = 0i64;
                        for (t, tap) in taps.iter().enumerate() {
                            for i in 0..4 * word_count {
                                let w = weights[((t * word_count + i / 4) * width + c) * 4 + i % 4];
                                expected += i64::from(data[positions[p] + tap + i]) * i64::from(w);
                            }
                        }
                        assert_eq!(i64::from(accumulators.0[p][c]), expected, "{isa:?}: position {p}, channel {c}");
                    }
                }
            }
        }
    }
}
