//! Inner loops of integer sums of products: a few places by 16 or 32 output channels, with the sums in registers.
//!
//! Data are unsigned bytes, weights signed ones, four input channels per 32-bit word: the form of the processor's dot
//! product of bytes (AVX-512 VNNI). Without it 16-bit products are added in pairs (AVX2), or one by one. All three
//! give the same sums, modulo 2^32.

use std::sync::LazyLock;

/// Number of places of a tile.
pub(super) const PLACES: usize = 8;
/// Number of output channels of a tile, and of a block of packed weights; a last block of at most half as many is
/// half as wide.
pub(super) const WIDE: usize = 32;
/// Half of them: the 32-bit lanes of a 512-bit register.
pub(super) const HALF: usize = 16;

/// Sums of a tile: `sums[place][channel]`.
#[repr(align(64))]
pub(super) struct Sums(pub [[i32; WIDE]; PLACES]);

/// Operands of a tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// The data.
    pub data: &'a [u8],
    /// Offset of the first tap of each place.
    pub places: &'a [usize; PLACES],
    /// Offset of each tap from the first.
    pub taps: &'a [usize],
    /// Number of words of four input channels per tap.
    pub words: usize,
    /// Weights, in the order taps, words, output channels, four input channels.
    pub weights: &'a [i8],
    /// True if the block has [`WIDE`] output channels, false if it has [`HALF`].
    pub wide: bool,
}

/// Instruction set that computes the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// One product at a time.
    Plain,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Dot products of bytes in 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

/// Returns the best way that this processor supports.
pub(super) fn way() -> Way {
    static WAY: LazyLock<Way> = LazyLock::new(|| *ways().last().unwrap_or(&Way::Plain));
    *WAY
}

/// Returns all ways that this processor supports, the best last.
pub(super) fn ways() -> Vec<Way> {
    let mut ways = vec![Way::Plain];
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx2") {
            ways.push(Way::Avx2);
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            ways.push(Way::Vnni);
        }
    }
    ways
}

impl Tile<'_> {
    /// Computes the sums of the first `count` places.
    ///
    /// # Panics
    /// Data or weights are shorter than the sizes require, which is a bug in the kernel.
    pub fn run(&self, way: Way, count: usize, sums: &mut Sums) {
        let width = if self.wide { WIDE } else { HALF };
        let furthest = self.taps.iter().max().copied().unwrap_or(0) + self.words * 4;
        assert!(count <= PLACES && self.weights.len() >= self.taps.len() * self.words * width * 4);
        assert!(self.places[..count].iter().all(|place| place + furthest <= self.data.len()), "places inside the data");
        match way {
            Way::Plain => self.plain(count, width, sums),
            // SAFETY: the processor has AVX2 (`ways`); every read lies inside data and weights (asserted).
            #[cfg(target_arch = "x86_64")]
            Way::Avx2 => unsafe { x86::avx2(self, count, sums) },
            // SAFETY: the processor has AVX-512 VNNI (`ways`); every read lies inside data and weights (asserted).
            #[cfg(target_arch = "x86_64")]
            Way::Vnni => unsafe {
                match (count > 4, self.wide) {
                    (true, true) => x86::vnni::<8, 2>(self, count, sums),
                    (true, false) => x86::vnni::<8, 1>(self, count, sums),
                    (false, true) => x86::vnni::<4, 2>(self, count, sums),
                    (false, false) => x86::vnni::<4, 1>(self, count, sums),
                }
            },
        }
    }

    fn plain(&self, count: usize, width: usize, sums: &mut Sums) {
        for (place, sums) in self.places[..count].iter().zip(&mut sums.0) {
            sums.fill(0);
            let mut weights = self.weights.chunks_exact(width * 4);
            for tap in self.taps {
                for word in self.data[place + tap..][..self.words * 4].as_chunks::<4>().0 {
                    let weights = weights.next().unwrap_or_default().as_chunks::<4>().0;
                    for (sum, w) in sums.iter_mut().zip(weights) {
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
    use super::{HALF, Sums, Tile, WIDE};
    use std::arch::x86_64::*;

    /// Repeats the last place beyond `count`; the extra results are ignored.
    fn spread<const P: usize>(tile: &Tile<'_>, count: usize) -> [usize; P] {
        std::array::from_fn(|p| tile.places[p.min(count - 1)])
    }

    /// # Safety
    /// Requires AVX-512 VNNI; the reads of the tile's first `count` >= 1 places lie inside data and weights.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub unsafe fn vnni<const P: usize, const V: usize>(tile: &Tile<'_>, count: usize, sums: &mut Sums) {
        if count == 0 {
            return;
        }
        let places = spread::<P>(tile, count);
        let mut acc = [[_mm512_setzero_si512(); V]; P];
        let mut w = tile.weights.as_ptr();
        for &tap in tile.taps {
            // SAFETY: taps of the places lie inside the data.
            let mut x = unsafe { tile.data.as_ptr().add(tap) };
            for _ in 0..tile.words {
                let mut weights = [_mm512_setzero_si512(); V];
                for (v, weights) in weights.iter_mut().enumerate() {
                    // SAFETY: a word of the block's weights has V times 64 bytes.
                    *weights = unsafe { _mm512_loadu_si512(w.add(64 * v).cast()) };
                }
                for p in 0..P {
                    // SAFETY: `words` words follow the tap of each place.
                    let word = unsafe { x.add(places[p]).cast::<i32>().read_unaligned() };
                    let word = _mm512_set1_epi32(word);
                    for v in 0..V {
                        acc[p][v] = _mm512_dpbusd_epi32(acc[p][v], word, weights[v]);
                    }
                }
                // SAFETY: at most one past the end.
                unsafe {
                    w = w.add(64 * V);
                    x = x.add(4);
                }
            }
        }
        for (acc, sums) in acc.into_iter().zip(&mut sums.0) {
            for (v, acc) in acc.into_iter().enumerate() {
                // SAFETY: a row of the sums holds two registers.
                unsafe { _mm512_storeu_si512(sums.as_mut_ptr().add(HALF * v).cast(), acc) };
            }
        }
    }

    /// Products of bytes are added in pairs in 16 bits, which would saturate: the low seven bits of the data and the
    /// highest are multiplied separately, so that no pair overflows 16 bits.
    ///
    /// # Safety
    /// Requires AVX2; the reads of the tile's first `count` places lie inside data and weights.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2(tile: &Tile<'_>, count: usize, sums: &mut Sums) {
        let width = if tile.wide { WIDE } else { HALF };
        let (low, high) = (_mm256_set1_epi8(0x7f), _mm256_set1_epi8(-128));
        let ones = _mm256_set1_epi16(1);
        for (place, sums) in tile.places[..count].iter().zip(&mut sums.0) {
            for first in (0..width).step_by(HALF) {
                let mut acc = [_mm256_setzero_si256(); 2];
                let mut w = first * 4;
                for tap in tile.taps {
                    for word in 0..tile.words {
                        // SAFETY: `words` words follow the tap of each place; each has `width` times 4 bytes of
                        // weights.
                        let (x, weights) = unsafe {
                            let x = tile.data.as_ptr().add(place + tap + 4 * word).cast::<i32>().read_unaligned();
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
                    // SAFETY: a row of the sums holds `width` elements.
                    unsafe { _mm256_storeu_si256(sums.as_mut_ptr().add(first + 8 * i).cast(), acc) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every way gives the sums of 64-bit arithmetic, also at the ends of the ranges.
    #[test]
    fn all_ways_agree() {
        let mut state = 0x1234_5678_9abc_def0u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut byte = || match random() % 5 {
            0 => 0xff,
            1 => 0x80,
            2 => 0x7f,
            _ => random() as u8,
        };
        for round in 0..200 {
            let (words, wide, count) = (1 + round % 7, round % 2 == 0, 1 + round % PLACES);
            let width = if wide { WIDE } else { HALF };
            let taps = [0, 4 * words, 12 * words + 3];
            let data: Vec<u8> = (0..200 + 40 * words).map(|_| byte()).collect();
            let weights: Vec<i8> = (0..taps.len() * words * width * 4).map(|_| byte() as i8).collect();
            let places = std::array::from_fn(|p| 3 * p + round % 5);
            let tile = Tile { data: &data, places: &places, taps: &taps, words, weights: &weights, wide };
            for way in ways() {
                let mut sums = Sums([[-1; WIDE]; PLACES]);
                tile.run(way, count, &mut sums);
                for p in 0..count {
                    for c in 0..width {
                        let mut want = 0i64;
                        for (t, tap) in taps.iter().enumerate() {
                            for i in 0..4 * words {
                                let w = weights[((t * words + i / 4) * width + c) * 4 + i % 4];
                                want += i64::from(data[places[p] + tap + i]) * i64::from(w);
                            }
                        }
                        assert_eq!(i64::from(sums.0[p][c]), want, "{way:?}: place {p}, channel {c}");
                    }
                }
            }
        }
    }
}
