/*
 * Driver that computes on the CPU and logs each call: a starting point for a hardware driver.
 *
 *   cc -std=c11 -O2 -shared -fPIC -I../include -o libdriver.so driver.c
 *   NUC_FPGA_DRIVER=./libdriver.so byoc run MODEL --backend nuc_fpga
 */
#include "nuc_fpga.h"

#include <stddef.h>
#include <stdio.h>

/* Logs to standard error, because standard output belongs to the program that loads the driver. */
static void say(const char* function) {
    fprintf(stderr, "Calling From %s\n", function);
}

void nuc_fpga_conv2d(int8_t* feature_map, int8_t* kernel, int* out,
                     int batch, int in_ch, int in_height, int in_width, int kernel_number, int group,
                     int pad_height, int pad_width, int kernel_height, int kernel_width,
                     int stride_height, int stride_width) {
    say("nuc_fpga_conv2d");
    const int out_height = (in_height + 2 * pad_height - kernel_height) / stride_height + 1;
    const int out_width = (in_width + 2 * pad_width - kernel_width) / stride_width + 1;
    const int channels = in_ch / group;
    for (int n = 0; n < batch; ++n) {
        for (int o = 0; o < kernel_number; ++o) {
            const int first = o / (kernel_number / group) * channels;
            for (int y = 0; y < out_height; ++y) {
                for (int x = 0; x < out_width; ++x) {
                    int sum = 0;
                    for (int i = 0; i < channels; ++i) {
                        for (int v = 0; v < kernel_height; ++v) {
                            const int row = y * stride_height + v - pad_height;
                            if (row < 0 || row >= in_height) {
                                continue;
                            }
                            for (int u = 0; u < kernel_width; ++u) {
                                const int column = x * stride_width + u - pad_width;
                                if (column < 0 || column >= in_width) {
                                    continue;
                                }
                                const size_t at = (((size_t)n * in_ch + first + i) * in_height + row) * in_width + column;
                                const size_t tap = (((size_t)o * channels + i) * kernel_height + v) * kernel_width + u;
                                sum += feature_map[at] * kernel[tap];
                            }
                        }
                    }
                    out[(((size_t)n * kernel_number + o) * out_height + y) * out_width + x] = sum;
                }
            }
        }
    }
}

void nuc_fpga_dense(int8_t* feature, int8_t* kernel, int* out, int batch, int in_features, int out_features) {
    say("nuc_fpga_dense");
    for (int n = 0; n < batch; ++n) {
        for (int o = 0; o < out_features; ++o) {
            int sum = 0;
            for (int i = 0; i < in_features; ++i) {
                sum += feature[(size_t)n * in_features + i] * kernel[(size_t)o * in_features + i];
            }
            out[(size_t)n * out_features + o] = sum;
        }
    }
}
