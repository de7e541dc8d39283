#ifndef BYOC_TILE
#define BYOC_TILE
/*
 * t[r * ldt + c] = sum over i < n0, j < n1, k < n2 of a[r * row + i * s0 + j * s1 + k * s2] * b[...], for mr rows and nv
 * vectors of columns. b is a panel: nv vectors for each (i, j, k) in turn. The sums are kept in registers.
 */
static BYOC_INLINE void byoc_tile(const int mr, const int nv, const int ldt, const int64_t row, const int64_t n0,
                                  const int64_t s0, const int64_t n1, const int64_t s1, const int64_t n2,
                                  const int64_t s2, const float *BYOC_RESTRICT a, const float *BYOC_RESTRICT b,
                                  float *BYOC_RESTRICT t) {
    byoc_vector sum[16][8];
    BYOC_UNROLL
    for (int r = 0; r < mr; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            sum[r][v] = (byoc_vector){0};
    }
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j) {
            const float *x = a + i * s0 + j * s1;
            for (int64_t k = 0; k < n2; ++k) {
                byoc_vector w[8];
                BYOC_UNROLL
                for (int v = 0; v < nv; ++v)
                    w[v] = *(const byoc_vector *)(b + v * BYOC_VL);
                BYOC_UNROLL
                for (int r = 0; r < mr; ++r) {
                    BYOC_UNROLL
                    for (int v = 0; v < nv; ++v)
                        sum[r][v] += x[r * row] * w[v];
                }
                b += nv * BYOC_VL;
                x += s2;
            }
        }
    BYOC_UNROLL
    for (int r = 0; r < mr; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            *(byoc_vector *)(t + r * ldt + v * BYOC_VL) = sum[r][v];
    }
}
#endif
