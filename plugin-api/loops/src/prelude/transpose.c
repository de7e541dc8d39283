#ifndef BYOC_TRANSPOSE
#define BYOC_TRANSPOSE
/* to[r * to_row + c] = from[c * from_column + r], in blocks whose rows and columns stay in the first-level cache. */
static inline void byoc_transpose(float *BYOC_RESTRICT to, int64_t to_row, const float *BYOC_RESTRICT from, int64_t from_column,
                                  int64_t rows, int64_t columns) {
    for (int64_t r0 = 0; r0 < rows; r0 += 16)
        for (int64_t c0 = 0; c0 < columns; c0 += 16) {
            const int64_t r1 = rows - r0 < 16 ? rows : r0 + 16;
            const int64_t c1 = columns - c0 < 16 ? columns : c0 + 16;
            for (int64_t r = r0; r < r1; ++r)
                for (int64_t c = c0; c < c1; ++c)
                    to[r * to_row + c] = from[c * from_column + r];
        }
}
#endif
