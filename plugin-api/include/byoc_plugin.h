/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* byoc_plugin.h: a backend for byoc in C or C++.
 *
 * A plugin is a shared library that exports one function, byoc_plugin_entry. A C compiler is sufficient to build one:
 *
 *     cc -std=c11 -O2 -shared -fPIC -I <here> -o libbyoc_mine.so mine.c
 *
 * byoc finds the library in any directory that it searches. docs/writing-a-backend.md walks through a complete backend,
 * plugins/samples/ has two. This file is valid C11 and C++11.
 *
 * The rules, which apply to every function here:
 *
 * - Texts are UTF-8 and terminated by a NUL. Graphs, candidates, descriptions and options are JSON texts, with the
 *   schemas docs/schema/graph.json, description.json and options.json. byoc_json.h, next to this file, reads them.
 * - Memory is freed by the side that allocated it. A pointer that is passed to an entry belongs to the host and is
 *   valid until the entry returns, unless its comment says otherwise; data that an entry passes to a function of the host
 *   is copied before that function returns, unless its comment says otherwise.
 * - An entry returns BYOC_OK, or another status after it has called `fail` with a message for the user. Its result is
 *   passed to a function of the host, together with the entry's `call`.
 * - Set `struct_size` in structures that you fill in, and check it (BYOC_HAS) before you read a field that was added
 *   after the first release of this file; its comment says so.
 * - Entries may be called from several threads at once, also on the same object. Keep the state of a run in its
 *   workspace.
 * - No exception or longjmp may leave an entry: C++ catches everything before it returns.
 *
 * The promise:
 *
 * A host loads every plugin whose BYOC_ABI is between 1 and the host's own. Within a version, nothing is removed and
 * nothing changes its meaning: a structure grows at its end only and begins with its size, fields beyond the end of a
 * shorter structure count as NULL or 0, and fields beyond the end known to the reader are ignored. In a shorter
 * byoc_plugin, a missing name is that of the file and a missing version is "0"; `init` is required. Every
 * deprecated feature keeps working.
 */
#ifndef BYOC_PLUGIN_H
#define BYOC_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this file. A host loads plugins of every version from 1 to its own, and rejects others with both numbers. */
#define BYOC_ABI 1u

/* Size of a buffer for the digest of a constant, in characters: 64 hexadecimal digits and a NUL. */
#define BYOC_DIGEST_SIZE 65

/* Tests that a structure is long enough to have a field: BYOC_HAS(host, cancelled). */
#define BYOC_HAS(pointer, field)                                                                                      \
    ((pointer)->struct_size >= (size_t)((const char *)(&(pointer)->field + 1) - (const char *)(pointer)))

/* Status that an entry returns. */
enum {
    BYOC_OK = 0,
    /* The entry failed, and has called `fail` with the reason. */
    BYOC_ERROR = 1,
    /* From `query`: the key is unknown. Not a failure. */
    BYOC_UNKNOWN_KEY = 2
};

typedef struct byoc_host byoc_host;
typedef struct byoc_constant byoc_constant;
typedef struct byoc_reference byoc_reference;

/* Call of an entry by the host: receives the result. Belongs to the host, valid until the entry returns. (The memory
 * after the field is private to the host.) */
typedef struct byoc_call {
    /* The host's functions. Valid as long as the object that the entry belongs to. */
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

/* DLPack's DLTensor, field by field: a pointer to one may be cast to the other. All tensors are in host memory: dense,
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

/* Dimensions of a tensor. */
typedef struct byoc_dims {
    const int64_t *data;
    size_t count;
} byoc_dims;

/* -- Compile time: relay.ext.<name> -------------------------------------------------------------------------------- */

/* Kind of a candidate. */
enum {
    BYOC_PATTERN = 0,  /* a match of an entry of the pattern table */
    BYOC_OPERATOR = 1, /* a single operator */
    BYOC_REGION = 2    /* a whole region, after partitioning */
};

/* Candidate on which a backend gives a verdict. */
typedef struct byoc_candidate {
    size_t struct_size;
    uint32_t kind;          /* BYOC_PATTERN, BYOC_OPERATOR, BYOC_REGION */
    uint32_t outside_users; /* number of expressions outside that use the result */
    const char *name;       /* name of the pattern, of the operator, or of the backend for a region */
    const char *check;      /* name after `where` in the pattern's entry, or "" */
    const char *graph;      /* JSON: the original operators with their types; for a region also composites, which have the
                             * operators of a match in their bodies, as in byoc_region */
    const byoc_constant *const *constants; /* the constants of the graph's constant nodes, those in bodies included */
    size_t constant_count;
    const char *attrs; /* a JSON object: {"backend_options": {"half": "true"}, "device": "1"} are the user's choices, as in
                        * the options of `compile`, and missing if there are none: see docs/boundary.md. "options" has
                        * the same object as a text, the only form that hosts before 0.2 have. Later hosts may add
                        * attributes */
} byoc_candidate;

/* Codes of a refusal. The set is closed; another code counts as BYOC_UNSUPPORTED_OP. */
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

/* Codes for `refuse` that are no refusals. BYOC_SUPPORTED supports the candidate, and `detail` is an estimate of one run of it as a
 * JSON object: {"nanoseconds": 5000, "bytes": 4096, "launches": 2}, each optional, and numbers under other names. BYOC_SPLIT, for a
 * BYOC_REGION, asks for regions of at most so many operators and composites: `detail` is the number. */
#define BYOC_SUPPORTED "Supported"
#define BYOC_SPLIT "Split"

/* Code of an error, for `fail_with`: the work was cancelled by the host. */
#define BYOC_CANCELLED "Cancelled"

/* Region to compile. */
typedef struct byoc_region {
    size_t struct_size;
    const char *symbol;
    const char *graph;                     /* JSON: operators and composites */
    const byoc_constant *const *constants; /* the constants of the graph's constant nodes, those in bodies included */
    size_t constant_count;
    const char *options; /* a JSON object: cache_dir (a path, or null for no cache), cpu_features, backend_options, device,
                          * ...: docs/schema/options.json */
} byoc_region;

/* Compiled region: filled in by `compile`, copied by `compiled`. */
typedef struct byoc_compiled {
    size_t struct_size;
    const void *blob; /* in the backend's own format */
    size_t blob_size;
    const char *loader;         /* key of the loader: "mine" for loadbinary_mine */
    const char *const *symbols; /* functions that the blob defines; NULL: the region's own symbol and nothing else */
    size_t symbol_count;
    const char *source_language; /* language of the generated source ("c", "json"); NULL: no source */
    const char *source;
    const char *notes;    /* remarks for the user, one per line; NULL: none */
    const char *metadata; /* a JSON object to record with the region; NULL: nothing */
} byoc_compiled;

/* Key of a code generator's `query` for a region as C99, part of a program that is exported (`byoc export --backend`).
 *
 * The data is a JSON object and a NUL, and after them the bytes of the constants, one after another, which are copied
 * before they are read as numbers:
 *
 *     {"version": 1, "language": "c99", "symbol": "f", "graph": {...},
 *      "constants": [{"dtype": "float32", "dims": [16, 3], "size": 192, "digest": "..."}], "options": {...}}
 *
 * The graph and the options are those of `compile`. The answer is a JSON object:
 *
 *     {"source": "...", "workspace": 4096, "status": false, "constant_bytes": 0}
 *
 * "source" is the text of a C99 file that is compiled alone, and defines
 *
 *     void SYMBOL(const void *const *in, void *const *out, const void *const *constants, void *work);
 *
 * Inputs, outputs and constants are dense and row-major; constants[i] is constant i, and NULL if the text contains neither
 * constants[i] nor an index that is computed. "workspace" is the size of `work` in bytes, aligned to 64. With "status": true
 * the function returns an int, 0 for success. "constant_bytes" is the size of the constant arrays in the text, for the
 * report. The last three may be missing. A backend without code for the region answers
 *
 *     {"refused": "expected float32, found int8", "hint": "..."}
 */
#define BYOC_PROGRAM_KEY "byoc.program.1"

/* Key of `query` for the devices of the backend. The data is {}, and the answer, after which `byoc plugins show` lists the
 * devices and --device NAME=ID chooses one:
 *
 *     [{"id": "0", "name": "Chip A", "memory": 8589934592, "about": "float32, float16"}]
 *
 * "memory" is in bytes. "name", "memory" and "about" may be missing. */
#define BYOC_DEVICES_KEY "byoc.devices.1"

/* Key of `query` for what the backend lacks on this machine, such as a vendor's library. The data is {}; the answer, which `byoc
 * plugins` prints, is {"reason": "...", "hint": "..."}. A backend that lacks nothing does not answer. */
#define BYOC_LACK_KEY "byoc.lack.1"

/* Key of `query` for the description under the options and on the device of the user, with the data
 * {"backend_options": {"half": "true"}, "device": "1"}. The answer has the form of `describe`; without one, the description
 * of `describe` holds. */
#define BYOC_DESCRIBE_KEY "byoc.describe.1"

/* Key of `query` for the claims on a whole module, sent before anything else to a code generator whose description has
 * "whole_graph": true. The data is a JSON object, a NUL, and the bytes of the constants that have a "size", in order:
 *
 *     {"version": 1, "graphs": [{"graph": {...}, "taken": [{"node": 3, "backend": "other"}]}],
 *      "constants": [{"dtype": "float32", "dims": [16], "size": 64, "digest": "..."}], "options": {...}}
 *
 * The answer names nodes of these graphs that are operators; each set becomes one region:
 *
 *     {"regions": [{"graph": 0, "nodes": [1, 2, 5]}],
 *      "reasons": [{"graph": 0, "nodes": [7], "reason": "..."}], "reason": "text for all other operators"}
 *
 * Rules: docs/boundary.md, "The whole module before the verdicts". BYOC_UNKNOWN_KEY: the host asks about patterns and
 * operators. */
#define BYOC_CLAIM_KEY "byoc.claim.1"

/* Code generator, for `register_codegen`. */
typedef struct byoc_codegen {
    size_t struct_size;
    /* Describes the backend: pass a description as JSON to `answer`. */
    int32_t (*describe)(void *self, byoc_call *call);
    /* Gives a verdict on each candidate: call `support` or `refuse` for every index below `count`. A supported
     * candidate must compile. NULL: everything in the description is supported. */
    int32_t (*judge)(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count);
    /* Generates code for a region: pass it to `compiled`. Deterministic: the same region and options give the same
     * bytes. Metadata that the host reads: docs/boundary.md, "Frozen and open parts". */
    int32_t (*compile)(void *self, byoc_call *call, const byoc_region *region);
    /* Requests that have no entry of their own: pass bytes to `answer`, or return BYOC_UNKNOWN_KEY. NULL: no key is
     * known. The host asks BYOC_PROGRAM_KEY for a region as C. With "link": true in the metadata of a region, the host asks
     * BYOC_LINK_KEY once for each model, after all regions are compiled: see there. */
    int32_t (*query)(void *self, byoc_call *call, const char *key, const void *data, size_t size);
    /* Releases `self`, which the host no longer uses. NULL: nothing to do. */
    void (*release)(void *self);
} byoc_codegen;

/* Key of `query` for the link step of a model. Request and answer have the same form: the size of a JSON text as 8 bytes,
 * little-endian, the text (without a NUL), and data. A blob is [offset, size] in the data.
 *
 *     request  {"options": {...}, "regions": [{"symbol": "r0", "loader": "mine", "metadata": {...}, "blob": [0, 64]}]}
 *     answer   {"shared": [0, 4096], "regions": [{"symbol": "r0", "blob": [4096, 16]}], "notes": ["..."]}
 *
 * The shared data are one more constant of `load`, the one whose index is "shared" of "region" in its options. */
#define BYOC_LINK_KEY "byoc.link.1"

/* -- Run time: loadbinary_<key> ------------------------------------------------------------------------------------ */

/* Compiled region to load. */
typedef struct byoc_load {
    size_t struct_size;
    const char *symbol;
    const void *blob; /* made by `compile`; may be a mapped file: copy what is needed after `load` */
    size_t blob_size;
    const byoc_constant *const *constants; /* the constants that `compile` saw, in the same order */
    size_t constant_count;
    /* A JSON object, as for `compile`. "region" gives what `prepare` does not: {"inputs": [type, ...], "outputs":
     * [...], "metadata": {...}, "producer": {...}}, the types of the tensors that `run` will receive. Compare them with
     * the blob's. */
    const char *options;
} byoc_load;

/* One run. No pointer in it may be kept. */
typedef struct byoc_run {
    size_t struct_size;
    const byoc_tensor *inputs;
    size_t input_count;
    /* Sized as prepared; their contents are undefined before the run; they overlap neither each other nor an input, but for
     * the pairs that the metadata "in_place" lists, which may have one address. If `prepare` gave a bound, write the actual
     * dimensions into `shape`. */
    byoc_tensor *outputs;
    size_t output_count;
    void *workspace; /* as prepared, aligned to 64 bytes; contents undefined before the run */
    size_t workspace_size;
    uint64_t plan; /* from `prepare` for these dimensions */
} byoc_run;

/* Loaded region, for `loaded`. */
typedef struct byoc_executable {
    size_t struct_size;
    /* Plans a run for these input dimensions, once for a region whose dimensions are all known, else once per set of
     * dimensions, and possibly on several threads at once: call `output` for each output in order, then `prepared` if there is a
     * workspace or a plan. The host keeps the results for the dimensions that were used last, see "plan.release". */
    int32_t (*prepare)(void *self, byoc_call *call, const byoc_dims *inputs, size_t count);
    /* Computes the outputs. It should not allocate. */
    int32_t (*run)(void *self, byoc_call *call, const byoc_run *run);
    /* As in byoc_codegen. The host asks "plan.release" with {"plan": 7} when no further run will use that plan, unless
     * `prepare` returns it again: free its resources, and return BYOC_OK. A model keeps the plans of 64 sets of
     * dimensions, or of one per region if it has more regions, and 256 MiB of what they declare. Plans of regions
     * whose dimensions are all known live as long as the region, whose `release` ends every plan. */
    int32_t (*query)(void *self, byoc_call *call, const char *key, const void *data, size_t size);
    /* Frees `self`, which the host no longer uses. May be called on any thread. NULL: nothing to do. */
    void (*release)(void *self);
} byoc_executable;

/* Loader, for `register_loader`. */
typedef struct byoc_loader {
    size_t struct_size;
    /* Loads a compiled region: pass the executable to `loaded`. */
    int32_t (*load)(void *self, byoc_call *call, const byoc_load *request);
    /* As in byoc_codegen. */
    int32_t (*query)(void *self, byoc_call *call, const char *key, const void *data, size_t size);
    void (*release)(void *self);
} byoc_loader;

/* -- The host ------------------------------------------------------------------------------------------------------ */

/* Levels of `log` and `log_level`. */
enum { BYOC_LOG_NOTHING = 0, BYOC_LOG_ERROR = 1, BYOC_LOG_WARN = 2, BYOC_LOG_INFO = 3, BYOC_LOG_DEBUG = 4, BYOC_LOG_TRACE = 5 };

/* Functions of the host. Constant, never NULL; valid as long as the object whose entry received it. */
struct byoc_host {
    size_t struct_size;
    uint32_t abi; /* newest version of this file that the host supports */
    uint32_t reserved;

    /* Results. Each takes the call of the current entry. */

    /* Sets the error of the entry: one line, lower case, no full stop; and a remedy for the user, or NULL. Has an
     * effect if the entry does not return BYOC_OK. */
    void (*fail)(byoc_call *call, const char *message, const char *hint);
    /* From `init`: sets the plugin's name, if it differs from the one in byoc_plugin. */
    void (*rename)(byoc_call *call, const char *name);
    /* From `init`: registers relay.ext.<name>. The table belongs to the plugin and must live as long as the library;
     * `self` is passed to each entry. */
    void (*register_codegen)(byoc_call *call, const char *name, const byoc_codegen *table, void *self);
    /* From `init`: registers loadbinary_<key>. As above. */
    void (*register_loader)(byoc_call *call, const char *key, const byoc_loader *table, void *self);
    /* From `init`: registers data under a name, as JSON; a host ignores unknown names. */
    void (*register_data)(byoc_call *call, const char *name, const char *json);
    /* From `describe` (JSON text, without its NUL) and `query`: sets the answer. */
    void (*answer)(byoc_call *call, const void *data, size_t size);
    /* From `judge`: declares candidate `index` supported. */
    void (*support)(byoc_call *call, size_t index);
    /* From `judge`: refuses it. `detail` gives what was expected and found, `hint` (or NULL) a remedy for the user. */
    void (*refuse)(byoc_call *call, size_t index, const char *code, const char *detail, const char *hint);
    /* From `compile`: sets the compiled region. */
    void (*compiled)(byoc_call *call, const byoc_compiled *result);
    /* From `load`: sets the loaded region. The table must live as long as the library; the host eventually calls
     * `release` on `self`, also if `load` fails after this. */
    void (*loaded)(byoc_call *call, const byoc_executable *table, void *self);
    /* From `prepare`: adds the dimensions of the next output; if `exact` is 0, upper bounds of them. */
    void (*output)(byoc_call *call, const int64_t *dims, size_t count, int32_t exact);
    /* From `prepare`: sets the size of the scratch memory in bytes, and a number that is passed back in byoc_run. */
    void (*prepared)(byoc_call *call, size_t workspace, uint64_t plan);

    /* Constants: reference-counted handles to memory of the host. A constant that is passed to an entry is valid until
     * the entry returns. */

    /* Fills in a tensor over the constant's memory, which is valid as long as the handle. The first access may read a
     * file. */
    void (*constant_tensor)(const byoc_constant *constant, byoc_tensor *tensor);
    /* Writes the digest of dtype, shape and bytes (hexadecimal, with a NUL) and returns its length, as snprintf does:
     * at most BYOC_DIGEST_SIZE - 1. */
    size_t (*constant_digest)(const byoc_constant *constant, char *text, size_t size);
    /* Adds a reference, for a plugin that keeps the constant. */
    const byoc_constant *(*constant_retain)(const byoc_constant *constant);
    /* Releases a reference that was added by `constant_retain`. */
    void (*constant_release)(const byoc_constant *constant);

    /* Services. */

    /* Number of threads that `parallel_for` uses, the calling thread included. Use it as the size of a library's own
     * thread pool. It never changes for one host; a region keeps the host of its `load` in `prepare` and `run`, and other
     * regions may be loaded with another host and another number. */
    size_t (*num_threads)(const byoc_host *host);
    /* Calls `task` with every index below `count`, on several threads, and returns when all calls have returned. Runs
     * inline when called from inside a task. If the run is cancelled or a task fails, it reports that to the host and
     * returns another value than BYOC_OK: return that value. */
    int32_t (*parallel_for)(byoc_call *call, size_t count, void (*task)(void *context, size_t index), void *context);
    /* Records an event in the trace. `fields` is a JSON object. */
    void (*event)(const byoc_host *host, const char *name, const char *fields);
    /* Adds to a counter, such as a device's cycles. */
    void (*counter)(const byoc_host *host, const char *name, uint64_t amount);
    /* Most verbose level that is enabled. */
    int32_t (*log_level)(const byoc_host *host);
    /* Logs a message; shown with -v. */
    void (*log)(const byoc_host *host, int32_t level, const char *target, const char *message);
    /* Returns nonzero if the current work was cancelled; long work polls it, and fails early. */
    int32_t (*cancelled)(const byoc_host *host);
    /* Makes a graph executable with the host's reference kernels. Returns NULL after a call of `fail` if it cannot.
     * Belongs to the plugin until `reference_release`. */
    byoc_reference *(*reference)(byoc_call *call, const char *graph, const byoc_constant *const *constants, size_t count);
    /* Prepares a run of the reference; the result becomes that of the current `prepare`. */
    int32_t (*reference_prepare)(const byoc_reference *reference, byoc_call *call, const byoc_dims *inputs, size_t count);
    /* Computes the outputs of a run with its inputs and workspace. */
    int32_t (*reference_run)(const byoc_reference *reference, byoc_call *call, const byoc_run *run);
    void (*reference_release)(byoc_reference *reference);
    /* Returns a service that was added after version 1: its type is given in its documentation, and it is valid for the
     * life of the process. NULL if this host does not have it. */
    void *(*get_service)(const byoc_host *host, const char *name);

    /* Added after the first release of this file: check BYOC_HAS(host, ...) before the use of one. */

    /* As `fail`, with a kind of failure: a code of a refusal, BYOC_CANCELLED, or NULL for none. */
    void (*fail_with)(byoc_call *call, const char *code, const char *message, const char *hint);
    /* Writes the constant's name in the model, which may be empty, with a NUL, and returns its length, as snprintf
     * does. */
    size_t (*constant_name)(const byoc_constant *constant, char *text, size_t size);
    /* As `parallel_for`, with the number of the worker that calls `task`, below `num_threads`. No two calls of
     * one loop with the same worker overlap, so that a worker may own a part of the workspace. */
    int32_t (*parallel_for_workers)(byoc_call *call, size_t count,
                                    void (*task)(void *context, size_t worker, size_t index), void *context);
};

/* Name of a service for `get_service`: options of the current run. */
#define BYOC_RUN_OPTIONS_SERVICE "byoc.run_options.1"

/* The service "byoc.run_options.1". */
typedef struct byoc_run_options {
    size_t struct_size;
    /* Returns the options that the user set for the current run, of those that the description marks with "run": true: a JSON
     * object with texts, {"level": "high"}, or NULL for none. `backend` is the name of relay.ext.<backend>. To be called on the
     * thread of `run`; the text is valid until `run` returns. */
    const char *(*options)(const char *backend);
} byoc_run_options;

/* Name of a service for `get_service`: graphs as ONNX models, for backends whose compilers take ONNX. */
#define BYOC_ONNX_SERVICE "byoc.onnx.1"

/* Parts of an answer of `write`. */
#define BYOC_ONNX_MODEL 0   /* bytes of the model */
#define BYOC_ONNX_WEIGHTS 1 /* bytes of the weights that stand outside of the model */
#define BYOC_ONNX_INFO 2    /* a JSON object: "opset", "inputs" and "outputs" (names, in the order of the graph's), and "nodes",
                             * a list of {"name", "op", "operators"}. "operators" has the indices of the graph's nodes that
                             * the node computes: [3], or [3, 1] for node 1 in the body of composite 3 */
#define BYOC_ONNX_ERROR 3   /* a JSON object: "message" and "hint" */

/* The service "byoc.onnx.1". To be called in any entry of a plugin, on any thread; a host that only runs models lacks it. */
typedef struct byoc_onnx {
    size_t struct_size;
    /* Writes a graph (JSON, as in byoc_candidate and byoc_region) as an ONNX model; composites become their operators.
     * `constants` are descriptors as `constant_tensor` gives them. `options` is a JSON object, or NULL: "opset" (a number),
     * "form" of quantized operators ("qdq" or "integer"), "float_bias" (true: constant biases of quantized operators in float32,
     * instead of int32 with a DequantizeLinear), "weights_file" (the name of a file as the model is to spell it:
     * weights of 1 KiB and more then come as BYOC_ONNX_WEIGHTS). `receive` gets the answer in pieces, whose bytes are valid
     * during its call: the pieces of a part in order, those of different parts in any. Returns BYOC_OK or BYOC_ERROR. */
    int32_t (*write)(const char *graph, const byoc_tensor *constants, size_t constant_count, const char *options,
                     void *context, void (*receive)(void *context, int32_t part, const void *bytes, size_t size));
} byoc_onnx;

/* -- The library --------------------------------------------------------------------------------------------------- */

/* Plugin. Belongs to the plugin; must live as long as the library. */
typedef struct byoc_plugin {
    uint32_t abi;         /* BYOC_ABI; the first field in every version */
    uint32_t struct_size; /* sizeof(byoc_plugin); the second field in every version */
    const char *name;     /* letters, digits, _ and - */
    const char *version;
    /* Registers code generators and loaders. `path` is the library's file, `options` a JSON object with
     * host_api_version. May be called more than once; the calls are independent. */
    int32_t (*init)(byoc_call *call, const char *path, const char *options);
} byoc_plugin;

#if defined(_WIN32)
#define BYOC_EXPORT __declspec(dllexport)
#else
#define BYOC_EXPORT __attribute__((visibility("default")))
#endif

/* The one function that a plugin exports. `host_abi` is the newest version of this file that the host supports; a
 * plugin that has no implementation of that version or an older one returns NULL. Must not call anything: it only
 * identifies the plugin. */
BYOC_EXPORT const byoc_plugin *byoc_plugin_entry(uint32_t host_abi);

#ifdef __cplusplus
}
#endif

#endif
