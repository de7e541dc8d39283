/* Driver of a nuc_fpga device that prints each call and computes it on the processor. */
#include <stdint.h>
#include <stdio.h>

void nuc_fpga_conv2d(int8_t *feature_map, int8_t *kernel, int *out, int batch, int in_ch, int in_height, int in_width,
                     int kernel_number, int group, int pad_height, int pad_width, int kernel_height, int kernel_width,
                     int stride_height, int stride_width);
void nuc_fpga_dense(int8_t *feature, int8_t *kernel, int *out, int batch, int in_features, int out_features);

void nuc_fpga_conv2d(int8_t *feature_map, int8_t *kernel, int *out, int batch, int in_ch, int in_height, int in_width,
                     int kernel_number, int group, int pad_height, int pad_width, int kernel_height, int kernel_width,
                     int stride_height, int stride_width) {
    const int out_height = (in_height + 2 * pad_height - kernel_height) / stride_height + 1;
    const int out_width = (in_width + 2 * pad_width - kernel_width) / stride_width + 1;
    const int inputs = in_ch / group, outputs = kernel_number / group;
    printf("Calling From nuc_fpga_conv2d\n");
    for (int n = 0; n < batch; ++n)
        for (int o = 0; o < kernel_number; ++o)
            for (int y = 0; y < out_height; ++y)
                for (int x = 0; x < out_width; ++x) {
                    int sum = 0;
                    for (int i = 0; i < inputs; ++i)
                        for (int v = 0; v < kernel_height; ++v)
                            for (int u = 0; u < kernel_width; ++u) {
                                const int row = y * stride_height + v - pad_height;
                                const int column = x * stride_width + u - pad_width;
                                const int channel = o / outputs * inputs + i;
                                if (row < 0 || row >= in_height || column < 0 || column >= in_width)
                                    continue;
                                sum += feature_map[((n * in_ch + channel) * in_height + row) * in_width + column]
                                    * kernel[((o * inputs + i) * kernel_height + v) * kernel_width + u];
                            }
                    out[((n * kernel_number + o) * out_height + y) * out_width + x] = sum;
                }
}

void nuc_fpga_dense(int8_t *feature, int8_t *kernel, int *out, int batch, int in_features, int out_features) {
    printf("Calling From nuc_fpga_dense\n");
    for (int n = 0; n < batch; ++n)
        for (int o = 0; o < out_features; ++o) {
            int sum = 0;
            for (int i = 0; i < in_features; ++i)
                sum += feature[n * in_features + i] * kernel[o * in_features + i];
            out[n * out_features + o] = sum;
        }
}
