//! Image classification networks. Each maps `image` (1, 3, size, size) to 1000 logits.

use super::measure::call;
use super::net::{Attr, Net, Value};
use byoc::frontend::onnx::proto::ModelProto;
use byoc_ir::ir::{AttrValue, Attrs};
use byoc_ir::tensor::DType;

/// Number of images in the sample: enough for meaningful statistics in the last layers.
const SAMPLE: usize = 4;
/// Height and width of the images in the sample; the statistics are nearly independent of them.
const SAMPLE_SIZE: usize = 64;
const CLASSES: usize = 1000;

fn image(net: &mut Net, size: usize) -> Value {
    image_with_sample(net, size, SAMPLE_SIZE)
}

/// Adds the input `image`, with a sample whose images may differ in size from the input.
fn image_with_sample(net: &mut Net, size: usize, sample_size: usize) -> Value {
    net.input("image", DType::F32, &[1, 3, size, size]);
    let sample = net.noise(&[SAMPLE, 3, sample_size, sample_size]);
    Value { name: "image".into(), sample }
}

fn classify(mut net: Net, features: &Value) -> ModelProto {
    let mean = net.global_mean(features);
    let logits = net.dense(&mean, CLASSES);
    net.finish(&logits.name, &[1, CLASSES])
}

fn stem(net: &mut Net, divide: usize, size: usize) -> Value {
    stem_with_sample(net, divide, size, SAMPLE_SIZE)
}

/// Adds the first layers of a ResNet, for images of size `size` and a sample of size `sample_size`.
pub fn stem_with_sample(net: &mut Net, divide: usize, size: usize, sample_size: usize) -> Value {
    let x = image_with_sample(net, size, sample_size);
    let x = net.conv_bn(&x, 64 / divide, 7, 2, 1);
    let x = net.relu(&x);
    net.max_pool(&x, 3, 2, 1)
}

/// Builds ResNet-18 (He, Zhang, Ren, Sun: Deep residual learning for image recognition, 2015, table 1).
pub fn resnet18(mut net: Net, divide: usize, size: usize) -> ModelProto {
    let mut x = stem(&mut net, divide, size);
    for stage in 0..4 {
        let width = (64 << stage) / divide;
        for block in 0..2 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let y = net.conv_bn(&x, width, 3, stride, 1);
            let y = net.relu(&y);
            let y = net.conv_bn(&y, width, 3, 1, 1);
            let shortcut = if stride == 2 { net.conv_bn(&x, width, 1, 2, 1) } else { x };
            let sum = net.add(&y, &shortcut);
            x = net.relu(&sum);
        }
    }
    classify(net, &x)
}

/// Builds ResNet-50, from the paper of [`resnet18`]. A bottleneck block has its stride in the 3 x 3 convolution, as in
/// torchvision.
pub fn resnet50(mut net: Net, divide: usize, size: usize) -> ModelProto {
    let x = stem(&mut net, divide, size);
    let x = bottlenecks(&mut net, x, divide, &[(3, 1), (4, 2), (6, 2), (3, 2)]);
    classify(net, &x)
}

/// Adds the stages of ResNet-50, each given by its number of blocks and the stride of its first block.
pub fn bottlenecks(net: &mut Net, mut x: Value, divide: usize, stages: &[(usize, usize)]) -> Value {
    for (stage, &(blocks, first_stride)) in stages.iter().enumerate() {
        let width = (64 << stage) / divide;
        for block in 0..blocks {
            let stride = if block == 0 { first_stride } else { 1 };
            let y = net.conv_bn(&x, width, 1, 1, 1);
            let y = net.relu(&y);
            let y = net.conv_bn(&y, width, 3, stride, 1);
            let y = net.relu(&y);
            let y = net.conv_bn(&y, 4 * width, 1, 1, 1);
            let shortcut = if block == 0 { net.conv_bn(&x, 4 * width, 1, stride, 1) } else { x };
            let sum = net.add(&y, &shortcut);
            x = net.relu(&sum);
        }
    }
    x
}

/// Builds MobileNetV2 (Sandler et al.: MobileNetV2, inverted residuals and linear bottlenecks, 2018, table 2).
pub fn mobilenet_v2(mut net: Net, divide: usize, size: usize) -> ModelProto {
    let x = image(&mut net, size);
    let x = net.conv_bn(&x, 32 / divide, 3, 2, 1);
    let mut x = net.relu6(&x);
    // Expansion factor, channels, repetitions, stride of the first repetition.
    let table =
        [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)];
    for (expansion, channels, repetitions, first_stride) in table {
        for repetition in 0..repetitions {
            let stride = if repetition == 0 { first_stride } else { 1 };
            let (inputs, outputs) = (x.sample.shape()[1], channels / divide);
            let expanded_channels = inputs * expansion;
            let mut y = x.clone();
            if expansion > 1 {
                y = net.conv_bn(&y, expanded_channels, 1, 1, 1);
                y = net.relu6(&y);
            }
            y = net.conv_bn(&y, expanded_channels, 3, stride, expanded_channels);
            y = net.relu6(&y);
            y = net.conv_bn(&y, outputs, 1, 1, 1);
            x = if stride == 1 && inputs == outputs { net.add(&x, &y) } else { y };
        }
    }
    let x = net.conv_bn(&x, 1280 / divide, 1, 1, 1);
    let x = net.relu6(&x);
    classify(net, &x)
}

/// Builds VGG-16 (Simonyan and Zisserman: Very deep convolutional networks, 2014, configuration D).
pub fn vgg16(mut net: Net, divide: usize, size: usize) -> ModelProto {
    let mut x = image(&mut net, size);
    for (convolutions, channels) in [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)] {
        for _ in 0..convolutions {
            let y = net.conv_fitted(&x, channels / divide, 3);
            x = net.relu(&y);
        }
        x = net.max_pool(&x, 2, 2, 0);
    }
    // The sample is smaller than the images, so its feature map is resized to the input size of the dense layers.
    let side = (size / 32) as i64;
    let resize_attrs = Attrs::new([("output_size", AttrValue::from([side, side]))]);
    let sample = call("nn.adaptive_avg_pool2d", resize_attrs, &[&x.sample]);
    let sample = call("nn.batch_flatten", Attrs::none(), &[&sample]);
    let name = net.node("Flatten", &[&x.name], &[("axis", Attr::Int(1))]);
    let mut x = Value { name, sample };
    for _ in 0..2 {
        let y = net.dense(&x, 4096 / divide);
        x = net.relu(&y);
    }
    let logits = net.dense(&x, CLASSES);
    net.finish(&logits.name, &[1, CLASSES])
}
