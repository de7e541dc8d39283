#ifndef BYOC_BORDER
#define BYOC_BORDER
/* Zeros the first `before` and the last `after` floats of each of `n` runs of `size` floats. */
static inline void byoc_zero_border(float *p, int64_t n, int64_t size, int64_t before, int64_t after) {
    for (int64_t i = 0; i < n; ++i) {
        memset(p + i * size, 0, (size_t)before * sizeof(float));
        memset(p + (i + 1) * size - after, 0, (size_t)after * sizeof(float));
    }
}
#endif
