/*
 * Driver interface of VTA: ten functions that a shared library exports with C linkage.
 *
 * byoc's backend vta calls the library named by the environment variable VTA_DRIVER. The names and the types are those
 * of VTA's own vta/driver.h, so that a library built for a board or for one of VTA's simulators works unchanged. No
 * function is thread-safe: the caller makes one call at a time, and a device has one run at a time.
 */
#ifndef VTA_DRIVER_H_
#define VTA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

/* Values of the argument `cached` of VTAMemAlloc. */
#define VTA_CACHED 1
#define VTA_NOT_CACHED 0

/* Maximum size of a contiguous buffer in bytes, and therefore of an instruction stream. */
#ifndef VTA_MAX_XFER
#define VTA_MAX_XFER (1 << 25)
#endif

/* Page size in bytes. Buffers are page-aligned. */
#define VTA_PAGE_BITS 12
#define VTA_PAGE_BYTES (1 << VTA_PAGE_BITS)

#ifdef __cplusplus
extern "C" {
#endif

/* Device, opaque to the caller. */
typedef void* VTADeviceHandle;

/* Address of device memory in bytes, as the device sees it. 0 is invalid. byoc loads drivers with 32-bit addresses. */
#ifdef USE_VTA64
typedef uint64_t vta_phy_addr_t;
#else
typedef uint32_t vta_phy_addr_t;
#endif

/* Opens the device. Returns null if no device is available. */
VTADeviceHandle VTADeviceAlloc(void);

/* Closes a device. Buffers stay allocated. */
void VTADeviceFree(VTADeviceHandle handle);

/*
 * Runs `insn_count` instructions of 16 bytes each that begin at `insn_phy_addr`, and waits until FINISH has been
 * executed. Gives up after polling the device `wait_cycles` times. Returns 0 on completion, 1 on timeout.
 */
int VTADeviceRun(VTADeviceHandle handle, vta_phy_addr_t insn_phy_addr, uint32_t insn_count, uint32_t wait_cycles);

/* Allocates a physically contiguous buffer, cached by the CPU or not. Returns null if memory is exhausted. */
void* VTAMemAlloc(size_t size, int cached);

/* Frees a buffer that VTAMemAlloc has returned. */
void VTAMemFree(void* buf);

/* Returns the device address of a buffer, or of a byte inside it. */
vta_phy_addr_t VTAMemGetPhyAddr(void* buf);

/* Copies `size` bytes of host memory into a buffer, which the CPU may be unable to address. */
void VTAMemCopyFromHost(void* dst, const void* src, size_t size);

/* Copies `size` bytes of a buffer, which the CPU may be unable to address, into host memory. */
void VTAMemCopyToHost(void* dst, const void* src, size_t size);

/* Writes cached bytes of a buffer back to memory, before the device reads them. */
void VTAFlushCache(void* vir_addr, vta_phy_addr_t phy_addr, int size);

/* Invalidates cached bytes of a buffer, before the CPU reads data that the device has written. */
void VTAInvalidateCache(void* vir_addr, vta_phy_addr_t phy_addr, int size);

#ifdef __cplusplus
}
#endif

#endif
