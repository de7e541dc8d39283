//! Conversion between bytes grouped by channel and bytes grouped by place.

use super::tile::{PLACES, WIDE};

/// Number of channels of a block that is interleaved.
pub(super) const CHANNELS: usize = 16;

/// Transposes `[place][channel]` to `[channel][place]`.
pub(super) fn apart(places: &[[u8; WIDE]; PLACES]) -> [[u8; PLACES]; WIDE] {
    #[cfg(target_arch = "x86_64")]
    {
        x86::apart(places)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::array::from_fn(|c| std::array::from_fn(|p| places[p][c]))
    }
}

/// Transposes `[channel][place]` to `[place][channel]`, with the bits of `flip` inverted.
pub(super) fn together(channels: &[[u8; PLACES]; CHANNELS], flip: u8) -> [[u8; CHANNELS]; PLACES] {
    #[cfg(target_arch = "x86_64")]
    {
        x86::together(channels, flip)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::array::from_fn(|p| std::array::from_fn(|c| channels[c][p] ^ flip))
    }
}

/// Transposition by unpacking: each round interleaves the bytes of two registers. (SSE2, which x86-64 always has.)
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHANNELS, PLACES, WIDE};
    use std::arch::x86_64::*;

    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the array has 16 bytes.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    fn store(to: &mut [u8; 16], value: __m128i) {
        // SAFETY: the array has 16 bytes.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), value) }
    }

    pub fn apart(places: &[[u8; WIDE]; PLACES]) -> [[u8; PLACES]; WIDE] {
        let mut channels = [[0u8; PLACES]; WIDE];
        let pairs = channels.as_chunks_mut::<2>().0.as_chunks_mut::<8>().0;
        for (half, pairs) in pairs.iter_mut().enumerate() {
            let rows: [__m128i; PLACES] = places.each_ref().map(|place| load(&place.as_chunks::<16>().0[half]));
            // Places 0 and 4, 1 and 5, ...: of eight channels, then of eight more.
            let round = |rows: [__m128i; 8]| -> [__m128i; 8] {
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
            let [a, b, c, d, e, f, g, h] = round(rows);
            // SAFETY: SSE2 is part of x86-64.
            let words = unsafe {
                // Places 0, 2, 4, 6 and 1, 3, 5, 7 of four channels each, then all of two channels each.
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

    pub fn together(channels: &[[u8; PLACES]; CHANNELS], flip: u8) -> [[u8; CHANNELS]; PLACES] {
        // SAFETY: SSE2 is part of x86-64; a row has eight bytes.
        let row = |c: usize| unsafe { _mm_loadl_epi64(channels[c].as_ptr().cast()) };
        // SAFETY: SSE2 is part of x86-64.
        let (low, high) = unsafe { (|a, b| _mm_unpacklo_epi8(a, b), |a, b| _mm_unpackhi_epi8(a, b)) };
        let pairs: [__m128i; 8] = std::array::from_fn(|c| low(row(c), row(c + 8)));
        // Four channels of places 0 to 3, and of 4 to 7.
        let fours: [[__m128i; 2]; 4] =
            std::array::from_fn(|c| [low(pairs[c], pairs[c + 4]), high(pairs[c], pairs[c + 4])]);
        // Eight channels of two places each.
        let eights: [[__m128i; 4]; 2] = std::array::from_fn(|c| {
            let (a, b) = (fours[c], fours[c + 2]);
            [low(a[0], b[0]), high(a[0], b[0]), low(a[1], b[1]), high(a[1], b[1])]
        });
        let mut places = [[0; CHANNELS]; PLACES];
        for (i, pair) in places.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let (a, b) = (eights[0][i], eights[1][i]);
            // SAFETY: SSE2 is part of x86-64.
            let flipped = |value| unsafe { _mm_xor_si128(value, _mm_set1_epi8(flip as i8)) };
            store(&mut pair[0], flipped(low(a, b)));
            store(&mut pair[1], flipped(high(a, b)));
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_places_to_channels() {
        let places: [[u8; WIDE]; PLACES] = std::array::from_fn(|p| std::array::from_fn(|c| (p * WIDE + c) as u8));
        let channels = apart(&places);
        assert!((0..WIDE).all(|c| (0..PLACES).all(|p| channels[c][p] == places[p][c])));
    }

    #[test]
    fn transposes_channels_to_places() {
        for flip in [0, 0x80] {
            let channels: [[u8; PLACES]; CHANNELS] =
                std::array::from_fn(|c| std::array::from_fn(|p| (c * PLACES + p) as u8));
            let places = together(&channels, flip);
            assert!((0..CHANNELS).all(|c| (0..PLACES).all(|p| places[p][c] == channels[c][p] ^ flip)));
        }
    }
}
