//! Operators at the dimensions of ResNet-50 and BERT, each as a small module.

/// Unit of the throughput of a family.
#[derive(Clone, Copy)]
pub enum Work {
    /// Floating-point operations; a multiply-add counts as two.
    Flops(u64),
    /// Bytes read and written.
    Bytes(u64),
}

/// Operator with fixed dimensions.
pub struct Family {
    /// Name in the tables.
    pub name: &'static str,
    /// Parameters of `@main`, without the parentheses.
    pub params: &'static str,
    /// Body of `@main`.
    pub body: &'static str,
    /// Work of one call.
    pub work: Work,
}

impl Family {
    /// Returns the text of the module.
    pub fn text(&self) -> String {
        format!("#[version = \"0.0.5\"]\ndef @main({}) {{\n{}\n}}\n", self.params, self.body)
    }
}

const fn conv(out: u64, pixels: u64, taps: u64) -> Work {
    Work::Flops(2 * out * pixels * taps)
}

/// All families.
pub const FAMILIES: &[Family] = &[
    Family {
        name: "conv2d 7x7/2",
        params: "%x: Tensor[(1, 3, 224, 224), float32], %w: Tensor[(64, 3, 7, 7), float32]",
        body: "nn.conv2d(%x, %w, strides=[2, 2], padding=[3, 3, 3, 3], channels=64, kernel_size=[7, 7])",
        work: conv(64, 112 * 112, 3 * 49),
    },
    Family {
        name: "conv2d 3x3",
        params: "%x: Tensor[(1, 128, 28, 28), float32], %w: Tensor[(128, 128, 3, 3), float32]",
        body: "nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=128, kernel_size=[3, 3])",
        work: conv(128, 28 * 28, 128 * 9),
    },
    Family {
        name: "conv2d 1x1",
        params: "%x: Tensor[(1, 256, 56, 56), float32], %w: Tensor[(64, 256, 1, 1), float32]",
        body: "nn.conv2d(%x, %w, padding=[0, 0, 0, 0], channels=64, kernel_size=[1, 1])",
        work: conv(64, 56 * 56, 256),
    },
    Family {
        name: "conv2d depthwise",
        params: "%x: Tensor[(1, 144, 56, 56), float32], %w: Tensor[(144, 1, 3, 3), float32]",
        body: "nn.conv2d(%x, %w, padding=[1, 1, 1, 1], groups=144, channels=144, kernel_size=[3, 3])",
        work: conv(144, 56 * 56, 9),
    },
    Family {
        name: "dense",
        params: "%x: Tensor[(128, 768), float32], %w: Tensor[(3072, 768), float32]",
        body: "nn.dense(%x, %w, units=3072)",
        work: Work::Flops(2 * 128 * 768 * 3072),
    },
    Family {
        name: "dense, one row",
        params: "%x: Tensor[(1, 2048), float32], %w: Tensor[(1000, 2048), float32]",
        body: "nn.dense(%x, %w, units=1000)",
        work: Work::Flops(2 * 2048 * 1000),
    },
    Family {
        name: "batch_matmul",
        params: "%x: Tensor[(12, 128, 64), float32], %w: Tensor[(12, 128, 64), float32]",
        body: "nn.batch_matmul(%x, %w, transpose_b=True)",
        work: Work::Flops(2 * 12 * 128 * 128 * 64),
    },
    Family {
        name: "softmax",
        params: "%x: Tensor[(12, 128, 128), float32]",
        body: "nn.softmax(%x)",
        work: Work::Bytes(2 * 4 * 12 * 128 * 128),
    },
    Family {
        name: "layer_norm",
        params: "%x: Tensor[(1, 128, 768), float32], %g: Tensor[(768), float32], %b: Tensor[(768), float32]",
        body: "nn.layer_norm(%x, %g, %b)",
        work: Work::Bytes(2 * 4 * 128 * 768),
    },
    Family {
        name: "gelu",
        params: "%x: Tensor[(1, 128, 3072), float32]",
        body: "%0 = divide(%x, 1.41421f);\n%1 = erf(%0);\n%2 = add(%1, 1f);\n%3 = multiply(%x, %2);\nmultiply(%3, 0.5f)",
        work: Work::Bytes(2 * 4 * 128 * 3072),
    },
    Family {
        name: "add",
        params: "%x: Tensor[(1, 256, 56, 56), float32], %y: Tensor[(1, 256, 56, 56), float32]",
        body: "add(%x, %y)",
        work: Work::Bytes(3 * 4 * 256 * 56 * 56),
    },
    Family {
        name: "max_pool2d",
        params: "%x: Tensor[(1, 64, 112, 112), float32]",
        body: "nn.max_pool2d(%x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])",
        work: Work::Bytes(4 * 64 * (112 * 112 + 56 * 56)),
    },
    Family {
        name: "global_avg_pool2d",
        params: "%x: Tensor[(1, 2048, 7, 7), float32]",
        body: "nn.global_avg_pool2d(%x)",
        work: Work::Bytes(4 * 2048 * 50),
    },
    Family {
        name: "transpose",
        params: "%x: Tensor[(1, 128, 12, 64), float32]",
        body: "transpose(%x, axes=[0, 2, 1, 3])",
        work: Work::Bytes(2 * 4 * 128 * 768),
    },
    Family {
        name: "conv3d 3x3x3",
        params: "%x: Tensor[(1, 64, 8, 28, 28), float32], %w: Tensor[(64, 64, 3, 3, 3), float32]",
        body: "nn.conv3d(%x, %w, padding=[1, 1, 1, 1, 1, 1], channels=64, kernel_size=[3, 3, 3])",
        work: conv(64, 8 * 28 * 28, 64 * 27),
    },
    Family {
        name: "conv2d_transpose 2x2, stride 2",
        params: "%x: Tensor[(1, 64, 80, 80), float32], %w: Tensor[(64, 64, 2, 2), float32]",
        body: "nn.conv2d_transpose(%x, %w, strides=[2, 2], channels=64, kernel_size=[2, 2])",
        work: conv(64, 80 * 80, 64 * 4),
    },
    Family {
        name: "conv2d_transpose 2x2, stride 2, 1 channel",
        params: "%x: Tensor[(1, 24, 320, 320), float32], %w: Tensor[(24, 1, 2, 2), float32]",
        body: "nn.conv2d_transpose(%x, %w, strides=[2, 2], channels=1, kernel_size=[2, 2])",
        work: conv(24, 320 * 320, 4),
    },
    Family {
        name: "conv2d_transpose 4x4, stride 2, depthwise",
        params: "%x: Tensor[(1, 64, 80, 80), float32], %w: Tensor[(64, 1, 4, 4), float32]",
        body: "%0 = nn.conv2d_transpose(%x, %w, strides=[2, 2], padding=[1, 1, 1, 1], channels=64, kernel_size=[4, 4],\
               groups=64);\nnn.relu(%0)",
        work: conv(64, 80 * 80, 16),
    },
    Family {
        name: "max_pool3d",
        params: "%x: Tensor[(1, 64, 16, 56, 56), float32]",
        body: "nn.max_pool3d(%x, pool_size=[2, 2, 2], strides=[2, 2, 2])",
        work: Work::Bytes(4 * 64 * 16 * 56 * 56 * 9 / 8),
    },
    Family {
        name: "dense, float16",
        params: "%x: Tensor[(128, 768), float16], %w: Tensor[(3072, 768), float16]",
        body: "nn.dense(%x, %w, units=3072)",
        work: Work::Flops(2 * 128 * 768 * 3072),
    },
    Family {
        name: "topk",
        params: "%x: Tensor[(8, 32000), float32]",
        body: "let %t = topk(%x, k=50);\n%t.0",
        work: Work::Bytes(4 * 8 * 32000),
    },
    Family {
        name: "argmax over channels",
        params: "%x: Tensor[(1, 21, 256, 256), float32]",
        body: "argmax(%x, axis=[1])",
        work: Work::Bytes(4 * 22 * 256 * 256),
    },
    Family {
        name: "scatter_elements",
        params: "%x: Tensor[(200, 256, 49), float32], %i: Tensor[(100, 256, 49), int64], \
                 %u: Tensor[(100, 256, 49), float32]",
        body: "scatter_elements(%x, %i, %u)",
        work: Work::Bytes((2 * 4 * 200 + (8 + 4) * 100) * 256 * 49),
    },
    Family {
        name: "grid_sample",
        params: "%x: Tensor[(1, 64, 64, 64), float32], %g: Tensor[(1, 2, 64, 64), float32]",
        body: "image.grid_sample(%x, %g)",
        work: Work::Bytes(2 * 4 * 64 * 64 * 64),
    },
    Family {
        name: "dft",
        params: "%x: Tensor[(100, 400, 1), float32]",
        body: "signal.dft(%x, 0, 1, onesided=True)",
        work: Work::Bytes(4 * 100 * (400 + 402)),
    },
];
