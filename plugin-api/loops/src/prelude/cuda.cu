/* What the kernels call. Vectors are values of several floats, with the operators of OpenCL C. */
#define INT_MIN (-2147483647 - 1)
#define LONG_MIN (-9223372036854775807LL - 1)
#undef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define DEVICE __device__ __forceinline__

template <int N> struct byoc_mask {
    bool is[N];
};

template <int N> struct byoc_floats {
    float at[N];
    byoc_floats() = default;
    __device__ __forceinline__ byoc_floats(float x) {
        for (int i = 0; i < N; ++i)
            at[i] = x;
    }
};

#define BYOC_ARITHMETIC(OP)                                                                                            \
    template <int N> DEVICE byoc_floats<N> operator OP(byoc_floats<N> a, byoc_floats<N> b) {                           \
        for (int i = 0; i < N; ++i)                                                                                    \
            a.at[i] = a.at[i] OP b.at[i];                                                                              \
        return a;                                                                                                      \
    }                                                                                                                  \
    template <int N> DEVICE byoc_floats<N> operator OP(float a, byoc_floats<N> b) {                                    \
        return byoc_floats<N>(a) OP b;                                                                                 \
    }
#define BYOC_COMPARISON(OP)                                                                                            \
    template <int N> DEVICE byoc_mask<N> operator OP(byoc_floats<N> a, byoc_floats<N> b) {                             \
        byoc_mask<N> r;                                                                                                \
        for (int i = 0; i < N; ++i)                                                                                    \
            r.is[i] = a.at[i] OP b.at[i];                                                                              \
        return r;                                                                                                      \
    }
#define BYOC_LOGIC(OP)                                                                                                 \
    template <int N> DEVICE byoc_mask<N> operator OP(byoc_mask<N> a, byoc_mask<N> b) {                                 \
        for (int i = 0; i < N; ++i)                                                                                    \
            a.is[i] = a.is[i] OP b.is[i];                                                                              \
        return a;                                                                                                      \
    }
#define BYOC_FUNCTION(NAME)                                                                                            \
    template <int N> DEVICE byoc_floats<N> NAME(byoc_floats<N> a) {                                                    \
        for (int i = 0; i < N; ++i)                                                                                    \
            a.at[i] = NAME(a.at[i]);                                                                                   \
        return a;                                                                                                      \
    }
#define BYOC_FUNCTION2(NAME)                                                                                           \
    template <int N> DEVICE byoc_floats<N> NAME(byoc_floats<N> a, byoc_floats<N> b) {                                  \
        for (int i = 0; i < N; ++i)                                                                                    \
            a.at[i] = NAME(a.at[i], b.at[i]);                                                                          \
        return a;                                                                                                      \
    }

BYOC_ARITHMETIC(+) BYOC_ARITHMETIC(-) BYOC_ARITHMETIC(*) BYOC_ARITHMETIC(/)
BYOC_COMPARISON(<) BYOC_COMPARISON(<=) BYOC_COMPARISON(>) BYOC_COMPARISON(>=) BYOC_COMPARISON(==) BYOC_COMPARISON(!=)
BYOC_LOGIC(|) BYOC_LOGIC(&)

template <int N> DEVICE byoc_floats<N> operator-(byoc_floats<N> a) {
    for (int i = 0; i < N; ++i)
        a.at[i] = -a.at[i];
    return a;
}

template <int N> DEVICE byoc_floats<N> byoc_select(byoc_mask<N> mask, byoc_floats<N> a, byoc_floats<N> b) {
    for (int i = 0; i < N; ++i)
        a.at[i] = mask.is[i] ? a.at[i] : b.at[i];
    return a;
}

/* The exponential of a negative number does not overflow. */
DEVICE float byoc_sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* Rounds to the nearest float16 value. */
DEVICE float byoc_half(float x) {
    return __half2float(__float2half_rn(x));
}

DEVICE float byoc_floor_divide(float a, float b) {
    return floorf(a / b);
}

DEVICE float byoc_floor_mod(float a, float b) {
    const float r = fmodf(a, b);
    return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

BYOC_FUNCTION(expf) BYOC_FUNCTION(erff) BYOC_FUNCTION(tanhf) BYOC_FUNCTION(logf) BYOC_FUNCTION(log2f)
BYOC_FUNCTION(log10f) BYOC_FUNCTION(sqrtf) BYOC_FUNCTION(sinf) BYOC_FUNCTION(cosf) BYOC_FUNCTION(tanf)
BYOC_FUNCTION(asinf) BYOC_FUNCTION(acosf) BYOC_FUNCTION(atanf) BYOC_FUNCTION(sinhf) BYOC_FUNCTION(coshf)
BYOC_FUNCTION(asinhf) BYOC_FUNCTION(acoshf) BYOC_FUNCTION(atanhf) BYOC_FUNCTION(floorf) BYOC_FUNCTION(ceilf)
BYOC_FUNCTION(roundf) BYOC_FUNCTION(rintf) BYOC_FUNCTION(truncf) BYOC_FUNCTION(fabsf)
BYOC_FUNCTION(byoc_sigmoid) BYOC_FUNCTION(byoc_half)
BYOC_FUNCTION2(powf) BYOC_FUNCTION2(fmodf) BYOC_FUNCTION2(byoc_floor_divide) BYOC_FUNCTION2(byoc_floor_mod)

/* Loads the first count elements of a strided vector; the others are zeros. */
template <int N> DEVICE byoc_floats<N> byoc_load(const float *p, int stride, int count) {
    byoc_floats<N> x;
    for (int i = 0; i < N; ++i)
        x.at[i] = i < count ? p[i * stride] : 0.0f;
    return x;
}

template <int N> DEVICE void byoc_store(byoc_floats<N> x, float *p, int stride, int count) {
    for (int i = 0; i < N; ++i)
        if (i < count)
            p[i * stride] = x.at[i];
}

/* 0 <= x < size */
DEVICE int byoc_is_below(int x, int size) {
    return (unsigned int)x < (unsigned int)size;
}

/* The first tap k >= 0 for which base + k * step >= 0. */
DEVICE int byoc_first_tap(int base, int step) {
    return base < 0 ? (-base + step - 1) / step : 0;
}

/* The end of the taps k < n for which base + k * step < size; at least the first tap. */
DEVICE int byoc_end_tap(int base, int step, int size, int n) {
    const int end = base < size ? min((size - base + step - 1) / step, n) : 0;
    return max(end, base < 0 ? (-base + step - 1) / step : 0);
}

/* Reductions of a contiguous row. Their order is that of the row, in 16 sums. */
#define BYOC_ROW(NAME, PARAMETER, START, TERM, COMBINE)                                                                \
    DEVICE float NAME(const float *row, int n PARAMETER) {                                                             \
        float s[16];                                                                                                   \
        for (int j = 0; j < 16; ++j)                                                                                   \
            s[j] = START;                                                                                              \
        int i = 0;                                                                                                     \
        for (; i + 16 <= n; i += 16)                                                                                   \
            for (int j = 0; j < 16; ++j) {                                                                             \
                const float x = row[i + j], a = s[j], b = TERM;                                                        \
                s[j] = COMBINE;                                                                                        \
            }                                                                                                          \
        for (int half = 8; half > 0; half /= 2)                                                                        \
            for (int j = 0; j < half; ++j) {                                                                           \
                const float a = s[j], b = s[j + half];                                                                 \
                s[j] = COMBINE;                                                                                        \
            }                                                                                                          \
        for (; i < n; ++i) {                                                                                           \
            const float x = row[i], a = s[0], b = TERM;                                                                \
            s[0] = COMBINE;                                                                                            \
        }                                                                                                              \
        return s[0];                                                                                                   \
    }
#define BYOC_AND(PARAMETER) , float PARAMETER

BYOC_ROW(byoc_row_sum, , 0.0f, x, a + b)
BYOC_ROW(byoc_row_prod, , 1.0f, x, a * b)
BYOC_ROW(byoc_row_max, , -INFINITY, x, a != a || a > b ? a : b)
BYOC_ROW(byoc_row_min, , INFINITY, x, a != a || a < b ? a : b)
BYOC_ROW(byoc_row_squares, BYOC_AND(mean), 0.0f, (x - mean) * (x - mean), a + b)
BYOC_ROW(byoc_row_exponentials, BYOC_AND(top), 0.0f, expf(x - top), a + b)

