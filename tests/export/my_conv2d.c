#include "my_conv2d.h"
#include <stdio.h>
#include <string.h>
static int64_t attr(const byoc_call *c, const char *name, int i) { for (int32_t k = 0; k < c->attribute_count; ++k) if (!strcmp(c->attributes[k].name, name)) return c->attributes[k].integers[i]; return 0; }
void my_conv2d(const byoc_call *c) {
    const int32_t *x = c->inputs[0].shape, *w = c->inputs[1].shape, *y = c->outputs[0].shape;
    const float *in = c->inputs[0].data, *k = c->inputs[1].data; float *out = c->outputs[0].data;
    printf("Calling my_conv2d for %s\n", c->node);
    for (int o = 0; o < y[1]; ++o) for (int r = 0; r < y[2]; ++r) for (int q = 0; q < y[3]; ++q) { float s = 0;
      for (int i = 0; i < x[1]; ++i) for (int a = 0; a < w[1]; ++a) for (int b = 0; b < w[2]; ++b) {
        int64_t h = r * attr(c,"strides",0) - attr(c,"padding",0) + a, v = q * attr(c,"strides",1) - attr(c,"padding",1) + b;
        if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) continue;
        s += in[(i * x[2] + h) * x[3] + v] * k[((o * w[1] + a) * w[2] + b) * w[3] + i]; }
      out[(o * y[2] + r) * y[3] + q] = s; }
}
