//! Language model with a key-value cache: one program processes the prompt and every subsequent step.

use crate::support::{max_rel_err, test_data};
use byoc::driver::{self, BuildOptions};
use byoc::frontend::{self, LoadOptions};
use byoc::runtime::model::Model;
use byoc::runtime::session::Session;
use byoc_ir::tensor::Tensor;

/// Number of prompt tokens.
const PROMPT: usize = 8;

#[test]
fn decodes_64_tokens_like_pytorch() {
    let dir = test_data("open/llama_cache");
    let session = Session::without_plugins(2).unwrap();
    let mut options = LoadOptions::default();
    options.open.extend(["batch", "length", "past", "total"].map(String::from));
    let loaded_model = frontend::load(&dir.join("model.onnx"), &options).unwrap_or_else(|e| panic!("{e:?}"));
    let output = driver::build(&session, loaded_model, &BuildOptions::default(), &mut |_| {}).unwrap();
    let (model, _) = Model::load(&session, output.compiled, None).unwrap();

    let recorded_arrays = byoc::io::npz::read(&dir.join("decoding.npz")).unwrap();
    let array = |array_name: &str| {
        recorded_arrays.iter().find(|(name, _)| name == array_name).map(|(_, tensor)| tensor).unwrap()
    };
    let tokens = array("tokens").as_slice::<i64>();
    let logits = array("logits");
    let (steps, vocabulary) = (logits.shape()[0], logits.shape()[1]);
    assert_eq!((steps, tokens.len()), (65, PROMPT + 64));

    let mut cache = vec![Tensor::from_slice::<f32>(&[1, 2, 0, 16], &[]); 4];
    let mut position = 0;
    for step in 0..steps {
        let ids = if step == 0 { &tokens[..PROMPT] } else { &tokens[position..=position] };
        position += ids.len();
        let mut inputs =
            vec![Tensor::from_slice(&[1, ids.len()], ids), Tensor::from_slice(&[1, position], &vec![1i64; position])];
        inputs.append(&mut cache);
        let mut outputs = model.run(&inputs).unwrap_or_else(|e| panic!("step {step}: {e}"));
        cache = outputs.split_off(1);
        let all_logits = outputs[0].as_slice::<f32>();
        let last_logits = Tensor::from_slice(&[vocabulary], &all_logits[all_logits.len() - vocabulary..]);
        let expected = &logits.as_slice::<f32>()[step * vocabulary..(step + 1) * vocabulary];
        let error = max_rel_err(&last_logits, &Tensor::from_slice(&[vocabulary], expected));
        assert!(error <= 5e-4, "step {step}: expected a relative error of at most 5e-4, found {error:e}");
        assert_eq!(cache[0].shape(), [1, 2, position, 16]);
    }
}
