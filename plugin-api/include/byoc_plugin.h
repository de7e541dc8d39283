/* byoc_plugin.h: a backend for byoc in C or C++.
 *
 * A backend is a shared library that exports one function, byoc_plugin_entry. Built with a C compiler alone:
 *
 *     cc -std=c11 -O2 -shared -fPIC -I <here> -o libbyoc_mine.so mine.c
 *
 * and dropped into a directory that byoc searches, it is one. docs/writing-a-backend.md walks through a whole one,
 * plugins/samples/ has two. This file is plain C11 and clean C++.
 *
 * The rules, which hold for every function here:
 *
 * - Texts are UTF-8 and end with a NUL. Graphs, candidates, descriptions and options are JSON texts, whose schemas are
 *   docs/schema/graph.json, description.json and options.json. byoc_json.h, beside this file, reads them.
 * - Who allocates frees. No memory changes hands: a pointer that an entry is given is the host's and valid until the entry
 *   returns, unless its comment says otherwise; what an entry gives to a function of the host is copied before that
 *   function returns, unless its comment says otherwise.
 * - An entry returns BYOC_OK, or another status after it has called `fail` with a line for the user. Its answer goes to a
 *   function of the host, together with the `call` that the entry got.
 * - Structures grow at their end. Each begins with its size as its maker knows it: set `struct_size` in what you make, and
 *   look at it (BYOC_HAS) before you read a field that was added later than version 1. What is past it counts as NULL or 0.
 * - Entries may be called from several threads at once, also on the same object. What a run changes lies in its workspace.
 * - Nothing may be thrown or longjmp'ed out of an entry: C++ catches everything before it returns.
 */
#ifndef BYOC_PLUGIN_H
#define BYOC_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this file. A host refuses a plugin of another version and names both. */
#define BYOC_ABI 1u

/* Whether a structure is long enough to have a field: BYOC_HAS(host, cancelled). */
#define BYOC_HAS(pointer, field)                                                                                      \
    ((pointer)->struct_size >= (size_t)((const char *)(&(pointer)->field + 1) - (const char *)(pointer)))

/* What an entry returns. */
enum {
    BYOC_OK = 0,
    /* It failed; `fail` has said why. */
    BYOC_ERROR = 1,
    /* From `query`: the key is not known. That is no failure. */
    BYOC_UNKNOWN_KEY = 2
};

typedef struct byoc_host byoc_host;
typedef struct byoc_constant byoc_constant;
typedef struct byoc_reference byoc_reference;

/* A call of an entry by the host: where its answer goes. The host's, valid until the entry returns. (What follows the
 * field is the host's own business.) */
typedef struct byoc_call {
    /* The host's functions. Valid for as long as the object lives that the entry belongs to. */
    const byoc_host *host;
} byoc_call;

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

/* DLPack's DLDataType. */
typedef struct byoc_dtype {
    uint8_t code; /* 0 signed, 1 unsigned, 2 IEEE float, 4 bfloat, 6 bool */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} byoc_dtype;

/* DLPack's DLDevice. */
typedef struct byoc_device {
    int32_t kind; /* 1 is the host's memory */
    int32_t id;
} byoc_device;

/* DLPack's DLTensor, field by field: a pointer to one may be cast to the other. All of it is the host's memory: dense,
 * row-major, `data` aligned to 64 bytes. */
typedef struct byoc_tensor {
    void *data;
    byoc_device device;
    int32_t ndim;
    byoc_dtype dtype;
    int64_t *shape;   /* `ndim` dimensions */
    int64_t *strides; /* NULL: dense and row-major */
    uint64_t byte_offset;
} byoc_tensor;

/* The dimensions of a tensor. */
typedef struct byoc_dims {
    const int64_t *data;
    size_t count;
} byoc_dims;

/* -- Compile time: relay.ext.<name> -------------------------------------------------------------------------------- */

/* What a candidate is for. */
enum {
    BYOC_PATTERN = 0,  /* a match of an entry of the pattern table */
    BYOC_OPERATOR = 1, /* a single operator */
    BYOC_REGION = 2    /* a whole region, after partitioning */
};

/* What a backend is asked about. */
typedef struct byoc_candidate {
    size_t struct_size;
    uint32_t kind;          /* BYOC_PATTERN, BYOC_OPERATOR, BYOC_REGION */
    uint32_t outside_users; /* how many expressions outside use what comes out */
    const char *name;       /* the pattern's name, the operator's, or the backend's for a region */
    const char *check;      /* the name after `where` in the pattern's entry, or "" */
    const char *graph;      /* JSON: the original operators with their types */
    const byoc_constant *const *constants; /* what the graph's constant nodes stand for */
    size_t constant_count;
    const char *attrs; /* a JSON object: room for more */
} byoc_candidate;

/* Why a candidate is refused. The set is closed; another code counts as BYOC_UNSUPPORTED_OP. */
#define BYOC_UNSUPPORTED_OP "UnsupportedOp"
#define BYOC_UNSUPPORTED_DTYPE "UnsupportedDtype"
#define BYOC_UNSUPPORTED_SHAPE "UnsupportedShape"
#define BYOC_UNSUPPORTED_ATTR "UnsupportedAttr"
#define BYOC_UNSUPPORTED_LAYOUT "UnsupportedLayout"
#define BYOC_DYNAMIC_DIM "DynamicDim"
#define BYOC_QUANT_SCHEME "QuantScheme"
#define BYOC_NOT_CONSTANT "NotConstant"
#define BYOC_RESOURCE_LIMIT "ResourceLimit"
#define BYOC_UNAVAILABLE "Unavailable"
#define BYOC_NOT_PROFITABLE "NotProfitable"

/* A region to compile. */
typedef struct byoc_region {
    size_t struct_size;
    const char *symbol;
    const char *graph;                     /* JSON: operators and composites */
    const byoc_constant *const *constants; /* what the graph's constant nodes stand for */
    size_t constant_count;
    const char *options; /* a JSON object: cache_dir (a path, or null for no cache), cpu_features, threads, ... */
} byoc_region;

/* What a region compiled to: filled in by `compile`, copied by `compiled`. */
typedef struct byoc_compiled {
    size_t struct_size;
    const void *blob; /* in a form of the backend's own */
    size_t blob_size;
    const char *loader;         /* which loader: "mine" for loadbinary_mine */
    const char *const *symbols; /* what the blob defines; NULL: the region's own symbol and nothing else */
    size_t symbol_count;
    const char *source_language; /* the generated source's language ("c", "json"); NULL: there is no source */
    const char *source;
    const char *notes;    /* things worth knowing, one a line; NULL: none */
    const char *metadata; /* a JSON object to record beside the region; NULL: nothing */
} byoc_compiled;

/* A code generator. Give it to `register_codegen`. */
typedef struct byoc_codegen {
    size_t struct_size;
    /* Says what it looks for: `answer` with a description as JSON. */
    int32_t (*describe)(void *self, byoc_call *call);
    /* Whether it takes each candidate: `support` or `refuse` for every number below `count`. What it takes it has to
     * compile. NULL: it takes everything that it looks for. */
    int32_t (*judge)(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count);
    /* Makes code for a region: `compiled`. The same region and options give the same bytes. */
    int32_t (*compile)(void *self, byoc_call *call, const byoc_region *region);
    /* Everything that has no entry of its own: `answer` with bytes, or BYOC_UNKNOWN_KEY. NULL: no key is known. */
    int32_t (*query)(void *self, byoc_call *call, const char *key, const void *data, size_t size);
    /* The host is done with `self`. NULL: there is nothing to do. */
    void (*release)(void *self);
} byoc_codegen;

/* -- Run time: loadbinary_<key> ------------------------------------------------------------------------------------ */

/* A compiled region to load. */
typedef struct byoc_load {
    size_t struct_size;
    const char *symbol;
    const void *blob; /* what `compile` gave; it may be a mapped file: copy what is needed later */
    size_t blob_size;
    const byoc_constant *const *constants; /* those that `compile` saw, in the same order */
    size_t constant_count;
    /* A JSON object, as for `compile`. "region" says what `prepare` does not: {"inputs": [type, ...], "outputs": [...],
     * "metadata": {...}, "producer": {...}}, the types of the tensors that `run` will get. Compare them with the blob's. */
    const char *options;
} byoc_load;

/* One run. Nothing of it may be kept. */
typedef struct byoc_run {
    size_t struct_size;
    const byoc_tensor *inputs;
    size_t input_count;
    /* Sized as prepared; what they hold before is undefined; they overlap neither each other nor an input. Where `prepare`
     * gave a bound, write the real dimensions into `shape`. */
    byoc_tensor *outputs;
    size_t output_count;
    void *workspace; /* as prepared, aligned to 64 bytes; what it holds before is undefined */
    size_t workspace_size;
    uint64_t plan; /* what `prepare` gave for these dimensions */
} byoc_run;

/* A loaded region. Give it to `loaded`. */
typedef struct byoc_executable {
    size_t struct_size;
    /* Plans a run for these input dimensions: `output` for each output in order, then `prepared` if there is a workspace or
     * a plan. The host remembers the answer for the dimensions used lately, and asks again for others. */
    int32_t (*prepare)(void *self, byoc_call *call, const byoc_dims *inputs, size_t count);
    /* Computes. It should allocate nothing. */
    int32_t (*run)(void *self, byoc_call *call, const byoc_run *run);
    /* As in byoc_codegen. The host asks "plan.release" with {"plan": 7} when no run will name that plan again: drop what was
     * made for it, and answer BYOC_OK. */
    int32_t (*query)(void *self, byoc_call *call, const char *key, const void *data, size_t size);
    /* The host is done with `self`: free it. May be called on any thread. NULL: there is nothing to do. */
    void (*release)(void *self);
} byoc_executable;

/* A loader. Give it to `register_loader`. */
typedef struct byoc_loader {
    size_t struct_size;
    /* Makes a compiled region ready to run: `loaded`. */
    int32_t (*load)(void *self, byoc_call *call, const byoc_load *request);
    /* As in byoc_codegen. */
    int32_t (*query)(void *self, byoc_call *call, const char *key, const void *data, size_t size);
    void (*release)(void *self);
} byoc_loader;

/* -- The host ------------------------------------------------------------------------------------------------------ */

/* Levels of `log` and `log_level`. */
enum { BYOC_LOG_NOTHING = 0, BYOC_LOG_ERROR = 1, BYOC_LOG_WARN = 2, BYOC_LOG_INFO = 3, BYOC_LOG_DEBUG = 4, BYOC_LOG_TRACE = 5 };

/* The host's functions. The host's, constant, never NULL; valid for as long as the object lives whose entry got it. */
struct byoc_host {
    size_t struct_size;
    uint32_t abi; /* the newest version of this file that the host reads */
    uint32_t reserved;

    /* Answers. Each takes the call of the entry under way. */

    /* Why the entry fails: one line, lower case, no full stop; and what the user can do, or NULL. It counts when the entry
     * does not return BYOC_OK. */
    void (*fail)(byoc_call *call, const char *message, const char *hint);
    /* From `init`: the plugin's name, where it is not the one in byoc_plugin. */
    void (*rename)(byoc_call *call, const char *name);
    /* From `init`: offers relay.ext.<name>. The table stays the plugin's and lives as long as the library; `self` comes back
     * in each entry. */
    void (*register_codegen)(byoc_call *call, const char *name, const byoc_codegen *table, void *self);
    /* From `init`: offers loadbinary_<key>. As above. */
    void (*register_loader)(byoc_call *call, const char *key, const byoc_loader *table, void *self);
    /* From `init`: offers data under a name, as JSON; a host leaves alone what it does not know. */
    void (*register_data)(byoc_call *call, const char *name, const char *json);
    /* From `describe` (JSON text, without its NUL) and `query`: the answer. */
    void (*answer)(byoc_call *call, const void *data, size_t size);
    /* From `judge`: takes candidate `index`. */
    void (*support)(byoc_call *call, size_t index);
    /* From `judge`: does not. `detail` says what is wanted and what was found, `hint` (or NULL) what the user can do. */
    void (*refuse)(byoc_call *call, size_t index, const char *code, const char *detail, const char *hint);
    /* From `compile`: the code. */
    void (*compiled)(byoc_call *call, const byoc_compiled *result);
    /* From `load`: the loaded region. The table lives as long as the library; the host calls `release` on `self` in the end,
     * also when `load` fails after this. */
    void (*loaded)(byoc_call *call, const byoc_executable *table, void *self);
    /* From `prepare`: the next output's dimensions; or, with `exact` 0, the most that they can be. */
    void (*output)(byoc_call *call, const int64_t *dims, size_t count, int32_t exact);
    /* From `prepare`: bytes of scratch memory, and a number that comes back in byoc_run. */
    void (*prepared)(byoc_call *call, size_t workspace, uint64_t plan);

    /* Constants: handles into the host's memory, reference-counted. A constant that an entry is given is valid until the
     * entry returns. */

    /* Fills in a tensor over the constant's memory, which is valid as long as the handle. The first look may read a file. */
    void (*constant_tensor)(const byoc_constant *constant, byoc_tensor *tensor);
    /* Writes the digest of dtype, shape and bytes (hexadecimal, with a NUL) and returns its length, as snprintf does. */
    size_t (*constant_digest)(const byoc_constant *constant, char *text, size_t size);
    /* Another reference, for a plugin that keeps the constant. */
    const byoc_constant *(*constant_retain)(const byoc_constant *constant);
    /* Gives a reference back that `constant_retain` gave. */
    void (*constant_release)(const byoc_constant *constant);

    /* Services. */

    /* The number of threads that `parallel_for` uses. A library with a pool of its own is sized by it. */
    size_t (*num_threads)(const byoc_host *host);
    /* Calls `task` with every number below `count`, on several threads, and returns when all calls have. Runs inline when it
     * is called from inside a task. */
    int32_t (*parallel_for)(byoc_call *call, size_t count, void (*task)(void *context, size_t index), void *context);
    /* Something happened that belongs in the trace. `fields` is a JSON object. */
    void (*event)(const byoc_host *host, const char *name, const char *fields);
    /* Adds to a counter, such as a device's cycles. */
    void (*counter)(const byoc_host *host, const char *name, uint64_t amount);
    /* The most detailed level that anybody listens to. */
    int32_t (*log_level)(const byoc_host *host);
    /* A message; shown with -v. */
    void (*log)(const byoc_host *host, int32_t level, const char *target, const char *message);
    /* Whether nobody waits any more for what is under way; long work looks now and then, and gives up. */
    int32_t (*cancelled)(const byoc_host *host);
    /* Makes a graph executable with the host's reference kernels; NULL, and `fail` was called, where it cannot. The plugin's,
     * until `reference_release`. */
    byoc_reference *(*reference)(byoc_call *call, const char *graph, const byoc_constant *const *constants, size_t count);
    /* Answers the `prepare` under way. */
    int32_t (*reference_prepare)(const byoc_reference *reference, byoc_call *call, const byoc_dims *inputs, size_t count);
    /* Computes the outputs of a run with its inputs and workspace. */
    int32_t (*reference_run)(const byoc_reference *reference, byoc_call *call, const byoc_run *run);
    void (*reference_release)(byoc_reference *reference);
    /* A service that was added after version 1: what its documentation says, valid for the life of the process. NULL where
     * this host does not have it. */
    void *(*get_service)(const byoc_host *host, const char *name);
};

/* -- The library --------------------------------------------------------------------------------------------------- */

/* What a plugin is. The plugin's; lives as long as the library. */
typedef struct byoc_plugin {
    uint32_t abi;         /* BYOC_ABI; the first field in every version */
    uint32_t struct_size; /* sizeof(byoc_plugin) */
    const char *name;     /* letters, digits, _ and - */
    const char *version;
    /* Registers code generators and loaders. `path` is the library's file, `options` a JSON object with host_api_version. May
     * be called more than once; each call is for itself. */
    int32_t (*init)(byoc_call *call, const char *path, const char *options);
} byoc_plugin;

#if defined(_WIN32)
#define BYOC_EXPORT __declspec(dllexport)
#else
#define BYOC_EXPORT __attribute__((visibility("default")))
#endif

/* The one function that a plugin exports. `host_abi` is the newest version of this file that the host reads; a plugin that
 * has nothing of that version or an older one gives NULL. Must not call anything, as it is asked who the plugin is. */
BYOC_EXPORT const byoc_plugin *byoc_plugin_entry(uint32_t host_abi);

#ifdef __cplusplus
}
#endif

#endif
