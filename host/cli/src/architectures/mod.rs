//! Standard architectures as ONNX models with seeded weights: realistic networks for compilation and benchmarks without
//! a trained model.
//!
//! With purely random weights, the output of a deep network hardly depends on its input: the activations of different
//! inputs converge layer by layer. Therefore a small batch of noise is propagated through a network while it is built,
//! and each normalization uses the statistics measured on its input: differences between inputs keep their magnitude,
//! so outputs depend on inputs.

mod bert;
mod detection;
mod measure;
mod net;
mod vision;

use byoc::frontend::onnx::proto::ModelProto;
use byoc_ir::diag::{Diagnostic, codes, nearest};
use net::Net;

/// Names and descriptions of the architectures, sorted by name.
pub const ARCHITECTURES: &[(&str, &str)] = &[
    ("bert_base", "BERT base (Devlin et al. 2018): 12 layers of width 768, 128 tokens"),
    ("mobilenet_v2", "MobileNetV2 (Sandler et al. 2018), 224 x 224"),
    ("resnet18", "ResNet-18 (He et al. 2015), 224 x 224"),
    ("resnet50", "ResNet-50 (He et al. 2015), stride in the 3 x 3 convolution, 224 x 224"),
    ("ssd_resnet50", "SSD (Liu et al. 2016) with the first stages of ResNet-50, 300 x 300: boxes, labels and scores"),
    ("vgg16", "VGG-16 (Simonyan and Zisserman 2014), 224 x 224"),
];

/// Builds an architecture. The seed determines its weights.
///
/// # Errors
/// If no architecture has the name `name`.
pub fn build(name: &str, seed: u64) -> Result<ModelProto, Diagnostic> {
    build_at_scale(name, seed, 1, 224).ok_or_else(|| {
        let names = ARCHITECTURES.iter().map(|(name, _)| *name);
        let error =
            Diagnostic::error(codes::frontends::UNKNOWN_ARCHITECTURE, format!("unknown architecture \"{name}\""))
                .note(format!("known architectures: {}", names.clone().collect::<Vec<_>>().join(", ")));
        match nearest(name, names) {
            Some(suggestion) => error.help(format!("did you mean \"{suggestion}\"?")),
            None => error,
        }
    })
}

/// Builds an architecture with its widths divided by `divide` and, where the architecture allows it, for images of size
/// `image`. Tests use this to obtain models small enough to run.
fn build_at_scale(name: &str, seed: u64, divide: usize, image: usize) -> Option<ModelProto> {
    let net = Net::new(name, seed);
    Some(match name {
        "bert_base" => bert::build(net, &bert::Config::base(divide)),
        "mobilenet_v2" => vision::mobilenet_v2(net, divide, image),
        "resnet18" => vision::resnet18(net, divide, image),
        "resnet50" => vision::resnet50(net, divide, image),
        "ssd_resnet50" => detection::ssd_resnet50(net, divide),
        "vgg16" => vision::vgg16(net, divide, image),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc::frontend::{LoadOptions, onnx};
    use byoc::io::random;
    use byoc_ir::ir::{Expr, Type};
    use byoc_ir::tensor::Tensor;
    use prost::Message;

    /// Evaluates an imported model call by call and returns its output.
    fn run(model: &ModelProto, seed: u64) -> Tensor {
        let converted_model =
            onnx::convert_model(model.clone(), &LoadOptions::default(), None).unwrap_or_else(|e| panic!("{}", e[0]));
        let module = &converted_model.module;
        let main = module.main().unwrap();
        let mut values: Vec<Vec<Tensor>> = Vec::new();
        for (id, node) in module.nodes.iter() {
            let value = match &node.expr {
                Expr::Constant(tensor) => vec![(**tensor).clone()],
                Expr::Var(_) => {
                    let ty = node.ty.as_tensor().unwrap();
                    assert!(main.params.contains(&id));
                    vec![random::tensor(ty.dtype, &ty.shape().unwrap(), seed)]
                }
                Expr::Tuple(fields) => fields.iter().map(|&f| values[byoc_ir::ir::Id::index(f)][0].clone()).collect(),
                Expr::Project { tuple, index } => {
                    vec![values[byoc_ir::ir::Id::index(*tuple)][*index as usize].clone()]
                }
                Expr::Call(_) => {
                    let (op, call) = node.expr.as_op_call().unwrap();
                    let args: Vec<&Tensor> =
                        call.args.iter().flat_map(|&a| &values[byoc_ir::ir::Id::index(a)]).collect();
                    measure::call_typed(op, &call.attrs, &args, &node.ty)
                }
                _ => Vec::new(),
            };
            values.push(value);
        }
        assert!(matches!(module.ty(main.body), Type::Tensor(_)));
        values[byoc_ir::ir::Id::index(main.body)][0].clone()
    }

    fn deviation(values: &[f64]) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    }

    #[test]
    fn outputs_depend_on_inputs() {
        // The detector is excluded, as its number of detections varies with the input; a backend test compares its
        // outputs.
        for (name, _) in ARCHITECTURES.iter().filter(|(name, _)| *name != "ssd_resnet50") {
            let model = build_at_scale(name, 0, 8, 64).unwrap();
            let (a, b) = (run(&model, 1).view().to_f64s(), run(&model, 2).view().to_f64s());
            let difference: Vec<f64> = a.iter().zip(&b).map(|(x, y)| x - y).collect();
            let relative_error = deviation(&difference) / deviation(&a);
            assert!(
                relative_error > 0.05 && relative_error < 20.0,
                "{name}: expected outputs to differ by 0.05 to 20 standard deviations, found {relative_error}"
            );
            let actual = deviation(&a);
            assert!(actual > 1e-3 && actual < 1e3, "{name}: expected a deviation from 1e-3 to 1e3, found {actual}");
        }
    }

    #[test]
    fn seed_determines_bytes() {
        let bytes = |seed| build_at_scale("mobilenet_v2", seed, 8, 32).unwrap().encode_to_vec();
        assert_eq!(bytes(1), bytes(1));
        assert_ne!(bytes(1), bytes(2));
    }

    #[test]
    fn parameter_counts_match_papers() {
        // Number of parameters in millions, counted as in torchvision: without the means and variances of batch
        // normalization.
        for (name, millions) in [("mobilenet_v2", 3.50), ("resnet18", 11.69), ("resnet50", 25.56)] {
            let graph = build(name, 0).unwrap().graph.unwrap();
            let is_batch_norm_statistic = |t: &str| t.ends_with(".mean") || t.ends_with(".var");
            let count: i64 = graph
                .initializer
                .iter()
                .filter(|t| !is_batch_norm_statistic(&t.name))
                .map(|t| t.dims.iter().product::<i64>())
                .sum();
            let actual = count as f64 / 1e6;
            assert!((actual - millions).abs() < 0.01, "{name}: expected {millions} million, found {actual}");
        }
    }

    #[test]
    fn rejects_unknown_name() {
        let error = build("resnet5", 0).unwrap_err();
        assert_eq!(error.code, codes::frontends::UNKNOWN_ARCHITECTURE);
        assert!(error.help.is_some());
    }
}
