//! The arena of a region or a program: buffers with disjoint lifetimes may share memory.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Alignment in bytes of a buffer in the workspace of a region.
pub const ALIGN: i64 = 64;

/// First and last phase that accesses a buffer.
pub type Lifetime = (usize, usize);

/// Returns the lifetimes of `count` buffers, given the buffers that each phase accesses; `None` for an unused buffer.
pub fn lifetimes<'a>(count: usize, phases: impl Iterator<Item = &'a BTreeSet<usize>>) -> Vec<Option<Lifetime>> {
    let mut lifetimes: Vec<Option<Lifetime>> = vec![None; count];
    for (index, buffers) in phases.enumerate() {
        for &buffer in buffers {
            lifetimes[buffer] = Some((lifetimes[buffer].map_or(index, |(start, _)| start), index));
        }
    }
    lifetimes
}

/// Assigns offsets to buffers of the given `sizes`, largest first, at multiples of `align` bytes, so that buffers with
/// overlapping lifetimes are disjoint. `phases` lists the buffers that each phase accesses; a buffer lives from the first
/// to the last phase that accesses it. Returns the offsets and the total size, in bytes.
pub fn plan<'a>(sizes: &[i64], phases: impl Iterator<Item = &'a BTreeSet<usize>>, align: i64) -> (Vec<i64>, i64) {
    place(sizes, &lifetimes(sizes.len(), phases), align)
}

/// Assigns offsets as in [`plan`], given the lifetimes.
pub fn place(sizes: &[i64], lifetimes: &[Option<Lifetime>], align: i64) -> (Vec<i64>, i64) {
    let round_up = |bytes: i64| (bytes + align - 1) / align * align;
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&b| (Reverse(sizes[b]), b));
    let mut offsets = vec![0; sizes.len()];
    let mut placements: Vec<(usize, Lifetime)> = Vec::new();
    let mut total_bytes = 0;
    for b in order {
        let bytes = round_up(sizes[b]);
        let Some((first_phase, last_phase)) = lifetimes[b] else { continue };
        let overlapping_placements =
            placements.iter().filter(|(_, span)| span.0 <= last_phase && first_phase <= span.1);
        let mut occupied_ranges: Vec<(i64, i64)> = overlapping_placements
            .map(|&(buffer, _)| (offsets[buffer], offsets[buffer] + round_up(sizes[buffer])))
            .collect();
        occupied_ranges.sort_unstable();
        let mut offset = 0;
        for (start, end) in occupied_ranges {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        offsets[b] = offset;
        total_bytes = total_bytes.max(offset + bytes);
        placements.push((b, (first_phase, last_phase)));
    }
    (offsets, total_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_phases(sizes: &[i64], phases: &[&[usize]]) -> (Vec<i64>, i64) {
        let phases: Vec<BTreeSet<usize>> = phases.iter().map(|phase| phase.iter().copied().collect()).collect();
        plan(sizes, phases.iter(), ALIGN)
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        assert_eq!(plan_phases(&[100, 100, 100], &[&[0], &[0, 1], &[1, 2], &[2]]), (vec![0, 128, 0], 256));
    }

    #[test]
    fn buffers_alive_together_are_disjoint() {
        let (sizes, phases) = ([640, 64, 128, 320, 64], [&[0, 1][..], &[1, 2], &[2, 3, 4], &[0, 4]]);
        let (offsets, total_bytes) = plan_phases(&sizes, &phases);
        for phase in phases {
            for (a, b) in phase.iter().flat_map(|a| phase.iter().map(move |b| (*a, *b))).filter(|(a, b)| a < b) {
                let are_disjoint = offsets[a] + sizes[a] <= offsets[b] || offsets[b] + sizes[b] <= offsets[a];
                assert!(are_disjoint, "buffers {a} and {b} overlap: {offsets:?}");
            }
        }
        assert!(total_bytes < sizes.iter().sum());
    }

    #[test]
    fn unused_buffers_take_no_memory() {
        assert_eq!(plan_phases(&[64, 1000], &[&[0]]), (vec![0, 0], 64));
    }
}
