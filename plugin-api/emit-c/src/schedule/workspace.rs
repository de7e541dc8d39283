//! Workspace planning: buffers with disjoint lifetimes may share memory.

use super::round_up;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Alignment of a buffer in bytes.
const ALIGN: i64 = 64;

/// Assigns offsets to buffers of the given `sizes`, largest first, so that buffers with overlapping lifetimes are
/// disjoint. `phases` lists the buffers that each phase accesses; a buffer lives from the first to the last phase that
/// accesses it. Returns the offsets and the total size, in bytes.
pub fn plan<'a>(sizes: &[i64], phases: impl Iterator<Item = &'a BTreeSet<usize>>) -> (Vec<i64>, i64) {
    plan_aligned(sizes, phases, ALIGN)
}

/// Plans like [`plan`], with every buffer at a multiple of `align` bytes.
pub fn plan_aligned<'a>(
    sizes: &[i64],
    phases: impl Iterator<Item = &'a BTreeSet<usize>>,
    align: i64,
) -> (Vec<i64>, i64) {
    let mut life: Vec<Option<(usize, usize)>> = vec![None; sizes.len()];
    for (number, buffers) in phases.enumerate() {
        for &buffer in buffers {
            life[buffer] = Some((life[buffer].map_or(number, |(first, _)| first), number));
        }
    }
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&b| (Reverse(sizes[b]), b));
    let mut offsets = vec![0; sizes.len()];
    let mut placed: Vec<(usize, (usize, usize))> = Vec::new();
    let mut total = 0;
    for b in order {
        let bytes = round_up(sizes[b], align);
        let Some((first, last)) = life[b] else { continue };
        let overlapping = placed.iter().filter(|(_, other)| other.0 <= last && first <= other.1);
        let mut busy: Vec<(i64, i64)> =
            overlapping.map(|&(other, _)| (offsets[other], offsets[other] + round_up(sizes[other], align))).collect();
        busy.sort_unstable();
        let mut at = 0;
        for (from, to) in busy {
            if at + bytes <= from {
                break;
            }
            at = at.max(to);
        }
        offsets[b] = at;
        total = total.max(at + bytes);
        placed.push((b, (first, last)));
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(sizes: &[i64], phases: &[&[usize]]) -> (Vec<i64>, i64) {
        let phases: Vec<BTreeSet<usize>> = phases.iter().map(|phase| phase.iter().copied().collect()).collect();
        plan(sizes, phases.iter())
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        assert_eq!(planned(&[100, 100, 100], &[&[0], &[0, 1], &[1, 2], &[2]]), (vec![0, 128, 0], 256));
    }

    #[test]
    fn buffers_alive_together_are_disjoint() {
        let (sizes, phases) = ([640, 64, 128, 320, 64], [&[0, 1][..], &[1, 2], &[2, 3, 4], &[0, 4]]);
        let (offsets, total) = planned(&sizes, &phases);
        for phase in phases {
            for (a, b) in phase.iter().flat_map(|a| phase.iter().map(move |b| (*a, *b))).filter(|(a, b)| a < b) {
                let apart = offsets[a] + sizes[a] <= offsets[b] || offsets[b] + sizes[b] <= offsets[a];
                assert!(apart, "buffers {a} and {b} overlap: {offsets:?}");
            }
        }
        assert!(total < sizes.iter().sum());
    }

    #[test]
    fn unused_buffers_take_no_memory() {
        assert_eq!(planned(&[64, 1000], &[&[0]]), (vec![0, 0], 64));
    }
}
