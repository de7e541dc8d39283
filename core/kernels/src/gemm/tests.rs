use super::*;
use crate::simd::{Level, level};
use std::process::Command;

/// Returns `count` values between -1 and 1.
fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// Right operand that is gathered.
struct Rows<'a>(&'a [f32], usize);

impl Columns for Rows<'_> {
    fn row<'x>(&'x self, row: usize, columns: Range<usize>, line: &'x mut [f32]) -> &'x [f32] {
        line.copy_from_slice(&self.0[row * self.1..][columns]);
        line
    }
}

/// Compares a product in each layout of its operands with sums in float64.
fn check((m, n, k): (usize, usize, usize), threads: usize) {
    let (a, b) = (values(m * k, 1), values(k * n, 2));
    let transposed = |values: &[f32], rows: usize, columns: usize| -> Vec<f32> {
        (0..columns).flat_map(|j| (0..rows).map(move |i| values[i * columns + j])).collect()
    };
    let (a_columns, b_columns) = (transposed(&a, m, k), transposed(&b, k, n));
    let expected: Vec<f64> = (0..m * n)
        .map(|at| (0..k).map(|p| f64::from(a[at / n * k + p]) * f64::from(b[p * n + at % n])).sum())
        .collect();
    let (gap, first) = (3, f32::NAN);
    let verify = |out: &[f32], layout: &str| {
        for (i, row) in out.chunks(n + gap).enumerate().take(m) {
            for (j, found) in row[..n].iter().enumerate() {
                let expected = expected[i * n + j];
                let is_close = (f64::from(*found) - expected).abs() <= 1e-6 * (k as f64).sqrt().max(1.0) * 4.0;
                assert!(is_close, "{m}x{n}x{k}, {layout}, ({i}, {j}): expected {expected}, found {found}");
            }
            assert!(row[n..].iter().all(|value| value.is_nan()), "{m}x{n}x{k}, {layout}: written beyond row {i}");
        }
    };
    for (a_layout, a) in
        [("rows", Matrix { data: &a, row: k, col: 1 }), ("columns", Matrix { data: &a_columns, row: 1, col: m })]
    {
        for (b_layout, b) in
            [("rows", Matrix { data: &b, row: n, col: 1 }), ("columns", Matrix { data: &b_columns, row: 1, col: k })]
        {
            let mut out = vec![first; m * (n + gap)];
            gemm(threads, k, a, b, Output::of(&mut out, m, n, n + gap));
            verify(&out, &format!("{a_layout} by {b_layout}"));
        }
        let mut out = vec![first; m * (n + gap)];
        gemm_gathered(threads, k, a, &Rows(&b, n), Output::of(&mut out, m, n, n + gap));
        verify(&out, &format!("{a_layout} by gathered rows"));
    }
}

#[test]
fn products_equal_sums() {
    let sizes = [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 31, 33, 49, 65];
    for (at, &m) in sizes.iter().enumerate() {
        for (skipped, &n) in sizes.iter().enumerate() {
            let k = sizes[(at * 5 + skipped * 3) % sizes.len()];
            check((m, n, k), 1);
        }
    }
    for size in [(1, 300, 600), (5, 1030, 40), (300, 2, 700), (70, 600, 530), (4100, 3, 20), (30, 270, 0), (6, 40, 1)] {
        check(size, 1);
        check(size, 3);
    }
}

#[test]
fn infinities_stay_in_their_rows_and_columns() {
    let (m, n, k) = (5, 6, 18);
    let (mut a, b) = (values(m * k, 1), values(k * n, 2));
    a[2 * k + 17] = f32::INFINITY;
    let mut out = vec![0.0; m * n];
    let (a, b) = (Matrix { data: &a, row: k, col: 1 }, Matrix { data: &b, row: n, col: 1 });
    gemm(1, k, a, b, Output::of(&mut out, m, n, n));
    for (i, row) in out.chunks(n).enumerate() {
        assert!(row.iter().all(|value| value.is_finite() == (i != 2)), "row {i}: {row:?}");
    }
}

/// The variants for instruction sets below the processor's own run in processes of their own.
#[test]
fn products_equal_sums_with_older_instructions() {
    for name in ["avx2", "baseline"] {
        let mut test = Command::new(std::env::current_exe().unwrap());
        let tests = ["gemm::tests::products_equal_sums", "gemm::tests::older_instructions_are_chosen"];
        test.arg("--exact").args(tests).env("BYOC_MAX_ISA", name);
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("2 passed"), "{name}: {text}");
    }
}

#[test]
fn older_instructions_are_chosen() {
    match std::env::var("BYOC_MAX_ISA").as_deref() {
        Ok("baseline") => assert_eq!(level(), Level::Baseline),
        #[cfg(target_arch = "x86_64")]
        Ok("avx2") => assert_ne!(level(), Level::Avx512),
        #[cfg(target_arch = "x86_64")]
        _ => assert!(crate::simd::permits(Level::Avx512), "nothing is forbidden without the variable"),
        #[cfg(not(target_arch = "x86_64"))]
        _ => assert_eq!(level(), Level::Baseline),
    }
}
