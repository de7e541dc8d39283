#ifndef BYOC_COMPILER
#define BYOC_COMPILER
/*
 * The loop optimizer of GCC 12 writes some addresses as sums without a base pointer. A later pass mistakes a load from
 * such an address for a read of the null address, which ends the program, so that the stores behind it do not count:
 * it believes that the function has no effect, and deletes calls to it.
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-delete-null-pointer-checks")
#endif
#endif
