/*
 * Functional simulator of VTA behind VTA's driver interface: bit-exact with the device, without its timing. Also a
 * starting point for a hardware driver.
 *
 *   cc -std=c99 -O2 -shared -fPIC -I../include -o libdriver.so driver.c
 *   VTA_DRIVER=./libdriver.so byoc run MODEL --backend vta
 *
 * The macros below define the configuration; -DVTA_LOG_BLOCK=5, for example, overrides one, and -DVTA_HW_VER_0_0_1
 * selects the older instruction set revision. Environment variables:
 *
 *   VTA_SAMPLE_SEED  seed of the schedule of LOAD, COMPUTE and STORE (default 1): results that depend on the seed
 *                    indicate a missing token
 *   VTA_SAMPLE_LOG   if set, each run prints one line with counters to standard error
 *   VTA_SAMPLE_FAIL  "error": runs return 1 immediately; "hang": runs never return
 *
 * A run that would hang on the device, or have undefined results, prints one line that names the instruction, and
 * returns 1.
 */

/* Declares `sleep`, which C99 lacks. */
#define _POSIX_C_SOURCE 200112L

#include "vta/driver.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Configuration: the keys of vta_config.json, all of them base-2 logarithms. Buffer sizes are in bytes. */
#ifndef VTA_LOG_INP_WIDTH
#define VTA_LOG_INP_WIDTH 3
#endif
#ifndef VTA_LOG_WGT_WIDTH
#define VTA_LOG_WGT_WIDTH 3
#endif
#ifndef VTA_LOG_ACC_WIDTH
#define VTA_LOG_ACC_WIDTH 5
#endif
#ifndef VTA_LOG_BATCH
#define VTA_LOG_BATCH 0
#endif
#ifndef VTA_LOG_BLOCK
#define VTA_LOG_BLOCK 4
#endif
#ifndef VTA_LOG_BLOCK_IN
#define VTA_LOG_BLOCK_IN VTA_LOG_BLOCK
#endif
#ifndef VTA_LOG_BLOCK_OUT
#define VTA_LOG_BLOCK_OUT VTA_LOG_BLOCK
#endif
#ifndef VTA_LOG_UOP_BUFF_SIZE
#define VTA_LOG_UOP_BUFF_SIZE 15
#endif
#ifndef VTA_LOG_INP_BUFF_SIZE
#define VTA_LOG_INP_BUFF_SIZE 15
#endif
#ifndef VTA_LOG_WGT_BUFF_SIZE
#define VTA_LOG_WGT_BUFF_SIZE 18
#endif
#ifndef VTA_LOG_ACC_BUFF_SIZE
#define VTA_LOG_ACC_BUFF_SIZE 17
#endif

/* Size of device memory in bytes. The first page is unused, because address 0 is invalid. */
#ifndef VTA_SAMPLE_MEMORY_BYTES
#define VTA_SAMPLE_MEMORY_BYTES (1 << 28)
#endif

#define BATCH (1 << VTA_LOG_BATCH)
#define BLOCK_IN (1 << VTA_LOG_BLOCK_IN)
#define BLOCK_OUT (1 << VTA_LOG_BLOCK_OUT)

/* Element size of each memory in bytes. */
#define UOP_BYTES 4
#define INP_BYTES (BATCH * BLOCK_IN)
#define WGT_BYTES (BLOCK_OUT * BLOCK_IN)
#define OUT_BYTES (BATCH * BLOCK_OUT)
#define ACC_BYTES (4 * OUT_BYTES)

/* Index width of each memory in bits. OUT has as many elements as ACC. */
#define UOP_BITS (VTA_LOG_UOP_BUFF_SIZE - 2)
#define INP_BITS (VTA_LOG_INP_BUFF_SIZE - VTA_LOG_BATCH - VTA_LOG_BLOCK_IN)
#define WGT_BITS (VTA_LOG_WGT_BUFF_SIZE - VTA_LOG_BLOCK_OUT - VTA_LOG_BLOCK_IN)
#define ACC_BITS (VTA_LOG_ACC_BUFF_SIZE - VTA_LOG_BATCH - VTA_LOG_BLOCK_OUT - 2)

/* Widths of the fields that differ between the two instruction set revisions. */
#ifdef VTA_HW_VER_0_0_1
#define MEMORY_FIELD_BITS 2
#define ALU_OPCODE_BITS 2
#define UOP_SRC_BITS INP_BITS
#else
#define MEMORY_FIELD_BITS 3
#define ALU_OPCODE_BITS 3
#define UOP_SRC_BITS (ACC_BITS > INP_BITS ? ACC_BITS : INP_BITS)
#endif

#if VTA_LOG_INP_WIDTH != 3 || VTA_LOG_WGT_WIDTH != 3 || VTA_LOG_ACC_WIDTH != 5
#error "expected 8-bit activations and weights and 32-bit accumulators"
#endif
#if UOP_BITS < 0 || INP_BITS < 0 || WGT_BITS < 0 || ACC_BITS < 0
#error "expected buffers of at least one element"
#endif
#if UOP_BITS > 16 || INP_BITS > 16 || WGT_BITS > 16 || ACC_BITS > 16
#error "expected buffers of at most 65536 elements, the range of sram_base"
#endif
#if ACC_BITS + UOP_SRC_BITS + WGT_BITS > 32 || 2 * UOP_BITS > 27 || ACC_BITS + INP_BITS + WGT_BITS > 32 || ACC_BITS > 11
#error "expected buffers whose indices fit into micro-operations and instructions"
#endif
#if INP_BYTES > VTA_PAGE_BYTES || WGT_BYTES > VTA_PAGE_BYTES || ACC_BYTES > VTA_PAGE_BYTES
#error "expected elements of at most one page"
#endif

#define INSN_BYTES 16

typedef enum { LOAD, STORE, GEMM, FINISH, ALU } Opcode;
typedef enum { UOP, WGT, INP, ACC, OUT, ACC_8BIT } MemoryId;
typedef enum { MIN, MAX, ADD, SHR, MUL } AluOpcode;

/* Modules in data flow order: neighbors exchange tokens. */
enum { LOADER, COMPUTE, STORER, MODULES };

/* Token direction between two neighbors. */
enum { FORWARD, BACKWARD, DIRECTIONS };

enum { INP_LOAD, WGT_LOAD, ACC_LOAD, UOP_LOAD, OUT_STORE, GEMM_STEPS, ALU_STEPS, COUNTERS };

static const char* const OPCODE_NAMES[] = {"LOAD", "STORE", "GEMM", "FINISH", "ALU"};
static const char* const MODULE_NAMES[] = {"LOAD", "COMPUTE", "STORE"};
static const char* const COUNTER_NAMES[] = {
    "inp_load_nbytes", "wgt_load_nbytes", "acc_load_nbytes", "uop_load_nbytes",
    "out_store_nbytes", "gemm_counter", "alu_counter",
};

/* Memories by MemoryId, with the element sizes in device memory and on chip. */
static const struct {
    const char* name;
    uint32_t depth, dram_bytes, sram_bytes;
    int counter;
} MEMORIES[] = {
    {"UOP", 1u << UOP_BITS, UOP_BYTES, UOP_BYTES, UOP_LOAD},
    {"WGT", 1u << WGT_BITS, WGT_BYTES, WGT_BYTES, WGT_LOAD},
    {"INP", 1u << INP_BITS, INP_BYTES, INP_BYTES, INP_LOAD},
    {"ACC", 1u << ACC_BITS, ACC_BYTES, ACC_BYTES, ACC_LOAD},
    {"OUT", 1u << ACC_BITS, OUT_BYTES, OUT_BYTES, OUT_STORE},
    {"ACC_8BIT", 1u << ACC_BITS, OUT_BYTES, ACC_BYTES, ACC_LOAD},
};

/* On-chip memories. Accumulators are unsigned because they wrap. STORE narrows ACC, so OUT needs no memory here. */
typedef struct {
    uint32_t uop[1 << UOP_BITS];
    int8_t inp[1 << INP_BITS][INP_BYTES];
    int8_t wgt[1 << WGT_BITS][WGT_BYTES];
    uint32_t acc[1 << ACC_BITS][OUT_BYTES];
} Device;

/* Fields of LOAD and STORE. */
typedef struct {
    uint32_t memory, sram_base, dram_base, y_size, x_size, x_stride;
    uint32_t y_pad_0, y_pad_1, x_pad_0, x_pad_1;
} Transfer;

/* Fields of GEMM and ALU, with one factor for the outer and one for the inner loop. */
typedef struct {
    uint32_t reset, uop_bgn, uop_end, iter_out, iter_in;
    uint32_t dst_factor[2], src_factor[2], wgt_factor[2];
    uint32_t alu_opcode, use_imm;
    int32_t imm;
} Loops;

/* Decoded instruction. The opcode determines whether `transfer` or `loops` is valid. */
typedef struct {
    uint32_t index;
    uint64_t words[2];
    uint32_t opcode;
    bool pop_prev, pop_next, push_prev, push_next;
    Transfer transfer;
    Loops loops;
} Insn;

/* State of a run. */
typedef struct {
    Device* device;
    /* Copy of the instruction words, because FETCH may read ahead of a STORE. */
    uint64_t (*stream)[2];
    uint32_t count;
    /* Index of the next instruction of each module, or `count`. */
    uint32_t head[MODULES];
    /* Number of tokens between LOAD and COMPUTE and between COMPUTE and STORE, in both directions. */
    uint32_t tokens[MODULES - 1][DIRECTIONS];
    uint64_t counters[COUNTERS];
    bool finished;
} Run;

/* ---- Device memory ---- */

typedef struct Buffer {
    struct Buffer* next;
    uint64_t address, size;
} Buffer;

/* Device memory, indexed by device address. */
static uint8_t memory[VTA_SAMPLE_MEMORY_BYTES];

/* Buffers, ordered by address. The gaps are free. */
static Buffer* buffers;

/* Returns the memory at an address, or null if the range is not within one buffer. */
static uint8_t* find(uint64_t address, uint64_t size) {
    for (const Buffer* buffer = buffers; buffer != NULL; buffer = buffer->next) {
        if (address >= buffer->address && address - buffer->address < buffer->size) {
            return size <= buffer->size - (address - buffer->address) ? memory + address : NULL;
        }
    }
    return NULL;
}

/* Returns the address of the first page after a buffer. */
static uint64_t page_after(const Buffer* buffer) {
    return (buffer->address + buffer->size + VTA_PAGE_BYTES - 1) / VTA_PAGE_BYTES * VTA_PAGE_BYTES;
}

void* VTAMemAlloc(size_t size, int cached) {
    (void)cached;
    if (size > VTA_MAX_XFER) {
        fprintf(stderr, "vta: VTAMemAlloc: expected at most %d bytes, found %zu\n", VTA_MAX_XFER, size);
        return NULL;
    }
    Buffer* buffer = malloc(sizeof *buffer);
    if (buffer == NULL) {
        return NULL;
    }
    buffer->size = size > 0 ? size : 1;
    buffer->address = VTA_PAGE_BYTES;
    Buffer** link = &buffers;
    while (*link != NULL && (*link)->address < page_after(buffer)) {
        buffer->address = page_after(*link);
        link = &(*link)->next;
    }
    if (page_after(buffer) > sizeof memory) {
        free(buffer);
        return NULL;
    }
    buffer->next = *link;
    *link = buffer;
    return memory + buffer->address;
}

void VTAMemFree(void* buf) {
    for (Buffer** link = &buffers; *link != NULL; link = &(*link)->next) {
        Buffer* buffer = *link;
        if (memory + buffer->address == buf) {
            *link = buffer->next;
            free(buffer);
            return;
        }
    }
    if (buf != NULL) {
        fprintf(stderr, "vta: VTAMemFree: expected the start of a buffer, found another address\n");
    }
}

vta_phy_addr_t VTAMemGetPhyAddr(void* buf) {
    /* Compared as integers, because the pointer may be outside the array. */
    const uint64_t address = (uint64_t)(uintptr_t)buf - (uint64_t)(uintptr_t)memory;
    return find(address, 1) != NULL ? (vta_phy_addr_t)address : 0;
}

void VTAMemCopyFromHost(void* dst, const void* src, size_t size) {
    memcpy(dst, src, size);
}

void VTAMemCopyToHost(void* dst, const void* src, size_t size) {
    memcpy(dst, src, size);
}

/* The next two functions are no-ops: the simulator shares the cache of its caller. */
void VTAFlushCache(void* vir_addr, vta_phy_addr_t phy_addr, int size) {
    (void)vir_addr;
    (void)phy_addr;
    (void)size;
}

void VTAInvalidateCache(void* vir_addr, vta_phy_addr_t phy_addr, int size) {
    (void)vir_addr;
    (void)phy_addr;
    (void)size;
}

/* ---- Numbers ---- */

/* Extracts the lowest `width` bits of a word: fields are packed from bit 0 up. */
static uint32_t take(uint64_t* word, int width) {
    const uint32_t field = (uint32_t)(*word & (((uint64_t)1 << width) - 1));
    *word >>= width;
    return field;
}

/* Reads a little-endian integer regardless of the host's byte order. */
static uint64_t little_endian(const uint8_t* bytes, int size) {
    uint64_t value = 0;
    for (int i = size - 1; i >= 0; --i) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* Sign-extends a value of `width` bits. The result is wide enough that no later step overflows. */
static int64_t as_signed(uint32_t bits, int width) {
    const int64_t value = bits;
    return bits >> (width - 1) != 0 ? value - ((int64_t)1 << width) : value;
}

/* ---- Instructions ---- */

static void decode_transfer(uint64_t low, uint64_t high, Transfer* transfer) {
    transfer->memory = take(&low, MEMORY_FIELD_BITS);
    transfer->sram_base = take(&low, 16);
    transfer->dram_base = take(&low, 32);
    transfer->y_size = take(&high, 16);
    transfer->x_size = take(&high, 16);
    transfer->x_stride = take(&high, 16);
    transfer->y_pad_0 = take(&high, 4);
    transfer->y_pad_1 = take(&high, 4);
    transfer->x_pad_0 = take(&high, 4);
    transfer->x_pad_1 = take(&high, 4);
}

static void decode_loops(bool alu, uint64_t low, uint64_t high, Loops* loops) {
    loops->reset = take(&low, 1);
    loops->uop_bgn = take(&low, UOP_BITS);
    loops->uop_end = take(&low, UOP_BITS + 1);
    loops->iter_out = take(&low, 14);
    loops->iter_in = take(&low, 14);
    const int src_bits = alu ? ACC_BITS : INP_BITS;
    loops->dst_factor[0] = take(&high, ACC_BITS);
    loops->dst_factor[1] = take(&high, ACC_BITS);
    loops->src_factor[0] = take(&high, src_bits);
    loops->src_factor[1] = take(&high, src_bits);
    if (alu) {
        loops->alu_opcode = take(&high, ALU_OPCODE_BITS);
        loops->use_imm = take(&high, 1);
        loops->imm = (int32_t)as_signed(take(&high, 16), 16);
    } else {
        loops->wgt_factor[0] = take(&high, WGT_BITS);
        loops->wgt_factor[1] = take(&high, WGT_BITS);
    }
}

static Insn decode(const Run* run, uint32_t index) {
    Insn insn;
    memset(&insn, 0, sizeof insn);
    insn.index = index;
    memcpy(insn.words, run->stream[index], sizeof insn.words);
    uint64_t low = insn.words[0];
    insn.opcode = take(&low, 3);
    insn.pop_prev = take(&low, 1);
    insn.pop_next = take(&low, 1);
    insn.push_prev = take(&low, 1);
    insn.push_next = take(&low, 1);
    if (insn.opcode == LOAD || insn.opcode == STORE) {
        decode_transfer(low, insn.words[1], &insn.transfer);
    } else if (insn.opcode == GEMM || insn.opcode == ALU) {
        decode_loops(insn.opcode == ALU, low, insn.words[1], &insn.loops);
    }
    return insn;
}

/* Returns the module that executes an instruction. */
static int module_of(const Insn* insn) {
    if (insn->opcode == STORE) {
        return STORER;
    }
    const bool data = insn->transfer.memory == INP || insn->transfer.memory == WGT;
    return insn->opcode == LOAD && data ? LOADER : COMPUTE;
}

/* Returns the problem of an instruction considered in isolation, or null. */
static const char* defect(const Insn* insn) {
    const Transfer* t = &insn->transfer;
    if (insn->opcode > ALU) {
        return "unknown opcode";
    }
    if (insn->opcode == LOAD && (t->memory == OUT || t->memory > ACC_8BIT)) {
        return "unknown memory_type in a LOAD";
    }
    if (insn->opcode == ALU && insn->loops.alu_opcode > MUL) {
        return "unknown alu_opcode";
    }
    if (module_of(insn) == LOADER && (insn->pop_prev || insn->push_prev)) {
        return "pop_prev or push_prev in the load queue, which has no predecessor";
    }
    if (module_of(insn) == STORER && (insn->pop_next || insn->push_next)) {
        return "pop_next or push_next in the store queue, which has no successor";
    }
    if (insn->opcode == STORE && t->x_size > 0) {
        /* The older revision lacks the third bit of OUT. */
        if (t->memory != (OUT & ((1 << MEMORY_FIELD_BITS) - 1))) {
            return "expected memory_type OUT in a STORE, found another memory";
        }
        if (t->y_pad_0 != 0 || t->y_pad_1 != 0 || t->x_pad_0 != 0 || t->x_pad_1 != 0) {
            return "expected no padding in a STORE, found padding";
        }
    }
    return NULL;
}

/* Prints the index, name and words of an instruction, without a newline. */
static void print_insn(const Insn* insn) {
    const char* opcode = insn->opcode <= ALU ? OPCODE_NAMES[insn->opcode] : "unknown";
    const bool has_memory = insn->opcode == LOAD && insn->transfer.memory <= ACC_8BIT;
    fprintf(stderr, "instruction %" PRIu32 " (%s%s%s, 0x%016" PRIx64 " 0x%016" PRIx64 ")", insn->index, opcode,
            has_memory ? " " : "", has_memory ? MEMORIES[insn->transfer.memory].name : "", insn->words[0],
            insn->words[1]);
}

/* Reports an instruction error. Returns false, the failure value of the functions that execute instructions. */
static bool fail(const Insn* insn, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "vta: ");
    print_insn(insn);
    fprintf(stderr, ": ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return false;
}

/* ---- LOAD and STORE ---- */

/* Reports an access beyond the end of a memory. */
static bool check_sram(const Insn* insn, uint32_t id, uint64_t end) {
    const uint32_t depth = MEMORIES[id].depth;
    return end <= depth || fail(insn, "%s: expected element indices < %" PRIu32 ", found %" PRIu64, MEMORIES[id].name,
                                depth, end - 1);
}

/* Returns the bytes of a row in device memory, or null after an error. */
static uint8_t* dram_row(const Insn* insn, uint32_t id, uint32_t row) {
    const Transfer* t = &insn->transfer;
    const uint64_t element = (uint64_t)t->dram_base + (uint64_t)row * t->x_stride;
    const uint64_t address = element * MEMORIES[id].dram_bytes;
    const uint64_t size = (uint64_t)t->x_size * MEMORIES[id].dram_bytes;
    uint8_t* bytes = find(address, size);
    if (bytes == NULL) {
        fail(insn, "expected addresses within one buffer, found %" PRIu64 " bytes at 0x%" PRIx64, size, address);
    }
    return bytes;
}

/* Returns an element of an on-chip memory. */
static void* sram(Device* device, uint32_t id, uint32_t at) {
    switch (id) {
        case UOP: return &device->uop[at];
        case WGT: return &device->wgt[at];
        case INP: return &device->inp[at];
        default: return &device->acc[at];
    }
}

/* Copies elements from device memory, whose byte order may differ from the host's. */
static void copy_in(Device* device, uint32_t id, uint32_t at, uint32_t count, const uint8_t* bytes) {
    if (id == WGT || id == INP) {
        memcpy(sram(device, id, at), bytes, (size_t)count * MEMORIES[id].sram_bytes);
        return;
    }
    uint32_t* words = sram(device, id, at);
    for (size_t i = 0; i < (size_t)count * (MEMORIES[id].sram_bytes / 4); ++i) {
        words[i] = id == ACC_8BIT ? (uint32_t)as_signed(bytes[i], 8) : (uint32_t)little_endian(bytes + 4 * i, 4);
    }
}

/*
 * Adds the bytes of a LOAD or a STORE to their counter, as VTA's own simulator counts them: without padding, and
 * elements of ACC_8BIT as wide as on the chip.
 */
static void count_bytes(Run* run, const Transfer* transfer, uint32_t id) {
    run->counters[MEMORIES[id].counter] += (uint64_t)transfer->x_size * transfer->y_size * MEMORIES[id].sram_bytes;
}

static bool execute_load(Run* run, const Insn* insn) {
    const Transfer* t = &insn->transfer;
    const uint32_t id = t->memory;
    if (t->x_size == 0) {
        return true;
    }
    const uint32_t length = t->x_pad_0 + t->x_size + t->x_pad_1;
    const uint64_t total = (uint64_t)length * (t->y_pad_0 + t->y_size + t->y_pad_1);
    if (!check_sram(insn, id, t->sram_base + total)) {
        return false;
    }
    /* `sram_base` may equal the depth if nothing is written. */
    if (total > 0) {
        memset(sram(run->device, id, t->sram_base), 0, (size_t)total * MEMORIES[id].sram_bytes);
    }
    for (uint32_t row = 0; row < t->y_size; ++row) {
        const uint8_t* bytes = dram_row(insn, id, row);
        if (bytes == NULL) {
            return false;
        }
        const uint32_t at = t->sram_base + (t->y_pad_0 + row) * length + t->x_pad_0;
        copy_in(run->device, id, at, t->x_size, bytes);
    }
    count_bytes(run, t, id);
    return true;
}

static bool execute_store(Run* run, const Insn* insn) {
    const Transfer* t = &insn->transfer;
    if (t->x_size == 0) {
        return true;
    }
    if (!check_sram(insn, OUT, t->sram_base + (uint64_t)t->x_size * t->y_size)) {
        return false;
    }
    for (uint32_t row = 0; row < t->y_size; ++row) {
        uint8_t* bytes = dram_row(insn, OUT, row);
        if (bytes == NULL) {
            return false;
        }
        const uint32_t* lanes = sram(run->device, ACC, t->sram_base + row * t->x_size);
        for (size_t i = 0; i < (size_t)t->x_size * OUT_BYTES; ++i) {
            bytes[i] = (uint8_t)(lanes[i] & 0xff);
        }
    }
    count_bytes(run, t, OUT);
    return true;
}

/* ---- GEMM and ALU ---- */

/* Indices of one step: those of a micro-operation, offset by the loops. */
typedef struct {
    uint32_t dst, src, wgt;
} Indices;

static Indices indices(uint32_t uop, const Loops* loops, uint32_t y, uint32_t x) {
    uint64_t fields = uop;
    Indices at;
    at.dst = take(&fields, ACC_BITS) + y * loops->dst_factor[0] + x * loops->dst_factor[1];
    at.src = take(&fields, UOP_SRC_BITS) + y * loops->src_factor[0] + x * loops->src_factor[1];
    at.wgt = take(&fields, WGT_BITS) + y * loops->wgt_factor[0] + x * loops->wgt_factor[1];
    return at;
}

static void multiply(Device* device, Indices at) {
    for (int b = 0; b < BATCH; ++b) {
        const int8_t* input = device->inp[at.src] + b * BLOCK_IN;
        for (int o = 0; o < BLOCK_OUT; ++o) {
            const int8_t* weights = device->wgt[at.wgt] + o * BLOCK_IN;
            /* Cannot overflow: an element sums at most 4096 products of at most 2^14. */
            int32_t sum = 0;
            for (int k = 0; k < BLOCK_IN; ++k) {
                sum += input[k] * weights[k];
            }
            device->acc[at.dst][b * BLOCK_OUT + o] += (uint32_t)sum;
        }
    }
}

/* Shifts right, rounding down, or left if the amount is negative. Amounts of 32 or more shift out every bit. */
static uint32_t shift(int64_t value, int64_t amount) {
    if (amount < 0) {
        return amount > -32 ? (uint32_t)value << -amount : 0;
    }
    const int bits = amount < 32 ? (int)amount : 32;
    /* In C, the right shift of negative values is implementation-defined. */
    return (uint32_t)(value < 0 ? ~(~value >> bits) : value >> bits);
}

static uint32_t operate(uint32_t opcode, uint32_t lane, int64_t operand) {
    const int64_t value = as_signed(lane, 32);
    switch (opcode) {
        case MIN: return (uint32_t)(value < operand ? value : operand);
        case MAX: return (uint32_t)(value > operand ? value : operand);
        case ADD: return lane + (uint32_t)operand;
        case SHR: return shift(value, operand);
        default: return lane * (uint32_t)operand;
    }
}

static void operate_on_lanes(Device* device, const Loops* loops, Indices at) {
    uint32_t* dst = device->acc[at.dst];
    for (uint32_t lane = 0; lane < OUT_BYTES; ++lane) {
        const int64_t operand = loops->use_imm ? loops->imm : as_signed(device->acc[at.src][lane], 32);
        dst[lane] = operate(loops->alu_opcode, dst[lane], operand);
    }
}

/* Executes one micro-operation of one iteration. */
static bool step(Device* device, const Insn* insn, Indices at) {
    const Loops* loops = &insn->loops;
    const bool is_alu = insn->opcode == ALU;
    const bool has_src = is_alu ? !loops->use_imm : !loops->reset;
    const bool has_wgt = !is_alu && !loops->reset;
    if (!check_sram(insn, ACC, (uint64_t)at.dst + 1) ||
        (has_src && !check_sram(insn, is_alu ? ACC : INP, (uint64_t)at.src + 1)) ||
        (has_wgt && !check_sram(insn, WGT, (uint64_t)at.wgt + 1))) {
        return false;
    }
    if (is_alu) {
        operate_on_lanes(device, loops, at);
    } else if (loops->reset) {
        memset(device->acc[at.dst], 0, ACC_BYTES);
    } else {
        multiply(device, at);
    }
    return true;
}

/* Executes a GEMM or an ALU, with steps in device order: an ALU reads the results of its earlier steps. */
static bool execute_loops(Run* run, const Insn* insn) {
    const Loops* loops = &insn->loops;
    for (uint32_t y = 0; y < loops->iter_out; ++y) {
        for (uint32_t x = 0; x < loops->iter_in; ++x) {
            for (uint32_t u = loops->uop_bgn; u < loops->uop_end; ++u) {
                if (!check_sram(insn, UOP, (uint64_t)u + 1) ||
                    !step(run->device, insn, indices(run->device->uop[u], loops, y, x))) {
                    return false;
                }
                /* VTA's own simulator does not count resets. */
                if (insn->opcode == ALU) {
                    ++run->counters[ALU_STEPS];
                } else if (!loops->reset) {
                    ++run->counters[GEMM_STEPS];
                }
            }
        }
    }
    return true;
}

/* ---- Runs ---- */

/* Advances the head of a module's queue to the next instruction of the module. */
static void seek(Run* run, int module) {
    while (run->head[module] < run->count) {
        const Insn insn = decode(run, run->head[module]);
        if (module_of(&insn) == module) {
            return;
        }
        ++run->head[module];
    }
}

/* Copies the instructions and checks each in isolation before the modules start. */
static bool fetch(Run* run, const uint8_t* bytes) {
    bool has_finish = false;
    for (uint32_t i = 0; i < run->count; ++i) {
        run->stream[i][0] = little_endian(bytes + (size_t)i * INSN_BYTES, 8);
        run->stream[i][1] = little_endian(bytes + (size_t)i * INSN_BYTES + 8, 8);
        const Insn insn = decode(run, i);
        const char* problem = defect(&insn);
        if (problem != NULL) {
            return fail(&insn, "%s", problem);
        }
        has_finish |= insn.opcode == FINISH;
    }
    if (!has_finish) {
        fprintf(stderr, "vta: expected FINISH among the %" PRIu32 " instructions, found none\n", run->count);
    }
    for (int module = 0; module < MODULES; ++module) {
        seek(run, module);
    }
    return has_finish;
}

/* Pops the tokens that an instruction requires, all of them or none. */
static bool pop(Run* run, const Insn* insn, int module) {
    uint32_t* prev = insn->pop_prev ? &run->tokens[module - 1][FORWARD] : NULL;
    uint32_t* next = insn->pop_next ? &run->tokens[module][BACKWARD] : NULL;
    const bool ready = (prev == NULL || *prev > 0) && (next == NULL || *next > 0);
    if (ready && prev != NULL) {
        --*prev;
    }
    if (ready && next != NULL) {
        --*next;
    }
    return ready;
}

static void push(Run* run, const Insn* insn, int module) {
    if (insn->push_prev) {
        ++run->tokens[module - 1][BACKWARD];
    }
    if (insn->push_next) {
        ++run->tokens[module][FORWARD];
    }
}

static bool execute(Run* run, const Insn* insn) {
    switch (insn->opcode) {
        case LOAD: return execute_load(run, insn);
        case STORE: return execute_store(run, insn);
        case FINISH: run->finished = true; return true;
        default: return execute_loops(run, insn);
    }
}

/* Executes up to `limit` instructions of a module, until one lacks a token. Sets `progress` if any was executed. */
static bool advance(Run* run, int module, uint32_t limit, bool* progress) {
    for (uint32_t i = 0; i < limit && run->head[module] < run->count && !run->finished; ++i) {
        const Insn insn = decode(run, run->head[module]);
        if (!pop(run, &insn, module)) {
            return true;
        }
        if (!execute(run, &insn)) {
            return false;
        }
        push(run, &insn, module);
        *progress = true;
        ++run->head[module];
        seek(run, module);
    }
    return true;
}

/* Reports why a run cannot finish: the next instructions of the modules and the tokens between them. */
static bool fail_at_heads(const Run* run, const char* problem) {
    fprintf(stderr, "vta: %s: ", problem);
    for (int module = 0; module < MODULES; ++module) {
        if (run->head[module] < run->count) {
            const Insn insn = decode(run, run->head[module]);
            fprintf(stderr, "%s is at ", MODULE_NAMES[module]);
            print_insn(&insn);
            fprintf(stderr, "; ");
        }
    }
    fprintf(stderr, "tokens: l2g %" PRIu32 ", g2l %" PRIu32 ", g2s %" PRIu32 ", s2g %" PRIu32 "\n",
            run->tokens[0][FORWARD], run->tokens[0][BACKWARD], run->tokens[1][FORWARD], run->tokens[1][BACKWARD]);
    return false;
}

/* Checks that no instruction or token remains after FINISH, which would affect this run or the next. */
static bool check_end(const Run* run) {
    bool clean = true;
    for (int module = 0; module < MODULES; ++module) {
        clean &= run->head[module] == run->count;
    }
    for (int pair = 0; pair < MODULES - 1; ++pair) {
        clean &= run->tokens[pair][FORWARD] == 0 && run->tokens[pair][BACKWARD] == 0;
    }
    return clean || fail_at_heads(run, "expected no instructions or tokens after FINISH");
}

/* Returns the next value of a xorshift generator, which is portable, unlike `rand`. */
static uint32_t next_random(uint32_t state) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* Schedules the modules in turns until FINISH. A turn has up to 2048 instructions, so that modules can run far ahead. */
static bool schedule(Run* run) {
    const char* seed = getenv("VTA_SAMPLE_SEED");
    /* Nonzero, because 0 is a fixed point of the generator. */
    uint32_t state = (uint32_t)(seed != NULL ? strtoul(seed, NULL, 10) : 1) * 2654435761u | 1;
    while (!run->finished) {
        state = next_random(state);
        const uint32_t limit = 1u << (state >> 8) % 12;
        bool progress = false;
        for (uint32_t i = 0; i < MODULES && !progress; ++i) {
            if (!advance(run, (int)((state % MODULES + i) % MODULES), limit, &progress)) {
                return false;
            }
        }
        if (!progress) {
            return fail_at_heads(run, "deadlock");
        }
    }
    return true;
}

static void log_counters(const Run* run) {
    fprintf(stderr, "vta: instructions=%" PRIu32, run->count);
    for (int i = 0; i < COUNTERS; ++i) {
        fprintf(stderr, " %s=%" PRIu64, COUNTER_NAMES[i], run->counters[i]);
    }
    fprintf(stderr, "\n");
}

/* Simulates a broken device if the environment requests it, to test error handling in byoc. */
static bool misbehaves(void) {
    const char* mode = getenv("VTA_SAMPLE_FAIL");
    if (mode != NULL && strcmp(mode, "hang") == 0) {
        for (;;) {
            sleep(1);
        }
    }
    return mode != NULL && strcmp(mode, "error") == 0;
}

VTADeviceHandle VTADeviceAlloc(void) {
    return calloc(1, sizeof(Device));
}

void VTADeviceFree(VTADeviceHandle handle) {
    free(handle);
}

int VTADeviceRun(VTADeviceHandle handle, vta_phy_addr_t insn_phy_addr, uint32_t insn_count, uint32_t wait_cycles) {
    /* Deadlocks are detected without a timeout. */
    (void)wait_cycles;
    if (misbehaves()) {
        return 1;
    }
    const uint8_t* bytes = find(insn_phy_addr, (uint64_t)insn_count * INSN_BYTES);
    if (handle == NULL || bytes == NULL) {
        fprintf(stderr, "vta: VTADeviceRun: expected a device and %" PRIu32 " instructions in an allocated buffer\n",
                insn_count);
        return 1;
    }
    Run run;
    memset(&run, 0, sizeof run);
    run.device = handle;
    run.count = insn_count;
    run.stream = malloc((size_t)insn_count * INSN_BYTES + 1);
    if (run.stream == NULL) {
        fprintf(stderr, "vta: VTADeviceRun: out of memory\n");
        return 1;
    }
    const bool done = fetch(&run, bytes) && schedule(&run) && check_end(&run);
    if (getenv("VTA_SAMPLE_LOG") != NULL) {
        log_counters(&run);
    }
    free(run.stream);
    return done ? 0 : 1;
}
