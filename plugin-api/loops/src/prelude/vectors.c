#ifndef BYOC_VECTORS
#define BYOC_VECTORS
/* Number of floats in a vector. */
#define BYOC_VL BYOC_LANES
typedef float byoc_vector __attribute__((vector_size(BYOC_VL * 4), aligned(4), may_alias));

#define BYOC_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define BYOC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BYOC_UNROLL _Pragma("GCC unroll 32")
#endif
#endif
