//! Tests of operators on strings, compared with results written by hand, and of their kernels with the references.

use super::{attrs, call, error_of, inferred_type};
use byoc_ir::ir::{AttrValue, Attrs, TensorType, Type};
use byoc_ir::op::{self, Value};
use byoc_ir::tensor::strings::{self, span};
use byoc_ir::tensor::{DType, Tensor, TensorView, TensorViewMut};
use byoc_kernels::Spec;

/// Returns the bytes and the spans of strings.
fn text(shape: &[usize], strings: &[&str]) -> [Tensor; 2] {
    let [spans, bytes] = strings::encode(shape, strings).unwrap();
    [bytes, spans]
}

fn run(name: &str, attrs: &Attrs, args: &[&[Tensor]]) -> Vec<Tensor> {
    let args: Vec<Value> = args.concat().into_iter().map(Value::Tensor).collect();
    call(name, attrs, &args).unwrap_or_else(|error| panic!("{error}"))
}

fn strings_of(bytes: &Tensor, spans: &Tensor) -> Vec<String> {
    strings::decode(spans, bytes).unwrap().strings
}

#[test]
fn compares_and_finds() {
    let words = text(&[2, 2], &["a", "b", "", "a"]);
    let keys = text(&[4], &["b", "", "a", "b"]);
    let positions = run("text.lookup", &Attrs::none(), &[&words, &keys]).remove(0);
    assert_eq!((positions.shape(), positions.as_slice::<i64>()), (&[2, 2][..], &[2, 0, 1, 2][..]));
    let unknown = run("text.lookup", &Attrs::none(), &[&text(&[1], &["c"]), &keys]).remove(0);
    assert_eq!(unknown.as_slice::<i64>(), [-1]);
    let required = attrs([("is_required", true.into())]);
    let [bytes, spans] = text(&[1], &["c"]);
    assert!(
        error_of("text.lookup", &required, &[&bytes, &spans, &keys[0], &keys[1]])
            .contains("expected a key, found \"c\"")
    );
    let other = text(&[2], &["a", "x"]);
    let equal = run("text.equal", &Attrs::none(), &[&words, &other]).remove(0);
    assert_eq!(equal, Tensor::from_bools(&[2, 2], &[true, false, false, false]));
    let ranks = run("text.rank", &Attrs::none(), &[&words]).remove(0);
    assert_eq!(ranks.as_slice::<i64>(), [1, 2, 0, 1]);
    let matrix = text(&[1, 1], &["a"]);
    assert!(
        error_of("text.lookup", &Attrs::none(), &[&words[0], &words[1], &matrix[0], &matrix[1]]).contains("a vector")
    );
    let short = text(&[3], &["a", "b", "c"]);
    assert!(
        error_of("text.equal", &Attrs::none(), &[&words[0], &words[1], &short[0], &short[1]]).contains("broadcast")
    );
}

#[test]
fn concatenates_and_changes_case() {
    let [bytes, spans] =
        run("text.concatenate", &Attrs::none(), &[&text(&[2, 1], &["a", "ß"]), &text(&[2], &["", "bc"])])
            .try_into()
            .unwrap();
    assert_eq!(spans.shape(), [2, 2]);
    assert_eq!(strings_of(&bytes, &spans), ["a", "abc", "ß", "ßbc"]);
    assert_eq!(bytes.len(), 10);
    let words = text(&[3], &["aÄß", "", "İx"]);
    let change = |action: &str| {
        let [bytes, spans] = run("text.case", &attrs([("action", action.into())]), &[&words]).try_into().unwrap();
        strings_of(&bytes, &spans)
    };
    assert_eq!(change("upper"), ["AÄß", "", "İX"]);
    assert_eq!(change("lower"), ["aäß", "", "İx"]);
    let types = [Type::tensor_of(DType::U8, [byoc_ir::ir::Dim::Any]), Type::tensor(DType::I64, &[3])];
    let upper = attrs([("action", "upper".into())]);
    assert_eq!(inferred_type("text.case", &upper, &types).unwrap(), "(Tensor[(?), uint8], Tensor[(3), int64])");
    assert!(
        error_of("text.case", &attrs([("action", "title".into())]), &[&words[0], &words[1]]).contains("lower or upper")
    );
}

#[test]
fn matches_patterns() {
    let words = text(&[3], &["ab", "xaby", "b"]);
    let found = run("text.match", &attrs([("pattern", "a|ab|b".into())]), &[&words]).remove(0);
    assert_eq!(found, Tensor::from_bools(&[3], &[true, false, true]));
    assert!(
        error_of("text.match", &attrs([("pattern", "(".into())]), &[&words[0], &words[1]])
            .contains("expected a pattern")
    );
}

#[test]
fn keeps_spans() {
    let spans = Tensor::from_slice(&[3], &[span(0, 1), span(1, 1), span(2, 1)]);
    let keep = |flags: [bool; 3]| {
        let args = [Value::Tensor(spans.clone()), Value::Tensor(Tensor::from_bools(&[3], &flags))];
        call("text.keep", &Attrs::none(), &args).unwrap().remove(0).as_slice::<i64>().to_vec()
    };
    assert_eq!(keep([true, false, true]), [span(0, 1), span(2, 1)]);
    assert_eq!(keep([false; 3]), [0]);
    let two = Tensor::from_bools(&[2], &[true, true]);
    assert!(error_of("text.keep", &Attrs::none(), &[&spans, &two]).contains("equal dimensions"));
}

#[test]
fn splits_and_tokenizes() {
    let words = text(&[2], &["a b  c", ""]);
    let [spans, counts] = run("text.split", &Attrs::none(), &[&words]).try_into().unwrap();
    assert_eq!((spans.shape(), counts.as_slice::<i64>()), (&[2, 3][..], &[3, 0][..]));
    assert_eq!(strings_of(&words[0], &spans), ["a", "b", "c", "", "", ""]);
    let [spans, _] = run("text.split", &attrs([("maxsplit", 1.into())]), &[&words]).try_into().unwrap();
    assert_eq!(strings_of(&words[0], &spans), ["a", "b  c", "", ""]);

    let tokenize = |strings: &[&str], separators: &[&str], attributes: Attrs| {
        let data = text(&[strings.len() + 3], &[strings, &["#", "<", ">"]].concat());
        let all = data[1].as_slice::<i64>();
        let spans = Tensor::from_slice(&[strings.len()], &all[..strings.len()]);
        let marks = Tensor::from_slice(&[3], &all[strings.len()..]);
        let separators = text(&[separators.len()], separators);
        let result = run("text.tokenize", &attributes, &[&[data[0].clone(), spans], &separators, &[marks]]).remove(0);
        (result.shape().to_vec(), strings_of(&data[0], &result))
    };
    let (shape, tokens) = tokenize(&["a,bc", "dé"], &[","], attrs([("mark", true.into())]));
    assert_eq!((shape, tokens), (vec![2, 4], ["<", "a", "bc", ">", "<", "dé", ">", "#"].map(String::from).to_vec()));
    let (shape, tokens) = tokenize(&["né", ""], &[""], Attrs::none());
    assert_eq!((shape, tokens), (vec![2, 2], ["n", "é", "#", "#"].map(String::from).to_vec()));
    let words_of_two = attrs([("tokenexp", "[a-z]+".into()), ("min_chars", 2.into())]);
    assert_eq!(tokenize(&["a1bc2def"], &[], words_of_two).1, ["bc", "def"]);
    assert_eq!(tokenize(&["", ""], &[","], attrs([("mark", true.into())])).0, [2, 0]);
}

#[test]
fn converts_numbers() {
    let numbers = Tensor::from_slice(&[4], &[0.1f32, -2.0, 1e10, f32::NAN]);
    let [bytes, spans] = run("text.from_numbers", &Attrs::none(), &[&[numbers]]).try_into().unwrap();
    assert_eq!(strings_of(&bytes, &spans), ["0.1", "-2", "1e+10", "NaN"]);
    let integers = Tensor::from_slice(&[2], &[i64::MIN, 7]);
    let [bytes, spans] = run("text.from_numbers", &Attrs::none(), &[&[integers]]).try_into().unwrap();
    assert_eq!(strings_of(&bytes, &spans), [i64::MIN.to_string(), "7".into()]);
    let words = text(&[3], &[" 12", "-1.5", "3e2x"]);
    let parse = |dtype: DType| run("text.to_numbers", &attrs([("dtype", dtype.into())]), &[&words]).remove(0);
    assert_eq!(parse(DType::F32).as_slice::<f32>(), [12.0, -1.5, 300.0]);
    assert_eq!(parse(DType::I8).as_slice::<i8>(), [12, -1, 3]);
    let letters = text(&[1], &["x"]);
    assert!(
        error_of("text.to_numbers", &attrs([("dtype", DType::I64.into())]), &[&letters[0], &letters[1]])
            .contains("found \"x\"")
    );
}

#[test]
fn counts_ngrams() {
    let data = Tensor::from_slice(&[2, 4], &[1i64, 2, 1, 2, 3, 3, 3, 3]);
    let pool = Tensor::from_slice(&[6], &[1i64, 3, 1, 2, 3, 3]);
    let with = |extra: &[(&str, AttrValue)]| {
        let fixed =
            [("counts", AttrValue::ints([0, 2])), ("columns", AttrValue::ints([0, 3, 1, 2])), ("max_length", 2.into())];
        Attrs::new(fixed.into_iter().chain(extra.iter().cloned()))
    };
    let count = |attributes: &Attrs| run("text.ngrams", attributes, &[&[data.clone(), pool.clone()]]).remove(0);
    let counts = count(&with(&[]));
    assert_eq!(
        (counts.shape(), counts.as_slice::<f32>()),
        (&[2, 4][..], &[2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 3.0, 4.0][..])
    );
    let skipped = count(&with(&[("max_skips", 1.into())]));
    assert_eq!(skipped.as_slice::<f32>(), [2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 5.0, 4.0]);
    let weights = AttrValue::List([0.5, 2.0, 3.0, 4.0].map(AttrValue::Float).into());
    let weighted = count(&with(&[("mode", "TFIDF".into()), ("weights", weights)]));
    assert_eq!(weighted.as_slice::<f32>(), [1.0, 6.0, 0.0, 0.0, 0.0, 0.0, 12.0, 8.0]);
    let descending = attrs([("counts", AttrValue::ints([4, 2])), ("columns", AttrValue::ints([0, 1]))]);
    assert!(error_of("text.ngrams", &descending, &[&data, &pool]).contains("counts"));
}

#[test]
fn invalid_strings_are_errors() {
    let bytes = Tensor::from_slice(&[2], &[b'a', 0xff]);
    let outside = Tensor::from_slice(&[1], &[span(1, 5)]);
    let invalid = Tensor::from_slice(&[1], &[span(1, 1)]);
    let upper = attrs([("action", "upper".into())]);
    assert!(error_of("text.case", &upper, &[&bytes, &outside]).contains("element 0: expected a span"));
    assert!(error_of("text.case", &upper, &[&bytes, &invalid]).contains("element 0: expected UTF-8"));
    assert!(error_of("text.rank", &Attrs::none(), &[&bytes, &outside]).contains("expected a span"));
    assert!(error_of("text.rank", &Attrs::none(), &[&outside, &outside]).contains("vector of uint8"));
}

/// Runs the kernel of a call whose operands from `first_constant` on are constants.
fn kernel(name: &str, attributes: &Attrs, operands: &[Tensor], first_constant: usize) -> Tensor {
    let id = op::lookup(name).unwrap();
    let ty = |tensor: &Tensor| TensorType::fixed(tensor.dtype(), tensor.shape());
    let inputs: Vec<TensorType> = operands.iter().map(ty).collect();
    let expected = call(name, attributes, &operands.iter().cloned().map(Value::Tensor).collect::<Vec<_>>()).unwrap();
    let outputs = [ty(&expected[0])];
    let constant = |(i, tensor)| (i >= first_constant).then_some(tensor);
    let constants: Vec<Option<&Tensor>> = operands.iter().enumerate().map(constant).collect();
    let spec = Spec { def: op::get(id), attrs: attributes, inputs: &inputs, outputs: &outputs, constants: &constants };
    let kernel = byoc_kernels::make(id, &spec).unwrap();
    let views: Vec<TensorView<'_>> = operands.iter().map(Tensor::view).collect();
    Tensor::build(expected[0].dtype(), expected[0].shape(), |data| {
        let mut out = [TensorViewMut { dtype: expected[0].dtype(), shape: expected[0].shape(), data }];
        kernel.run(&views, &mut out, &mut []).unwrap();
    })
    .unwrap()
}

#[test]
fn kernels_prepare_constants() {
    let (words, keys) = (text(&[4], &["a", "b", "", "zz"]), text(&[3], &["zz", "a", "zz"]));
    let positions = kernel("text.lookup", &Attrs::none(), &[words.clone(), keys].concat(), 2);
    assert_eq!(positions.as_slice::<i64>(), [1, -1, -1, 0]);
    let found = kernel("text.match", &attrs([("pattern", "[a-y]".into())]), &words, 2);
    assert_eq!(found, Tensor::from_bools(&[4], &[true, true, false, false]));
}
