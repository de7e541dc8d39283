/*
 * t[r * nr + c] = sum over i < n0, j < n1, k < n2 of a[r * row + i * s0 + j * s1 + k * s2] * b[i * d0 + j * d1 + k * d2 + c],
 * for mr rows and nr columns.
 */
static inline void BYOC_PLAIN_TILE(const int mr, const int nr, const int64_t row, const int64_t n0, const int64_t s0,
                             const int64_t d0, const int64_t n1, const int64_t s1, const int64_t d1, const int64_t n2,
                             const int64_t s2, const int64_t d2, BYOC_ZERO const BYOC_A *a, const BYOC_B *b, BYOC_SUM *t) {
    for (int i = 0; i < mr * nr; ++i)
        t[i] = 0;
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j) {
            const BYOC_A *x = a + (i * s0 + j * s1);
            const BYOC_B *w = b + (i * d0 + j * d1);
            for (int64_t k = 0; k < n2; ++k) {
                for (int r = 0; r < mr; ++r) {
                    const BYOC_SUM v = BYOC_LOAD(x[r * row]);
                    for (int c = 0; c < nr; ++c)
                        t[r * nr + c] += v * BYOC_WEIGHT(w[c]);
                }
                x += s2;
                w += d2;
            }
        }
}

/* The same for columns that are `column` elements of b apart. */
static inline void BYOC_STRIDED_TILE(const int mr, const int nr, const int64_t row, const int64_t n0, const int64_t s0,
                                     const int64_t d0, const int64_t n1, const int64_t s1, const int64_t d1,
                                     const int64_t n2, const int64_t s2, const int64_t d2, const int64_t column,
                                     BYOC_ZERO const BYOC_A *a, const BYOC_B *b, BYOC_SUM *t) {
    for (int r = 0; r < mr; ++r)
        for (int c = 0; c < nr; ++c) {
            BYOC_SUM sum = 0;
            for (int64_t i = 0; i < n0; ++i)
                for (int64_t j = 0; j < n1; ++j) {
                    const BYOC_A *x = a + (r * row + i * s0 + j * s1);
                    const BYOC_B *w = b + (c * column + i * d0 + j * d1);
                    for (int64_t k = 0; k < n2; ++k)
                        sum += BYOC_LOAD(x[k * s2]) * BYOC_WEIGHT(w[k * d2]);
                }
            t[r * nr + c] = sum;
        }
}
