/* int8 convolutions of a quantized model: prints each call, and computes it. The weights are OIHW or OHWI. */
#include "nuc_fpga_conv2d.h"
#include <stdio.h>
#include <string.h>

static const byoc_attribute *attribute(const byoc_call *call, const char *name) {
    for (int32_t i = 0; i < call->attribute_count; ++i)
        if (strcmp(call->attributes[i].name, name) == 0)
            return &call->attributes[i];
    return 0;
}

static int64_t integer(const byoc_call *call, const char *name, int at) {
    return attribute(call, name)->integers[at];
}

/* Strides of the axes O, I, H and W of the weights in this layout. */
static void strides_of(const char *layout, const int32_t *shape, int64_t *strides) {
    int64_t step = 1;
    for (int axis = 3; axis >= 0; --axis) {
        strides[strchr("OIHW", layout[axis]) - "OIHW"] = step;
        step *= shape[axis];
    }
}

void nuc_fpga_conv2d(const byoc_call *call) {
    const char *layout = attribute(call, "kernel_layout")->text;
    const int32_t *in = call->inputs[0].shape, *out = call->outputs[0].shape, *shape = call->inputs[1].shape;
    const int8_t *data = call->inputs[0].data, *weights = call->inputs[1].data;
    const int32_t zero = *(const int32_t *)call->inputs[2].data;
    const int64_t groups = integer(call, "groups", 0);
    const int64_t channels = in[1] / groups, of_group = out[1] / groups;
    const int32_t rows = shape[strchr(layout, 'H') - layout], columns = shape[strchr(layout, 'W') - layout];
    int32_t *sums = call->outputs[0].data;
    int64_t strides[4];
    strides_of(layout, shape, strides);
    printf("Calling From nuc_fpga_conv2d\n");
    for (int32_t n = 0; n < out[0]; ++n)
        for (int32_t o = 0; o < out[1]; ++o)
            for (int32_t y = 0; y < out[2]; ++y)
                for (int32_t x = 0; x < out[3]; ++x) {
                    int32_t sum = 0;
                    for (int64_t i = 0; i < channels; ++i)
                        for (int32_t v = 0; v < rows; ++v)
                            for (int32_t u = 0; u < columns; ++u) {
                                const int64_t row = y * integer(call, "strides", 0) - integer(call, "padding", 0) +
                                                    v * integer(call, "dilation", 0);
                                const int64_t column = x * integer(call, "strides", 1) - integer(call, "padding", 1) +
                                                       u * integer(call, "dilation", 1);
                                const int64_t channel = o / of_group * channels + i;
                                if (row < 0 || row >= in[2] || column < 0 || column >= in[3])
                                    continue;
                                sum += (data[((n * in[1] + channel) * in[2] + row) * in[3] + column] - zero) *
                                       weights[o * strides[0] + i * strides[1] + v * strides[2] + u * strides[3]];
                            }
                    *sums++ = sum;
                }
}
