//! Conversion of the library's status codes.

use super::library;
use crate::library::{Attr, Conv, Desc, OneDnnError, PostOps, PrimitiveDesc, Status};
use byoc_plugin_api::{DType, Error, RefusalCode};

#[test]
fn converts_status_codes() {
    let error_of = |code| OneDnnError::of(Status::of(code).unwrap(), "test");
    assert_eq!(Status::of(0), None);
    assert!(matches!(error_of(1), OneDnnError::OutOfMemory(_)));
    assert!(matches!(error_of(2), OneDnnError::Defect(_)));
    for code in [3, 4, 6] {
        assert!(matches!(error_of(code), OneDnnError::Unsupported(_)), "{code}");
    }
    for code in [5, 7, 99, -1] {
        assert!(matches!(error_of(code), OneDnnError::Defect(_)), "{code}");
    }
}

#[test]
fn out_of_memory_is_a_resource_limit() {
    let failure = OneDnnError::of(Status::OutOfMemory, "matrix product");
    assert_eq!(failure.code(), RefusalCode::ResourceLimit);
    let error = Error::from(failure);
    assert_eq!(
        (error.code.as_str(), error.message.as_str()),
        ("ResourceLimit", "oneDNN, matrix product: out of memory")
    );
    let failure = OneDnnError::of(Status::Unimplemented, "matrix product");
    assert_eq!(failure.code(), RefusalCode::UnsupportedShape);
}

#[test]
fn invalid_arguments_are_a_defect() {
    let Some(library) = library() else { return };
    let desc = |shape: &[i64]| Desc::with_strides(library, DType::F32, shape, &[shape[1], 1]).unwrap();
    let (src, weights, dst) = (desc(&[2, 3]), desc(&[5, 7]), desc(&[2, 7]));
    let attr = Attr::new(library, &PostOps::new(library).unwrap()).unwrap();
    let io = Conv { src: &src, weights: &weights, bias: None, dst: &dst };
    let failure = PrimitiveDesc::matmul(library, &io, &attr).err().unwrap();
    let text = "oneDNN, matrix product: invalid arguments; this is a defect in the dnnl plugin, please report it";
    assert_eq!(failure.to_string(), text);
}
