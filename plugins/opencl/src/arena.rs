//! Arena layout: intermediate results share memory if their lifetimes do not overlap.

use crate::program::{ALIGNMENT, Buffer, Launch, Place};

/// Creates one buffer per size, at an arena offset. Returns the buffers and the arena size in bytes.
pub fn plan(sizes: &[u64], launches: &[Launch]) -> (Vec<Buffer>, u64) {
    // Lifetimes: the first and the last launch that accesses a buffer.
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; sizes.len()];
    for (index, launch) in launches.iter().enumerate() {
        for place in &launch.arguments {
            if let Place::Work(buffer) = place {
                let life = lives[*buffer].get_or_insert((index, index));
                life.1 = index;
            }
        }
    }
    let align = |bytes: u64| bytes.max(1).div_ceil(ALIGNMENT) * ALIGNMENT;
    let mut buffers: Vec<Buffer> = sizes.iter().map(|&bytes| Buffer { offset: 0, bytes: bytes.max(1) }).collect();
    // Larger buffers first, each in the first gap between buffers with overlapping lifetimes.
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&i| lives[i].is_some()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(sizes[i]), i));
    let mut placed_buffers: Vec<usize> = Vec::new();
    let mut size = 0;
    for i in order {
        let overlaps = |j: &usize| match (lives[i], lives[*j]) {
            (Some(a), Some(b)) => a.0 <= b.1 && b.0 <= a.1,
            _ => false,
        };
        let mut occupied_ranges: Vec<(u64, u64)> = placed_buffers
            .iter()
            .filter(|j| overlaps(j))
            .map(|&j| (buffers[j].offset, buffers[j].offset + align(buffers[j].bytes)))
            .collect();
        occupied_ranges.sort_unstable();
        let mut offset = 0;
        for (start, end) in occupied_ranges {
            if offset + align(buffers[i].bytes) <= start {
                break;
            }
            offset = offset.max(end);
        }
        buffers[i].offset = offset;
        size = size.max(offset + align(buffers[i].bytes));
        placed_buffers.push(i);
    }
    // An unused buffer stays at offset 0; the arena must still be large enough for it.
    let unused_bytes = (0..sizes.len()).filter(|&i| lives[i].is_none()).map(|i| align(sizes[i])).max();
    (buffers, size.max(unused_bytes.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(arguments: &[usize]) -> Launch {
        let arguments = arguments.iter().map(|&buffer| Place::Work(buffer)).collect();
        Launch { name: String::new(), kernel: 0, arguments, global: [1; 3] }
    }

    #[test]
    fn buffers_share_memory_unless_they_live_together() {
        let launches = [launch(&[0]), launch(&[0, 1]), launch(&[1, 2]), launch(&[2, 3])];
        let (buffers, size) = plan(&[5000, 100, 8000, 4096], &launches);
        assert!(size <= 4 * ALIGNMENT, "expected memory for two buffers of the chain, found {size} bytes");
        for (i, a) in buffers.iter().enumerate() {
            assert_eq!(a.offset % ALIGNMENT, 0);
            for b in &buffers[i + 1..=(i + 1).min(buffers.len() - 1)] {
                let are_disjoint = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                assert!(are_disjoint, "expected disjoint buffers, found {a:?} and {b:?}");
            }
        }
        assert_eq!(buffers[0].offset, buffers[2].offset);
    }
}
