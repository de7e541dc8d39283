/* Repeats every kind of invalid call to byoc.h: bad_calls MODEL ROUNDS. Each call must return an error, and the memory
 * of the process must not grow. */
#include <byoc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong = 0;

/* Checks that a call returned an error of the given kind. */
static void expect(const char *what, int kind, byoc_error *error) {
    if (byoc_error_kind(error) != kind || *byoc_error_message(error) == 0 || *byoc_error_text(error) == 0) {
        printf("%s: expected an error of kind %d, found %d: %s\n", what, kind, byoc_error_kind(error),
               byoc_error_text(error));
        wrong = 1;
    }
    byoc_error_free(error);
}

static long resident_pages(void) {
    long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &size, &resident) != 2) exit(3);
    fclose(file);
    return resident;
}

static void sessions(void) {
    byoc_session *session = NULL;
    byoc_session_options options;
    memset(&options, 0, sizeof options);
    expect("struct_size of 0", BYOC_ERROR_ARGUMENT, byoc_session_create(&options, &session));
    options.struct_size = sizeof options;
    options.plugin_dir_count = 1;
    expect("NULL array", BYOC_ERROR_ARGUMENT, byoc_session_create(&options, &session));
    expect("NULL output pointer", BYOC_ERROR_ARGUMENT, byoc_session_create(NULL, NULL));
}

static void models(const byoc_session *session, const char *path) {
    byoc_model *model = NULL;
    byoc_compile_options options;
    byoc_dim dim;
    const char *backend = "none_such";
    expect("NULL session", BYOC_ERROR_ARGUMENT, byoc_model_compile(NULL, path, NULL, &model));
    expect("NULL path", BYOC_ERROR_ARGUMENT, byoc_model_compile(session, NULL, NULL, &model));
    expect("not UTF-8", BYOC_ERROR_ARGUMENT, byoc_model_compile(session, "\xff", NULL, &model));
    expect("missing file", BYOC_ERROR_MODEL, byoc_model_compile(session, "missing.onnx", NULL, &model));
    expect("open dimension", BYOC_ERROR_MODEL, byoc_model_compile(session, path, NULL, &model));
    expect("garbage", BYOC_ERROR_MODEL, byoc_model_compile_bytes(session, "garbage", 7, NULL, &model));
    expect("NULL bytes", BYOC_ERROR_ARGUMENT, byoc_model_compile_bytes(session, NULL, 7, NULL, &model));
    expect("model instead of an artifact", BYOC_ERROR_ARTIFACT, byoc_model_load(session, path, &model));
    expect("empty artifact", BYOC_ERROR_ARTIFACT, byoc_model_load_bytes(session, NULL, 0, &model));
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.backends = &backend;
    options.backend_count = 1;
    options.dims = &dim;
    options.dim_count = 1;
    dim.name = "batch";
    dim.size = 1;
    expect("unknown backend", BYOC_ERROR_BACKEND, byoc_model_compile(session, path, &options, &model));
    options.backend_count = 0;
    options.precision = "half";
    expect("unknown precision", BYOC_ERROR_ARGUMENT, byoc_model_compile(session, path, &options, &model));
    options.precision = "bf16";
    dim.size = -2;
    expect("negative dimension", BYOC_ERROR_ARGUMENT, byoc_model_compile(session, path, &options, &model));
    dim.name = "batsh";
    dim.size = 1;
    expect("unknown dimension", BYOC_ERROR_MODEL, byoc_model_compile(session, path, &options, &model));
    expect("NULL model", BYOC_ERROR_ARGUMENT, byoc_model_save(NULL, path));
}

static void runs(const byoc_model *model) {
    static float image[64], logits[10];
    static int64_t shape[] = {1, 1, 8, 8}, flat[] = {1, 10}, minus[] = {-1, 10}, huge[] = {INT64_MAX, INT64_MAX};
    static int64_t strides[] = {64, 64, 1, 8};
    const char *names[] = {"imag"};
    byoc_tensor_view in, out, bad;
    byoc_run_options options;
    byoc_pair option = {"level", "high"};
    byoc_results *results = NULL;
    byoc_cancel *cancel = byoc_cancel_create();
    byoc_view(&in, "float32", image, shape, 4);
    byoc_view(&out, "float32", logits, flat, 2);
    expect("NULL model", BYOC_ERROR_ARGUMENT, byoc_model_run(NULL, &in, 1, &out, 1, NULL));
    expect("missing inputs", BYOC_ERROR_INPUT, byoc_model_run(model, NULL, 0, &out, 1, NULL));
    expect("NULL inputs", BYOC_ERROR_ARGUMENT, byoc_model_run(model, NULL, 1, &out, 1, NULL));
    expect("missing outputs", BYOC_ERROR_INPUT, byoc_model_run(model, &in, 1, NULL, 0, NULL));
    expect("NULL output pointer", BYOC_ERROR_ARGUMENT, byoc_model_run_alloc(model, &in, 1, NULL, NULL));
    expect("shape", BYOC_ERROR_INPUT, byoc_model_run_alloc(model, &out, 1, NULL, &results));
    expect("overlap", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &in, 1, &in, 1, NULL));
    byoc_view(&bad, "float32", logits, flat + 1, 1);
    expect("output dimensions", BYOC_ERROR_INPUT, byoc_model_run(model, &in, 1, &bad, 1, NULL));
    byoc_view(&bad, "int32", image, shape, 4);
    expect("dtype", BYOC_ERROR_INPUT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    bad = in;
    bad.dtype.code = 9;
    expect("element type code", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    bad = in;
    bad.device.kind = 2;
    expect("device", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    bad = in;
    bad.data = NULL;
    expect("NULL data", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    bad = in;
    bad.ndim = -1;
    expect("rank", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    bad = in;
    bad.shape = NULL;
    expect("NULL shape", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    bad = in;
    bad.strides = strides;
    expect("strides", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    byoc_view(&bad, "float32", image, minus, 2);
    expect("negative dimensions", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    byoc_view(&bad, "float32", image, huge, 2);
    expect("oversized input", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &bad, 1, &out, 1, NULL));
    expect("oversized output", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &in, 1, &bad, 1, NULL));
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.input_names = names;
    expect("unknown input name", BYOC_ERROR_INPUT, byoc_model_run(model, &in, 1, &out, 1, &options));
    names[0] = NULL;
    expect("NULL input name", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &in, 1, &out, 1, &options));
    options.input_names = NULL;
    options.timeout_seconds = -1.0;
    expect("negative timeout", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &in, 1, &out, 1, &options));
    options.timeout_seconds = (double)NAN;
    expect("NaN timeout", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &in, 1, &out, 1, &options));
    options.timeout_seconds = 1e-9;
    expect("deadline", BYOC_ERROR_TIMED_OUT, byoc_model_run(model, &in, 1, &out, 1, &options));
    options.timeout_seconds = 0.0;
    options.cancel = cancel;
    byoc_cancel_set(cancel, 1);
    expect("cancelled", BYOC_ERROR_CANCELLED, byoc_model_run(model, &in, 1, &out, 1, &options));
    byoc_cancel_free(cancel);
    options.cancel = NULL;
    options.backend_options = &option;
    options.backend_option_count = 1;
    expect("option name without a dot", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &in, 1, &out, 1, &options));
    option.name = "none_such.level";
    expect("option of an unknown backend", BYOC_ERROR_BACKEND, byoc_model_run(model, &in, 1, &out, 1, &options));
    option.value = NULL;
    expect("NULL option value", BYOC_ERROR_ARGUMENT, byoc_model_run(model, &in, 1, &out, 1, &options));
    if (byoc_view(&bad, "float33", image, shape, 4) != -1 || byoc_view(NULL, "float32", image, shape, 4) != -1) wrong = 1;
    if (byoc_results_get(NULL, 0) != NULL) wrong = 1;
    /* A valid call succeeds after the invalid calls, also with a shorter structure. */
    options.struct_size = sizeof(size_t);
    byoc_error_free(byoc_model_run_alloc(model, &in, 1, &options, &results));
    if (byoc_results_get(results, 0) == NULL || byoc_results_get(results, 1) != NULL) wrong = 1;
    byoc_results_free(results);
}

int main(int argc, char **argv) {
    byoc_session *session = NULL;
    byoc_model *model = NULL;
    byoc_compile_options options;
    byoc_dim batch;
    byoc_port port;
    long before = 0, rounds = argc == 3 ? atol(argv[2]) : 0;
    batch.name = "batch";
    batch.size = 1;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.dims = &batch;
    options.dim_count = 1;
    if (rounds == 0 || byoc_session_create(NULL, &session) != NULL ||
        byoc_model_compile(session, argv[1], &options, &model) != NULL)
        return 2;
    memset(&port, 0, sizeof port);
    port.struct_size = sizeof port;
    if (byoc_model_input_count(model) != 1 || byoc_model_input(model, 0, &port) != 0 || strcmp(port.name, "image") != 0 ||
        strcmp(port.dtype, "float32") != 0 || port.ndim != 4 || port.dims[3] != 8 || port.dim_names[0] != NULL ||
        byoc_model_input(model, 1, &port) != -1 || byoc_model_output(NULL, 0, &port) != -1)
        wrong = 1;
    for (long round = 0; round < rounds && !wrong; round++) {
        if (round == rounds / 2) before = resident_pages();
        sessions();
        models(session, argv[1]);
        runs(model);
    }
    printf("resident pages: %ld halfway, %ld at the end\n", before, resident_pages());
    if (resident_pages() > before + before / 50) wrong = 1;
    byoc_model_free(model);
    byoc_session_free(session);
    byoc_model_free(NULL);
    byoc_session_free(NULL);
    byoc_results_free(NULL);
    byoc_cancel_free(NULL);
    byoc_error_free(NULL);
    return wrong;
}
