#include "vendor_conv2d.h"

#include <cstdio>

extern "C" void vendor_conv2d(const int8_t *feature_map, const int8_t *kernel, int32_t *out, int batch, int in_ch,
                              int in_height, int in_width, int kernel_number, int group, int pad_height, int pad_width,
                              int kernel_height, int kernel_width, int stride_height, int stride_width) {
    // Logs to standard error, because standard output belongs to the program that runs the model.
    std::fprintf(stderr, "Calling From vendor_conv2d: %dx%dx%dx%d, %d kernels of %dx%d\n", batch, in_ch, in_height,
                 in_width, kernel_number, kernel_height, kernel_width);
    const int out_height = (in_height + 2 * pad_height - kernel_height) / stride_height + 1;
    const int out_width = (in_width + 2 * pad_width - kernel_width) / stride_width + 1;
    const int channels = in_ch / group, kernels = kernel_number / group;
    for (int n = 0; n < batch; n++) {
        for (int k = 0; k < kernel_number; k++) {
            const int first = k / kernels * channels;
            for (int y = 0; y < out_height; y++) {
                for (int x = 0; x < out_width; x++) {
                    int64_t sum = 0;
                    for (int c = 0; c < channels; c++) {
                        for (int i = 0; i < kernel_height; i++) {
                            const int row = y * stride_height + i - pad_height;
                            if (row < 0 || row >= in_height) continue;
                            for (int j = 0; j < kernel_width; j++) {
                                const int column = x * stride_width + j - pad_width;
                                if (column < 0 || column >= in_width) continue;
                                const int64_t from = ((int64_t(n) * in_ch + first + c) * in_height + row) * in_width + column;
                                const int64_t tap = ((int64_t(k) * channels + c) * kernel_height + i) * kernel_width + j;
                                sum += int64_t(feature_map[from]) * kernel[tap];
                            }
                        }
                    }
                    out[((int64_t(n) * kernel_number + k) * out_height + y) * out_width + x] = int32_t(sum);
                }
            }
        }
    }
}
