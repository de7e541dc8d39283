/* Convolutions of one image and one group, with weights as OHWI: prints each call, and computes it. */
#include "my_conv2d.h"
#include <stdio.h>
#include <string.h>

static int64_t integer(const byoc_call *call, const char *name, int at) {
    for (int32_t i = 0; i < call->attribute_count; ++i)
        if (strcmp(call->attributes[i].name, name) == 0)
            return call->attributes[i].integers[at];
    return 0;
}

void my_conv2d(const byoc_call *call) {
    const int32_t *in = call->inputs[0].shape, *kernel = call->inputs[1].shape, *out = call->outputs[0].shape;
    const float *data = call->inputs[0].data, *weights = call->inputs[1].data;
    float *result = call->outputs[0].data;
    printf("Calling my_conv2d for %s\n", call->node);
    for (int32_t o = 0; o < out[1]; ++o)
        for (int32_t y = 0; y < out[2]; ++y)
            for (int32_t x = 0; x < out[3]; ++x) {
                float sum = 0.0f;
                for (int32_t i = 0; i < in[1]; ++i)
                    for (int32_t v = 0; v < kernel[1]; ++v)
                        for (int32_t u = 0; u < kernel[2]; ++u) {
                            const int64_t row = y * integer(call, "strides", 0) - integer(call, "padding", 0) + v;
                            const int64_t column = x * integer(call, "strides", 1) - integer(call, "padding", 1) + u;
                            if (row < 0 || row >= in[2] || column < 0 || column >= in[3])
                                continue;
                            sum += data[(i * in[2] + row) * in[3] + column] *
                                   weights[((o * kernel[1] + v) * kernel[2] + u) * kernel[3] + i];
                        }
                *result++ = sum;
            }
}
