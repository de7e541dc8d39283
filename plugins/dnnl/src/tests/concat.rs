//! Tests row-wise concatenation with every width modulo the vector length, with strided inputs, on one thread and on
//! all threads.

use super::library;
use crate::argument::{Argument, Arguments, BufferId};
use crate::concat::{Part, RowConcat};
use crate::library::{Desc, ffi};
use byoc_plugin_api::DType;

#[test]
fn rows_are_concatenated() {
    let Some(library) = library() else { return };
    library.set_threads(2);
    for (rows, widths) in [(1, vec![1, 3]), (7, vec![64, 5, 20]), (301, vec![131, 256, 1, 97]), (4000, vec![16; 9])] {
        let part = |(i, &bytes): (usize, &usize)| Part { bytes, stride: bytes + i * 8 };
        let parts: Vec<Part> = widths.iter().enumerate().map(part).collect();
        let byte = |i: usize, index: usize| (index * 31 + i * 7 + index / 251) as u8;
        let mut tensors: Vec<Vec<u8>> = parts
            .iter()
            .enumerate()
            .map(|(i, part)| (0..rows * part.stride).map(|index| byte(i, index)).collect())
            .collect();
        let row_bytes: usize = widths.iter().sum();
        tensors.push(vec![0xee; rows * row_bytes + 1]);
        let argument = |i: usize| {
            let arg = if i == parts.len() { ffi::ARG_DST } else { ffi::ARG_MULTIPLE_SRC + i as i32 };
            let desc = Desc::with_strides(library, DType::U8, &[1], &[1]).unwrap();
            Argument { arg, buffer: BufferId(i as u32), offset: 0, desc }
        };
        let args: Vec<Argument> = (0..tensors.len()).map(argument).collect();
        let addresses: Vec<*mut u8> = tensors.iter_mut().map(Vec::as_mut_ptr).collect();
        let concat = RowConcat { rows, parts: parts.clone(), stride: row_bytes };
        // SAFETY: `tensors` are allocated above in the sizes that rows and strides imply.
        unsafe { concat.run(library, Arguments { args: &args, bases: &addresses }) };
        let result = &tensors[parts.len()];
        let mut position = 0;
        for r in 0..rows {
            for (i, part) in parts.iter().enumerate() {
                let expected: Vec<u8> = (0..part.bytes).map(|k| byte(i, r * part.stride + k)).collect();
                assert_eq!(
                    result[position..position + part.bytes],
                    expected,
                    "expected part {i} in row {r} of the result, widths {widths:?}"
                );
                position += part.bytes;
            }
        }
        assert_eq!(result[position], 0xee, "expected no write past the end of the result");
    }
}
