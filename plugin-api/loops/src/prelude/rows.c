#ifndef BYOC_ROWS
#define BYOC_ROWS
/* Reductions of a row in 32 lanes, which are combined at the end. The maximum and the minimum propagate NaN. */
#define BYOC_ROW(name, start, join)                                                                                     \
    static inline float name(const float *BYOC_RESTRICT x, int64_t n) {                                                      \
        float lanes[32];                                                                                                \
        for (int l = 0; l < 32; ++l)                                                                                    \
            lanes[l] = start;                                                                                           \
        int64_t i = 0;                                                                                                  \
        for (; i + 32 <= n; i += 32)                                                                                    \
            for (int l = 0; l < 32; ++l) {                                                                              \
                const float a = lanes[l], b = x[i + l];                                                                 \
                lanes[l] = join;                                                                                        \
            }                                                                                                           \
        for (; i < n; ++i) {                                                                                            \
            const float a = lanes[i % 32], b = x[i];                                                                    \
            lanes[i % 32] = join;                                                                                       \
        }                                                                                                               \
        float result = start;                                                                                           \
        for (int l = 0; l < 32; ++l) {                                                                                  \
            const float a = result, b = lanes[l];                                                                       \
            result = join;                                                                                              \
        }                                                                                                               \
        return result;                                                                                                  \
    }
BYOC_ROW(byoc_row_sum, 0.0f, a + b)
BYOC_ROW(byoc_row_prod, 1.0f, a *b)
BYOC_ROW(byoc_row_max, -INFINITY, a != a || a > b ? a : b)
BYOC_ROW(byoc_row_min, INFINITY, a != a || a < b ? a : b)

/* t = (x - mean) / sqrt(variance + epsilon) */
static inline void byoc_layer_norm(float *BYOC_RESTRICT t, const float *BYOC_RESTRICT x, int64_t n, float epsilon) {
    const float mean = byoc_row_sum(x, n) / (float)n;
    for (int64_t i = 0; i < n; ++i)
        t[i] = (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / sqrtf(byoc_row_sum(t, n) / (float)n + epsilon);
    for (int64_t i = 0; i < n; ++i)
        t[i] = (x[i] - mean) * scale;
}
#endif
