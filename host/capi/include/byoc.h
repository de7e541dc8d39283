/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* byoc.h: compile and run neural-network models from C.
 *
 * Rules that apply to every function:
 *
 * - A function that can fail returns NULL, or an error that the caller frees with byoc_error_free. After an error, the
 *   results are not set, and the contents of the output memory are unspecified.
 * - Objects are created by the library and freed by the *_free function of their type, which accepts NULL. A model
 *   retains the parts of its session that it uses, so the two may be freed in any order.
 * - Set `struct_size` in structures that you fill in, and zero all other fields: a field that is 0 has its default.
 *   Structures are only extended at the end; fields beyond the end of a shorter structure are treated as 0.
 * - Strings are UTF-8 and NUL-terminated. A string that a function returns belongs to its object.
 * - Every function except *_free may be called concurrently from several threads, also on the same object.
 * - In the child of a fork, sessions and models of the parent can only be freed; every other call returns an error.
 */
#ifndef BYOC_H
#define BYOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct byoc_session byoc_session;
typedef struct byoc_model byoc_model;
typedef struct byoc_results byoc_results;
typedef struct byoc_cancel byoc_cancel;
typedef struct byoc_error byoc_error;

/* Returns the version of the library, such as "0.1.0". */
const char *byoc_version(void);

/* -- Errors -------------------------------------------------------------------------------------------------------- */

/* Error kind. Later versions may add kinds. */
enum {
    BYOC_ERROR_MODEL = 1,         /* the model cannot be read, or is invalid or unsupported */
    BYOC_ERROR_BACKEND = 2,       /* a backend is missing or misnamed, or its plugin failed */
    BYOC_ERROR_ARTIFACT = 3,      /* an artifact cannot be read or written, or is corrupt */
    BYOC_ERROR_INPUT = 4,         /* inputs or output memory do not match the model */
    BYOC_ERROR_RUN = 5,           /* a run failed */
    BYOC_ERROR_OUT_OF_MEMORY = 6, /* the memory limit was exceeded, or the system is out of memory */
    BYOC_ERROR_CANCELLED = 7,     /* the operation was cancelled */
    BYOC_ERROR_TIMED_OUT = 8,     /* the operation did not finish before its deadline */
    BYOC_ERROR_ARGUMENT = 9,      /* an argument of a function is invalid: NULL, not UTF-8, too short */
    BYOC_ERROR_INTERNAL = 10      /* a bug in the library */
};

int byoc_error_kind(const byoc_error *error);
/* Stable code such as "E0605", described on its own documentation page; "" for an invalid argument. */
const char *byoc_error_code(const byoc_error *error);
/* One-line message with the expected and the found values. */
const char *byoc_error_message(const byoc_error *error);
/* Additional context, one item per line; may be "". */
const char *byoc_error_context(const byoc_error *error);
/* Remedy; may be "". */
const char *byoc_error_help(const byoc_error *error);
/* Complete error as multi-line text. */
const char *byoc_error_text(const byoc_error *error);
void byoc_error_free(byoc_error *error);

/* -- Sessions ------------------------------------------------------------------------------------------------------ */

/* Pair of a name and a value. */
typedef struct byoc_pair {
    const char *name;
    const char *value;
} byoc_pair;

typedef struct byoc_session_options {
    size_t struct_size;
    const char *const *plugin_dirs; /* plugin directories, in order of precedence; no others are searched */
    size_t plugin_dir_count;
    int search_default_dirs; /* nonzero: also search the default directories of the command line */
    int refuse_native_code;  /* nonzero: artifacts with native code are refused */
    size_t threads;          /* 0: one per processor */
    size_t max_memory;       /* bytes, for the entire process; 0: half of the available memory */
    const char *cache_dir;   /* cache directory of the backends; NULL: none */
    const byoc_pair *devices; /* backend and device */
    size_t device_count;
} byoc_session_options;

/* Creates a session: threads and plugins. `options` may be NULL. */
byoc_error *byoc_session_create(const byoc_session_options *options, byoc_session **session);
void byoc_session_free(byoc_session *session);

/* -- Models -------------------------------------------------------------------------------------------------------- */

/* Size of a named input dimension; -1 leaves the dimension open, so that its size may differ from run to run. */
typedef struct byoc_dim {
    const char *name;
    int64_t size;
} byoc_dim;

/* Shape of a named input, with `rank` sizes. It fixes the dimensions of the input. */
typedef struct byoc_input_shape {
    const char *name;
    const int64_t *shape;
    size_t rank;
} byoc_input_shape;

typedef struct byoc_compile_options {
    size_t struct_size;
    const char *const *backends; /* in priority order; "auto": every backend found; empty: only the host */
    size_t backend_count;
    const byoc_pair *backend_options; /* "backend.option" and its value */
    size_t backend_option_count;
    const byoc_dim *dims;
    size_t dim_count;
    void (*progress)(void *context, const char *stage); /* called at the start of each compilation stage */
    void *progress_context;
    const byoc_input_shape *input_shapes;
    size_t input_shape_count;
    int no_adapt; /* nonzero: input shapes that come twice in a row get no program of their own */
    const char *precision; /* lowest precision that a float32 model allows: "f32" (NULL), "tf32", "bf16", "f16" */
} byoc_compile_options;

/* Compiles and loads a model: .onnx, .relay, or a directory in ONNX test-data layout. `options` may be NULL. */
byoc_error *byoc_model_compile(const byoc_session *session, const char *path, const byoc_compile_options *options,
                               byoc_model **model);
/* Compiles and loads an ONNX model from the bytes of its file. */
byoc_error *byoc_model_compile_bytes(const byoc_session *session, const void *bytes, size_t size,
                                     const byoc_compile_options *options, byoc_model **model);
/* Loads an artifact. */
byoc_error *byoc_model_load(const byoc_session *session, const char *path, byoc_model **model);
byoc_error *byoc_model_load_bytes(const byoc_session *session, const void *bytes, size_t size, byoc_model **model);
/* Writes an artifact; the file appears once it is complete. */
byoc_error *byoc_model_save(const byoc_model *model, const char *path);
void byoc_model_free(byoc_model *model);

/* Options of byoc_export_onnx. */
typedef struct byoc_onnx_options {
    size_t struct_size;
    const char *stage; /* "imported", "quantized" or "simplified"; NULL: "simplified" */
    int64_t opset; /* operator set; 0: 17, or the lowest after it that has all operators */
    int integer_form; /* nonzero: ConvInteger and MatMulInteger in place of QuantizeLinear and DequantizeLinear */
    const byoc_dim *dims; /* sizes of dimensions, which stay symbolic otherwise */
    size_t dim_count;
} byoc_onnx_options;

/* Writes a model (.onnx, .relay, or a directory in ONNX test-data layout) as ONNX at a stage of its compilation, and weights from
   2 GB on to a file beside it; the files appear once they are complete. `options` may be NULL. */
byoc_error *byoc_export_onnx(const char *model, const char *path, const byoc_onnx_options *options);

/* Returns the placement of each operator, with the refusals of other backends, as the JSON of `byoc explain --json`. */
const char *byoc_model_explanation(const byoc_model *model);
/* Returns the plan of a run as JSON: functions with their steps, registers and arenas. */
const char *byoc_model_plan(const byoc_model *model);
/* Returns the warnings from compiling and loading the model, one per line; "" if there are none. */
const char *byoc_model_warnings(const byoc_model *model);

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

/* Tensor view with the layout of DLPack's DLTensor: pointers to the two types may be cast to each other. Tensors are in
 * host memory, dense and row-major. */
typedef struct byoc_tensor_view {
    void *data;
    struct {
        int32_t kind; /* 1: host memory */
        int32_t id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code; /* 0 signed, 1 unsigned, 2 IEEE float, 4 bfloat, 6 bool */
        uint8_t bits;
        uint16_t lanes; /* 1 */
    } dtype;
    int64_t *shape;   /* `ndim` dimensions */
    int64_t *strides; /* in elements; NULL: dense and row-major */
    uint64_t byte_offset;
} byoc_tensor_view;

/* Model input or output. */
typedef struct byoc_port {
    size_t struct_size;
    const char *name;
    const char *dtype;   /* such as "float32" */
    int32_t ndim;
    const int64_t *dims; /* -1: known only at run time */
    const char *const *dim_names; /* name or formula of each unknown dimension; NULL for a known dimension */
    const char *kind; /* "tensor": a tensor of numbers. Other values take several ports: the first has their name and kind,
                       * the others the kind "part". "strings": spans, bytes; "sequence" and "optional": elements, shapes;
                       * "string_sequence": spans, shapes, bytes; "optional_sequence": elements, shapes, presence;
                       * "maps": values, keys; "string_maps": values, spans of the keys, bytes */
} byoc_port;

size_t byoc_model_input_count(const byoc_model *model);
size_t byoc_model_output_count(const byoc_model *model);
/* Describes an input or output; returns 0, or -1 if the index is out of range. */
int byoc_model_input(const byoc_model *model, size_t index, byoc_port *port);
int byoc_model_output(const byoc_model *model, size_t index, byoc_port *port);

/* Initializes a view of dense elements in host memory; returns 0, or -1 for an unknown dtype. `shape` must outlive the
 * view. */
int byoc_view(byoc_tensor_view *view, const char *dtype, void *data, const int64_t *shape, int32_t ndim);

/* -- Runs ---------------------------------------------------------------------------------------------------------- */

typedef struct byoc_run_options {
    size_t struct_size;
    const char *const *input_names; /* name of each input; NULL: the inputs are in model order. By name, inputs
                                     * with a default value may be among them */
    double timeout_seconds;         /* 0: no time limit */
    byoc_cancel *cancel;            /* NULL: no cancellation */
    const byoc_pair *backend_options; /* "backend.option" and value, for options that may change from run to run */
    size_t backend_option_count;
} byoc_run_options;

/* Runs a model. The input elements are borrowed until the function returns. The results are written to the memory of
 * `outputs`, which are in model order and must not overlap each other or an input. `options` may be NULL. A model with
 * known dimensions and without control flow performs no allocations from its second run on. */
byoc_error *byoc_model_run(const byoc_model *model, const byoc_tensor_view *inputs, size_t input_count,
                           const byoc_tensor_view *outputs, size_t output_count, const byoc_run_options *options);
/* Runs a model and allocates memory for the results, whose sizes need not be known in advance. */
byoc_error *byoc_model_run_alloc(const byoc_model *model, const byoc_tensor_view *inputs, size_t input_count,
                                 const byoc_run_options *options, byoc_results **results);
/* Returns the view of a result, which belongs to `results`; NULL if the index is out of range. */
const byoc_tensor_view *byoc_results_get(const byoc_results *results, size_t index);
void byoc_results_free(byoc_results *results);

/* Creates the tensors of an input of strings, whose elements are `sizes` bytes of UTF-8 each at `texts`: result 0 has
 * the spans, and is passed for the input, result 1 has the bytes, and is passed for the port after it. */
byoc_error *byoc_strings_create(const char *const *texts, const size_t *sizes, const int64_t *shape, int32_t ndim,
                                byoc_results **results);
/* Returns a string of a result, without a terminating NUL: that of `element` in the spans of result `index`, whose
 * bytes are result `bytes_index`. It belongs to `results`. */
byoc_error *byoc_results_string(const byoc_results *results, size_t index, size_t bytes_index, size_t element,
                                const char **text, size_t *size);

/* Managed tensors with the layout of DLPack's: pointers to DLManagedTensor and DLManagedTensorVersioned may be cast to
 * these types. The owner of a managed tensor calls its deleter once, from any thread. */
typedef struct byoc_dlpack {
    byoc_tensor_view view;
    void *context;
    void (*deleter)(struct byoc_dlpack *tensor); /* may be NULL */
} byoc_dlpack;

typedef struct byoc_dlpack_versioned {
    uint32_t major, minor; /* 1, 1 */
    void *context;
    void (*deleter)(struct byoc_dlpack_versioned *tensor); /* may be NULL */
    uint64_t flags;                                        /* 1: read-only */
    byoc_tensor_view view;
} byoc_dlpack_versioned;

/* Exports a result as a managed tensor, which belongs to the caller and may outlive `results`, the model and the
 * session. The tensor shares the memory of the result. A result that is a model constant is copied, or marked as
 * read-only in a versioned tensor. */
byoc_error *byoc_results_to_dlpack(const byoc_results *results, size_t index, byoc_dlpack **tensor);
byoc_error *byoc_results_to_dlpack_versioned(const byoc_results *results, size_t index, byoc_dlpack_versioned **tensor);
/* Takes ownership of a managed tensor in host memory, which becomes result 0; its view may be an input of a run.
 * Elements that are not dense and row-major are copied. The deleter is called when the results are freed, or after the
 * copy. If the function fails, the caller retains ownership. */
byoc_error *byoc_results_from_dlpack(byoc_dlpack *tensor, byoc_results **results);
byoc_error *byoc_results_from_dlpack_versioned(byoc_dlpack_versioned *tensor, byoc_results **results);

/* Creates a cancellation object, with which another thread can cancel runs. */
byoc_cancel *byoc_cancel_create(void);
/* Requests cancellation (nonzero), or resets the request for later runs (0). Safe to call from a signal handler. */
void byoc_cancel_set(byoc_cancel *cancel, int cancelled);
void byoc_cancel_free(byoc_cancel *cancel);

#ifdef __cplusplus
}
#endif

#endif
