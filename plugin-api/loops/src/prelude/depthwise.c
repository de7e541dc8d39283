#ifndef BYOC_DEPTHWISE
#define BYOC_DEPTHWISE
/*
 * t[r * n + c] = sum over i < n0, j < n1 of a[r * pixel + i * s0 + j * s1 + c] * b[i * d0 + j * d1 + c] for `pixels`
 * pixels and n channels, a multiple of the vectors.
 */
static BYOC_INLINE void byoc_vector_depthwise(const int pixels, const int n, const int64_t pixel, const int64_t n0,
                                              const int64_t s0, const int64_t d0, const int64_t n1, const int64_t s1,
                                              const int64_t d1, const float *BYOC_RESTRICT a, const float *BYOC_RESTRICT b,
                                              float *BYOC_RESTRICT t) {
    byoc_vector sum[8][2];
    const int nv = n / BYOC_VL;
    BYOC_UNROLL
    for (int r = 0; r < pixels; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            sum[r][v] = (byoc_vector){0};
    }
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j) {
            const float *x = a + (i * s0 + j * s1);
            const float *w = b + (i * d0 + j * d1);
            BYOC_UNROLL
            for (int v = 0; v < nv; ++v) {
                const byoc_vector weight = *(const byoc_vector *)(w + v * BYOC_VL);
                BYOC_UNROLL
                for (int r = 0; r < pixels; ++r)
                    sum[r][v] += *(const byoc_vector *)(x + r * pixel + v * BYOC_VL) * weight;
            }
        }
    BYOC_UNROLL
    for (int r = 0; r < pixels; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            *(byoc_vector *)(t + r * n + v * BYOC_VL) = sum[r][v];
    }
}
#endif
