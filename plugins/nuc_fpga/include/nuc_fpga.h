/*
 * Driver interface of a nuc_fpga device: two functions that a shared library exports with C linkage.
 *
 * byoc's backend nuc_fpga calls the library named by the environment variable NUC_FPGA_DRIVER; the C code printed by
 * "byoc source MODEL --backend nuc_fpga" calls the same two functions. A call returns when its result is complete. The
 * backend makes one call at a time. Tensors are dense and row-major; the device reads `feature_map`, `feature` and
 * `kernel` and writes every element of `out`. Sums are exact: the backend refuses layers with more than 131071 terms
 * per sum, so that sums fit into 32 bits.
 */
#ifndef NUC_FPGA_H
#define NUC_FPGA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * 2-d convolution (cross-correlation) from int8 to int32, with the same zero padding on both sides:
 *
 *   out[n][o][y][x] = sum over i < in_ch / group, v < kernel_height, u < kernel_width of
 *                     feature_map[n][g * (in_ch / group) + i][y * stride_height + v - pad_height]
 *                                                            [x * stride_width + u - pad_width]
 *                     * kernel[o][i][v][u]          with g = o / (kernel_number / group)
 *
 *   feature_map  [batch][in_ch][in_height][in_width]
 *   kernel       [kernel_number][in_ch / group][kernel_height][kernel_width]
 *   out          [batch][kernel_number][out_height][out_width]
 *                out_height = (in_height + 2 * pad_height - kernel_height) / stride_height + 1, likewise out_width
 */
void nuc_fpga_conv2d(int8_t* feature_map, int8_t* kernel, int* out,
                     int batch, int in_ch, int in_height, int in_width, int kernel_number, int group,
                     int pad_height, int pad_width, int kernel_height, int kernel_width,
                     int stride_height, int stride_width);

/*
 * Fully connected layer from int8 to int32:
 *
 *   out[n][o] = sum over i < in_features of feature[n][i] * kernel[o][i]
 *
 *   feature  [batch][in_features]
 *   kernel   [out_features][in_features]
 *   out      [batch][out_features]
 */
void nuc_fpga_dense(int8_t* feature, int8_t* kernel, int* out, int batch, int in_features, int out_features);

#ifdef __cplusplus
}
#endif

#endif
