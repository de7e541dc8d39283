#ifndef BYOC_SOFTMAX
#define BYOC_SOFTMAX
/* t = e^(x - max) / sum */
static inline void byoc_softmax(float *BYOC_RESTRICT t, const float *BYOC_RESTRICT x, int64_t n) {
    const float most = byoc_row_max(x, n);
    for (int64_t i = 0; i < n; ++i)
        t[i] = byoc_exp(x[i] - most);
    const float scale = 1.0f / byoc_row_sum(t, n);
    for (int64_t i = 0; i < n; ++i)
        t[i] *= scale;
}

/* t = x - max - ln(sum of e^(x - max)), in this order: max is often the largest term, and a small logarithm added to it
 * would be lost. */
static inline void byoc_log_softmax(float *BYOC_RESTRICT t, const float *BYOC_RESTRICT x, int64_t n) {
    const float most = byoc_row_max(x, n);
    for (int64_t i = 0; i < n; ++i)
        t[i] = byoc_exp(x[i] - most);
    const float shift = logf(byoc_row_sum(t, n));
    for (int64_t i = 0; i < n; ++i)
        t[i] = x[i] - most - shift;
}
#endif
