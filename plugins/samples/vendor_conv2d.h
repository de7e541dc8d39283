/* Third-party function, such as one of a device driver or a vendor library. */
#ifndef VENDOR_CONV2D_H
#define VENDOR_CONV2D_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Computes a convolution: `out` is batch x kernel_number x H x W int32, `feature_map` NCHW, `kernel` OIHW. The padding is
 * the same before and after. */
void vendor_conv2d(const int8_t *feature_map, const int8_t *kernel, int32_t *out, int batch, int in_ch, int in_height,
                   int in_width, int kernel_number, int group, int pad_height, int pad_width, int kernel_height,
                   int kernel_width, int stride_height, int stride_width);

#ifdef __cplusplus
}
#endif

#endif
