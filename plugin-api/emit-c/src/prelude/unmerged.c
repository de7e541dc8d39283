#ifndef BYOC_UNMERGED
/* Of functions that GCC must not merge with equal ones: GCC 12 then converts the branches of their loops wrongly. */
#if defined(__GNUC__) && !defined(__clang__)
#define BYOC_UNMERGED __attribute__((no_icf))
#else
#define BYOC_UNMERGED
#endif
#endif
