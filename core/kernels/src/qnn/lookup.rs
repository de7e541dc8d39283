//! Functions of 8-bit integers as lookup tables of 256 results, with vectorized lookup where the processor supports it
//! (AVX-512 VBMI).

#[cfg(target_arch = "x86_64")]
use crate::simd::{Level, permits};
use crate::split;

/// Number of elements in a thread's chunk.
const CHUNK: usize = 4096;

/// Returns true if the processor supports byte lookups in registers.
fn can_look_up_in_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        permits(Level::Avx512) && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vbmi")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Computes `out[i] = table[x[i]]`.
pub(super) fn look_up_each(table: &[u8; 256], x: &[u8], out: &mut [u8]) {
    let has_register_lookup = can_look_up_in_registers();
    // A lookup in memory costs about as much as one simple operation, the unit of work in `split`; a lookup in
    // registers costs a small fraction of that.
    let work = if has_register_lookup { x.len() / 8 } else { x.len() };
    split::for_each_chunk(out, CHUNK, work, |i, out| {
        let x = &x[i * CHUNK..][..out.len()];
        let finished_count = if has_register_lookup { look_up_vectors(table, x, out) } else { 0 };
        for (out, x) in out[finished_count..].iter_mut().zip(&x[finished_count..]) {
            *out = table[usize::from(*x)];
        }
    });
}

/// Function of two 8-bit integers: `tables[0][a] + tables[1][b]`, saturated to 8 bits.
pub(super) struct Sum {
    tables: [[i32; 256]; 2],
    /// True if the result is `int8`; otherwise it is `uint8`.
    is_signed: bool,
    /// Low and high bytes of both tables, if the entries and their sums fit 16 bits.
    planes: Option<Box<[[u8; 256]; 4]>>,
}

impl Sum {
    pub fn new(tables: [[i32; 256]; 2], is_signed: bool) -> Sum {
        let is_small = tables.iter().flatten().all(|value| value.unsigned_abs() < 1 << 14);
        let planes = (is_small && can_look_up_in_registers()).then(|| {
            let plane = |table: usize, byte: usize| tables[table].map(|value| value.to_le_bytes()[byte]);
            Box::new([plane(0, 0), plane(0, 1), plane(1, 0), plane(1, 1)])
        });
        Sum { tables, is_signed, planes }
    }

    /// Computes `out[i]` from `a[i]` and `b[i]`.
    pub fn compute(&self, a: &[u8], b: &[u8], out: &mut [u8]) {
        let (low, high) = if self.is_signed { (-128, 127) } else { (0, 255) };
        let finished_count = match &self.planes {
            Some(planes) => sum_vectors(planes, self.is_signed, a, b, out),
            None => 0,
        };
        for ((out, a), b) in out[finished_count..].iter_mut().zip(&a[finished_count..]).zip(&b[finished_count..]) {
            let sum = self.tables[0][usize::from(*a)] + self.tables[1][usize::from(*b)];
            *out = sum.clamp(low, high) as u8;
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn look_up_vectors(_: &[u8; 256], _: &[u8], _: &mut [u8]) -> usize {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn sum_vectors(_: &[[u8; 256]; 4], _: bool, _: &[u8], _: &[u8], _: &mut [u8]) -> usize {
    0
}

/// Looks up whole vectors and returns the number of bytes processed.
#[cfg(target_arch = "x86_64")]
fn look_up_vectors(table: &[u8; 256], x: &[u8], out: &mut [u8]) -> usize {
    // SAFETY: `look_up_each` calls this only if `can_look_up_in_registers` found AVX-512 BW and VBMI, which imply the
    // remaining features.
    unsafe { x86::look_up_vectors(table, x, out) }
}

/// Sums whole vectors and returns the number of bytes processed.
#[cfg(target_arch = "x86_64")]
fn sum_vectors(planes: &[[u8; 256]; 4], is_signed: bool, a: &[u8], b: &[u8], out: &mut [u8]) -> usize {
    // SAFETY: a `Sum` has planes only if `can_look_up_in_registers` found AVX-512 BW and VBMI, which imply the
    // remaining features.
    unsafe { x86::sum_vectors(planes, is_signed, a, b, out) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Size of a vector in bytes.
    const VECTOR: usize = 64;

    #[target_feature(enable = "avx512f,avx512bw")]
    fn load(bytes: &[u8; VECTOR]) -> __m512i {
        // SAFETY: the array type provides the 64 bytes that the load reads.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn store(out: &mut [u8; VECTOR], value: __m512i) {
        // SAFETY: the array type provides the 64 bytes that the store writes.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), value) }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn registers(table: &[u8; 256]) -> [__m512i; 4] {
        let quarters = table.as_chunks::<VECTOR>().0;
        [load(&quarters[0]), load(&quarters[1]), load(&quarters[2]), load(&quarters[3])]
    }

    /// Performs 64 lookups: the low seven bits index each half of the table, the highest bit selects the half.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn lookup(table: &[__m512i; 4], x: __m512i) -> __m512i {
        let low = _mm512_permutex2var_epi8(table[0], x, table[1]);
        let high = _mm512_permutex2var_epi8(table[2], x, table[3]);
        _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub fn look_up_vectors(table: &[u8; 256], x: &[u8], out: &mut [u8]) -> usize {
        let table = registers(table);
        let (x, out) = (x.as_chunks::<VECTOR>().0, out.as_chunks_mut::<VECTOR>().0);
        for (out, x) in out.iter_mut().zip(x) {
            store(out, lookup(&table, load(x)));
        }
        x.len() * VECTOR
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub fn sum_vectors(planes: &[[u8; 256]; 4], is_signed: bool, a: &[u8], b: &[u8], out: &mut [u8]) -> usize {
        let [a_low, a_high, b_low, b_high] =
            [registers(&planes[0]), registers(&planes[1]), registers(&planes[2]), registers(&planes[3])];
        let (a, b) = (a.as_chunks::<VECTOR>().0, b.as_chunks::<VECTOR>().0);
        for ((out, a), b) in out.as_chunks_mut::<VECTOR>().0.iter_mut().zip(a).zip(b) {
            let (a, b) = (load(a), load(b));
            let (al, ah) = (lookup(&a_low, a), lookup(&a_high, a));
            let (bl, bh) = (lookup(&b_low, b), lookup(&b_high, b));
            // Unpacking splits each 128-bit lane into its lower and upper half; packing restores the order.
            let lower = _mm512_add_epi16(_mm512_unpacklo_epi8(al, ah), _mm512_unpacklo_epi8(bl, bh));
            let upper = _mm512_add_epi16(_mm512_unpackhi_epi8(al, ah), _mm512_unpackhi_epi8(bl, bh));
            let sums = if is_signed { _mm512_packs_epi16(lower, upper) } else { _mm512_packus_epi16(lower, upper) };
            store(out, sums);
        }
        a.len() * VECTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sequence of all byte values, in an order that depends on `factor`. Its length is not a multiple of the
    /// vector size.
    fn bytes(factor: usize) -> Vec<u8> {
        (0..65_536 + 77).map(|i: usize| (i * factor + i / 256) as u8).collect()
    }

    #[test]
    fn table_lookup() {
        let table: [u8; 256] = std::array::from_fn(|i| (i * 37 + 11) as u8);
        let x = bytes(1);
        let mut out = vec![0; x.len()];
        look_up_each(&table, &x, &mut out);
        assert!(out.iter().zip(&x).all(|(out, x)| *out == table[usize::from(*x)]));
    }

    /// Tests pairs in which every byte value occurs, with table values that saturate at both ends, small values, and
    /// values beyond 16 bits.
    #[test]
    fn sums_saturate() {
        let (a, b) = (bytes(1), bytes(255));
        for steepness in [1i32, 3, 100, 127, 4000] {
            for signed in [false, true] {
                let table = |offset: i32| std::array::from_fn(|i| (i as i32 - 128) * steepness + offset);
                let (first, second): ([i32; 256], [i32; 256]) = (table(5), table(-60));
                let mut out = vec![0; a.len()];
                Sum::new([first, second], signed).compute(&a, &b, &mut out);
                let limits = if signed { (-128, 127) } else { (0, 255) };
                for ((a, b), out) in a.iter().zip(&b).zip(&out) {
                    let sum = first[usize::from(*a)] + second[usize::from(*b)];
                    assert_eq!(*out, sum.clamp(limits.0, limits.1) as u8, "{a} and {b}, {steepness} each");
                }
            }
        }
    }
}
