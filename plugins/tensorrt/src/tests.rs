//! Tests of the plugin that need neither library nor device.

use crate::blob::{self, Header};
use crate::loader::choose;
use crate::options::Capability;
use byoc_plugin_api::{DType, Signature, TensorType};

fn header() -> Header {
    Header {
        library: "1.7.1".into(),
        symbol: "region_0".into(),
        signature: Signature {
            inputs: vec![TensorType::new(DType::F32, &[1, 4])],
            outputs: vec![TensorType::new(DType::F32, &[1, 2])],
        },
        inputs: vec!["x".into()],
        outputs: vec!["output0".into()],
        profile: [("n".to_owned(), [1, 4, 16])].into(),
        layers: 3,
    }
}

fn engines() -> Vec<(Capability, Vec<u8>)> {
    vec![(Capability::Of(89), vec![7; 40]), (Capability::Any, vec![9; 24])]
}

#[test]
fn blob_round_trips() {
    let blob = blob::write(&header(), &engines());
    let (read, found) = blob::read(&blob).unwrap();
    assert_eq!(read, header());
    assert_eq!(found.iter().map(|(capability, bytes)| (*capability, bytes.to_vec())).collect::<Vec<_>>(), engines());
    assert_eq!(blob, blob::write(&header(), &engines()));
}

#[test]
fn cut_and_changed_blobs_are_refused() {
    let blob = blob::write(&header(), &engines());
    for length in 0..blob.len() {
        assert!(blob::read(&blob[..length]).is_err(), "a blob of {length} of {} bytes was read", blob.len());
    }
    // Every byte of an engine counts; a change in the header either fails or leaves the engines as they are.
    for position in blob.len() - 64..blob.len() {
        let mut changed = blob.clone();
        changed[position] ^= 1;
        let error = blob::read(&changed).unwrap_err();
        assert_eq!(error.message, "expected engines of TensorRT, found engines that were changed");
    }
    let longer = [&blob[..], b"x"].concat();
    assert!(blob::read(&longer).is_err());
}

#[test]
fn engine_of_the_device_comes_before_one_for_any() {
    let list = [Capability::Any, Capability::Of(89), Capability::Of(120)];
    assert_eq!(choose(&list, 89).unwrap(), 1);
    assert_eq!(choose(&list, 86).unwrap(), 0);
    let old = choose(&list, 75).unwrap_err();
    assert!(old.message.ends_with("of capability 7.5, found engines for any, 8.9, 12.0"), "{old}");
    assert!(old.hint.contains("tensorrt.capability=7.5"));
    let unknown = choose(&list, 90).unwrap_err();
    assert!(unknown.hint.contains("TensorRT for RTX has no engines for capability 9.0"), "{unknown}");
}
