//! Transposition of 8-bit elements between position-major and channel-major order.

use super::tile::{TILE_CHANNELS, TILE_POSITIONS};

/// Number of channels per interleaved block.
pub(super) const CHANNELS: usize = 16;

/// Transposes `[position][channel]` to `[channel][position]`.
pub(super) fn to_channel_major(
    positions: &[[u8; TILE_CHANNELS]; TILE_POSITIONS],
) -> [[u8; TILE_POSITIONS]; TILE_CHANNELS] {
    #[cfg(target_arch = "x86_64")]
    {
        x86::to_channel_major(positions)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::array::from_fn(|c| std::array::from_fn(|p| positions[p][c]))
    }
}

/// Transposes `[channel][position]` to `[position][channel]`, with the bits of `flip` inverted.
pub(super) fn to_position_rows(
    channels: &[[u8; TILE_POSITIONS]; CHANNELS],
    flip: u8,
) -> [[u8; CHANNELS]; TILE_POSITIONS] {
    #[cfg(target_arch = "x86_64")]
    {
        x86::to_position_rows(channels, flip)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::array::from_fn(|p| std::array::from_fn(|c| channels[c][p] ^ flip))
    }
}

/// Transposition by unpacking: each round interleaves the bytes of two registers. (SSE2 is part of x86-64.)
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHANNELS, TILE_CHANNELS, TILE_POSITIONS};
    use std::arch::x86_64::*;

    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the array type provides the 16 bytes that the load reads; SSE2 is part of x86-64.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    fn store(out: &mut [u8; 16], value: __m128i) {
        // SAFETY: the array type provides the 16 bytes that the store writes; SSE2 is part of x86-64.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), value) }
    }

    pub fn to_channel_major(
        positions: &[[u8; TILE_CHANNELS]; TILE_POSITIONS],
    ) -> [[u8; TILE_POSITIONS]; TILE_CHANNELS] {
        let mut channels = [[0u8; TILE_POSITIONS]; TILE_CHANNELS];
        let pairs = channels.as_chunks_mut::<2>().0.as_chunks_mut::<8>().0;
        for (half, pairs) in pairs.iter_mut().enumerate() {
            let rows: [__m128i; TILE_POSITIONS] =
                positions.each_ref().map(|position| load(&position.as_chunks::<16>().0[half]));
            // Interleaves positions 0 and 4, 1 and 5, ...: first the low eight channels, then the high eight.
            let interleave_rows = |rows: [__m128i; 8]| -> [__m128i; 8] {
                let [a, b, c, d, e, f, g, h] = rows;
                // SAFETY: SSE2 is part of x86-64.
                unsafe {
                    [
                        _mm_unpacklo_epi8(a, e),
                        _mm_unpacklo_epi8(b, f),
                        _mm_unpacklo_epi8(c, g),
                        _mm_unpacklo_epi8(d, h),
                        _mm_unpackhi_epi8(a, e),
                        _mm_unpackhi_epi8(b, f),
                        _mm_unpackhi_epi8(c, g),
                        _mm_unpackhi_epi8(d, h),
                    ]
                }
            };
            let [a, b, c, d, e, f, g, h] = interleave_rows(rows);
            // SAFETY: SSE2 is part of x86-64.
            let words = unsafe {
                // `even` and `odd` hold positions 0, 2, 4, 6 and 1, 3, 5, 7 of four channels per register; the result
                // holds all positions of two channels per register.
                let even = [
                    _mm_unpacklo_epi8(a, c),
                    _mm_unpackhi_epi8(a, c),
                    _mm_unpacklo_epi8(e, g),
                    _mm_unpackhi_epi8(e, g),
                ];
                let odd = [
                    _mm_unpacklo_epi8(b, d),
                    _mm_unpackhi_epi8(b, d),
                    _mm_unpacklo_epi8(f, h),
                    _mm_unpackhi_epi8(f, h),
                ];
                [
                    _mm_unpacklo_epi8(even[0], odd[0]),
                    _mm_unpackhi_epi8(even[0], odd[0]),
                    _mm_unpacklo_epi8(even[1], odd[1]),
                    _mm_unpackhi_epi8(even[1], odd[1]),
                    _mm_unpacklo_epi8(even[2], odd[2]),
                    _mm_unpackhi_epi8(even[2], odd[2]),
                    _mm_unpacklo_epi8(even[3], odd[3]),
                    _mm_unpackhi_epi8(even[3], odd[3]),
                ]
            };
            for (pair, word) in pairs.iter_mut().zip(words) {
                let mut bytes = [0; 16];
                store(&mut bytes, word);
                pair.as_flattened_mut().copy_from_slice(&bytes);
            }
        }
        channels
    }

    pub fn to_position_rows(channels: &[[u8; TILE_POSITIONS]; CHANNELS], flip: u8) -> [[u8; CHANNELS]; TILE_POSITIONS] {
        // SAFETY: SSE2 is part of x86-64; the array type provides the eight bytes of a row that the load reads.
        let row = |c: usize| unsafe { _mm_loadl_epi64(channels[c].as_ptr().cast()) };
        // SAFETY: SSE2 is part of x86-64.
        let (low, high) = unsafe { (|a, b| _mm_unpacklo_epi8(a, b), |a, b| _mm_unpackhi_epi8(a, b)) };
        let pairs: [__m128i; 8] = std::array::from_fn(|c| low(row(c), row(c + 8)));
        // Four channels of positions 0 to 3, then four channels of positions 4 to 7.
        let fours: [[__m128i; 2]; 4] =
            std::array::from_fn(|c| [low(pairs[c], pairs[c + 4]), high(pairs[c], pairs[c + 4])]);
        // Eight channels of two positions each.
        let eights: [[__m128i; 4]; 2] = std::array::from_fn(|c| {
            let (a, b) = (fours[c], fours[c + 2]);
            [low(a[0], b[0]), high(a[0], b[0]), low(a[1], b[1]), high(a[1], b[1])]
        });
        let mut positions = [[0; CHANNELS]; TILE_POSITIONS];
        for (i, pair) in positions.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let (a, b) = (eights[0][i], eights[1][i]);
            // SAFETY: SSE2 is part of x86-64.
            let flip_bytes = |value| unsafe { _mm_xor_si128(value, _mm_set1_epi8(flip as i8)) };
            store(&mut pair[0], flip_bytes(low(a, b)));
            store(&mut pair[1], flip_bytes(high(a, b)));
        }
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_positions_to_channels() {
        let positions: [[u8; TILE_CHANNELS]; TILE_POSITIONS] =
            std::array::from_fn(|p| std::array::from_fn(|c| (p * TILE_CHANNELS + c) as u8));
        let channels = to_channel_major(&positions);
        assert!((0..TILE_CHANNELS).all(|c| (0..TILE_POSITIONS).all(|p| channels[c][p] == positions[p][c])));
    }

    #[test]
    fn transposes_channels_to_positions() {
        for flip in [0, 0x80] {
            let channels: [[u8; TILE_POSITIONS]; CHANNELS] =
                std::array::from_fn(|c| std::array::from_fn(|p| (c * TILE_POSITIONS + p) as u8));
            let positions = to_position_rows(&channels, flip);
            assert!((0..CHANNELS).all(|c| (0..TILE_POSITIONS).all(|p| positions[p][c] == channels[c][p] ^ flip)));
        }
    }
}
