#ifndef BYOC_PACK
#define BYOC_PACK
/*
 * Packs one panel of the right-hand side of a contraction: for each tap and channel, the columns from `column` on.
 * Columns past the end hold 0. A panel has `nr` columns, the last one those that remain of the `padded` columns.
 */
static inline void byoc_pack_panel(float *BYOC_RESTRICT to, const float *BYOC_RESTRICT from, int64_t column, int64_t columns,
                                   int64_t padded, int64_t nr, int64_t n0, int64_t s0, int64_t n1, int64_t s1, int64_t n2, int64_t s2,
                                   int64_t column_stride) {
    const int64_t left = padded - column;
    const int64_t width = left < nr ? left : nr;
    const int64_t rest = columns > column ? columns - column : 0;
    const int64_t real = rest < width ? rest : width;
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j)
            for (int64_t k = 0; k < n2; ++k) {
                const float *x = from + i * s0 + j * s1 + k * s2 + column * column_stride;
                for (int64_t c = 0; c < real; ++c)
                    to[c] = x[c * column_stride];
                for (int64_t c = real; c < width; ++c)
                    to[c] = 0.0f;
                to += width;
            }
}
#endif
