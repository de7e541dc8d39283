//! Strings, and other values than tensors of numbers, on the command line.

use crate::{byoc, data_text};
use byoc_ir::tensor::Tensor;

#[test]
fn strings_are_read_printed_and_written() {
    let model = data_text("operators/string_concat_axis/model.onnx");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let words = ["a", "", "grün"].map(String::from);
    std::fs::write(path("x.npy"), byoc::io::npy::encode_strings(&[1, 3], &words)).unwrap();
    byoc(["compile", &model, "--dim", "n=?", "-o", &path("m.byoc")]).ok();
    let expected = "y: string[2, 3]  [\"a\", \"\", \"grün\", \"u\", \"v\", ...]\n";
    for model in [&model, &path("m.byoc")] {
        let input = format!("x={}", path("x.npy"));
        let output = byoc(["run", model, "--input", &input, "--output", &path("y.npy")]).ok();
        assert_eq!(output.out, expected);
        let [spans, bytes] = byoc::io::npy::read_strings(path("y.npy").as_ref()).unwrap();
        let found = byoc_ir::tensor::strings::decode(&spans, &bytes).unwrap().strings;
        assert_eq!((spans.shape(), &found[..]), (&[2, 3][..], &["a", "", "grün", "u", "v", "w"].map(String::from)[..]));
    }
    let described = byoc(["run", &model, "--describe"]).ok().out;
    assert!(described.contains("Tensor[(n, 3), string]") && described.contains("Tensor[?, string]"), "{described}");
    byoc(["bench", &path("m.byoc")]).fails_with("E0605").stderr_contains(&["Tensor[(n, 3), string]"]);

    byoc::io::npy::write(path("n.npy").as_ref(), &Tensor::from_slice(&[1, 3], &[1i64, 2, 3])).unwrap();
    let numbers = format!("x={}", path("n.npy"));
    byoc(["run", &model, "--input", &numbers]).fails_with("E0604").stderr_contains(&["string", "found numbers"]);
    let numeric = data_text("models/gru/model.onnx");
    let strings = format!("input={}", path("x.npy"));
    byoc(["run", &numeric, "--input", &strings]).fails_with("E0511");
}

#[test]
fn maps_are_printed_and_written_as_arrays() {
    let model = data_text("values/zip_map_ints/model.onnx");
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("y.npz").display().to_string();
    let printed = byoc(["run", &model, "--dim", "n=2", "--input", "x=ones", "--output", &output]).ok().out;
    assert!(printed.contains("maps: 2 maps with keys  [3, 5, 7]"), "{printed}");
    let arrays = byoc::io::npz::read(output.as_ref()).unwrap();
    let names: Vec<&str> = arrays.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["label", "maps", "maps.keys"]);
    assert_eq!(arrays[2].1.as_slice::<i64>(), [3, 5, 7]);
}
