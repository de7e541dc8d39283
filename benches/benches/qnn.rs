//! Benches of the host's quantized kernels and their float32 counterparts on the layers of ResNet-50, on one thread and
//! on two threads: convolutions with `int32` output, convolutions fused with bias, requantization and clipping, float
//! convolutions, matrix products, and the operators between them. Throughput counts operations; a multiply-add counts
//! as two.

use byoc_ir::ir::{AttrValue, Attrs, TensorType};
use byoc_ir::op;
use byoc_ir::tensor::{AlignedBytes, DType, Tensor, TensorView, TensorViewMut};
use byoc_kernels::{self, Kernel, Spec};
use byoc_test_support::random::Random;
use criterion::{BenchmarkId, Criterion, Throughput};

/// Convolution layers: name, input channels, output channels, feature map width, kernel size, stride.
const LAYERS: [(&str, usize, usize, usize, usize, usize); 7] = [
    ("stem 7x7/2", 3, 64, 224, 7, 2),
    ("1x1 56", 64, 256, 56, 1, 1),
    ("3x3 56", 64, 64, 56, 3, 1),
    ("3x3 28", 128, 128, 28, 3, 1),
    ("3x3 14", 256, 256, 14, 3, 1),
    ("1x1 14", 1024, 256, 14, 1, 1),
    ("3x3 7", 512, 512, 7, 3, 1),
];

/// Returns a tensor of pseudorandom elements; floats are in [-1, 1).
fn random_tensor(dtype: DType, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let mut random = Random::new(1);
    match dtype {
        DType::F32 => Tensor::from_slice(shape, &random.floats(count)),
        DType::I32 => {
            Tensor::from_slice(shape, &(0..count).map(|_| random.between(-8000, 8000) as i32).collect::<Vec<_>>())
        }
        _ => {
            let bytes: Vec<u8> = (0..count).map(|_| random.bits() as u8).collect();
            Tensor::from_bytes(dtype, shape, &bytes).expect("expected one byte per element")
        }
    }
}

/// Kernel of a call, with the call's arguments.
struct PreparedCall {
    kernel: Box<dyn Kernel>,
    args: Vec<Tensor>,
    dtype: DType,
    shape: Vec<usize>,
    operations: u64,
}

/// Creates the kernel of a call in which all inputs but the first are constants.
fn prepare(name: &str, attrs: Attrs, args: Vec<Tensor>) -> PreparedCall {
    let id = op::lookup(name).expect("expected a known operator");
    let def = op::get(id);
    let attrs = op::normalize_attrs(def, attrs).expect("expected valid attributes");
    let types: Vec<TensorType> = args.iter().map(|t| TensorType::fixed(t.dtype(), t.shape())).collect();
    let type_of = |t: &TensorType| byoc_ir::ir::Type::Tensor(std::sync::Arc::new(t.clone()));
    let arg_types: Vec<_> = types.iter().map(type_of).collect();
    let values: Vec<Option<&Tensor>> = args.iter().enumerate().map(|(i, t)| (i > 0).then_some(t)).collect();
    let ty = def.infer(&attrs, &arg_types, &values).expect("expected a well-typed call");
    let out = ty.as_tensor().expect("expected a tensor").clone();
    let cost = op::Cost { params: op::Params::new(def, &attrs), args: &arg_types, ret: &ty };
    let operations = (def.flops)(&cost);
    let spec = Spec { def, attrs: &attrs, inputs: &types, outputs: std::slice::from_ref(&out), constants: &values };
    let kernel = byoc_kernels::make(id, &spec).expect("expected a host kernel");
    let shape = out.shape().expect("expected a known shape").to_vec();
    PreparedCall { kernel, dtype: out.dtype, shape, operations, args }
}

fn bench(criterion: &mut Criterion, group: &str, cases: Vec<(String, PreparedCall)>) {
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("cannot start threads");
        let mut group = criterion.benchmark_group(format!("{group}, {threads} threads"));
        for (name, prepared) in &cases {
            let views: Vec<TensorView<'_>> = prepared.args.iter().map(Tensor::view).collect();
            let mut workspace = AlignedBytes::zeroed(prepared.kernel.workspace()).unwrap();
            let mut out =
                AlignedBytes::zeroed(prepared.shape.iter().product::<usize>() * prepared.dtype.size()).unwrap();
            group.throughput(Throughput::Elements(prepared.operations));
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                pool.install(|| {
                    b.iter(|| {
                        let out = TensorViewMut { dtype: prepared.dtype, shape: &prepared.shape, data: out.as_mut() };
                        prepared.kernel.run(&views, &mut [out], workspace.as_mut()).expect("the run failed");
                    });
                });
            });
        }
        group.finish();
    }
}

fn bench_convolutions(criterion: &mut Criterion) {
    for (name, inputs, outputs, size, taps, stride) in LAYERS {
        let (x, w) = ([1, inputs, size, size], [outputs, inputs, taps, taps]);
        let pad = (taps / 2) as i64;
        let attrs = || {
            Attrs::new([
                ("strides", AttrValue::from([stride as i64, stride as i64])),
                ("padding", AttrValue::from([pad, pad])),
            ])
        };
        let (zero, scale) = (|v: i32| Tensor::scalar(v), |v: f32| Tensor::scalar(v));
        let (data, weight) = (random_tensor(DType::U8, &x), random_tensor(DType::I8, &w));
        let dense_args = vec![data.clone(), weight.clone(), zero(128), zero(0), scale(0.5), scale(0.5)];
        let ratios = Tensor::from_slice(&[outputs], &vec![0.001f32; outputs]);
        let bias = random_tensor(DType::I32, &[outputs]);
        let fused_args = vec![data, weight, bias, zero(128), zero(0), ratios, scale(1.0), zero(128)];
        let fused_attrs = attrs().with("out_dtype", "uint8");
        let cases = vec![
            (
                "float32".to_owned(),
                prepare("nn.conv2d", attrs(), vec![random_tensor(DType::F32, &x), random_tensor(DType::F32, &w)]),
            ),
            ("int8 into int32".to_owned(), prepare("qnn.conv2d", attrs(), dense_args)),
            (
                "int8, fixed point".to_owned(),
                prepare("qnn.contrib_conv2d_requantize", fused_attrs.clone(), fused_args.clone()),
            ),
            (
                "int8, float32 ratio".to_owned(),
                prepare("qnn.contrib_conv2d_requantize", fused_attrs.with("compute_dtype", "float32"), fused_args),
            ),
        ];
        bench(criterion, name, cases);
    }
}

fn bench_other_operators(criterion: &mut Criterion) {
    let scalars = || [Tensor::scalar(0.5f32), Tensor::scalar(3i32)];
    let [s, z] = scalars();
    let shape = [1, 256, 56, 56];
    let bytes = || random_tensor(DType::I8, &shape);
    let random_input = || random_tensor(DType::F32, &shape);
    let cases = vec![
        ("add, float32".to_owned(), prepare("add", Attrs::none(), vec![random_input(), random_input()])),
        (
            "qnn.add".to_owned(),
            prepare(
                "qnn.add",
                Attrs::none(),
                vec![bytes(), bytes(), s.clone(), z.clone(), Tensor::scalar(0.3f32), z.clone(), s.clone(), z.clone()],
            ),
        ),
        ("qnn.quantize".to_owned(), prepare("qnn.quantize", Attrs::none(), vec![random_input(), s.clone(), z.clone()])),
        ("qnn.dequantize".to_owned(), prepare("qnn.dequantize", Attrs::none(), vec![bytes(), s.clone(), z.clone()])),
        (
            "qnn.requantize from int32".to_owned(),
            prepare(
                "qnn.requantize",
                Attrs::none(),
                vec![
                    random_tensor(DType::I32, &shape),
                    s.clone(),
                    Tensor::scalar(0i32),
                    Tensor::scalar(30f32),
                    z.clone(),
                ],
            ),
        ),
        ("qnn.sigmoid".to_owned(), prepare("qnn.sigmoid", Attrs::none(), vec![bytes(), s.clone(), z.clone(), s, z])),
    ];
    bench(criterion, "elementwise 256x56x56", cases);
    let zero = Tensor::scalar(0i32);
    let unit = Tensor::scalar(1f32);
    let dense = |m: usize| {
        let (x, w) = ([m, 2048], [1000, 2048]);
        let sums = [
            random_tensor(DType::U8, &x),
            random_tensor(DType::I8, &w),
            zero.clone(),
            zero.clone(),
            unit.clone(),
            unit.clone(),
        ];
        vec![
            (
                format!("float32, {m} rows"),
                prepare("nn.dense", Attrs::none(), vec![random_tensor(DType::F32, &x), random_tensor(DType::F32, &w)]),
            ),
            (format!("int8, {m} rows"), prepare("qnn.dense", Attrs::none(), sums.to_vec())),
        ]
    };
    bench(criterion, "dense 2048 to 1000", [dense(1), dense(64)].into_iter().flatten().collect());
}

fn main() {
    let mut criterion = byoc_benches::criterion();
    bench_convolutions(&mut criterion);
    bench_other_operators(&mut criterion);
    criterion.final_summary();
}
