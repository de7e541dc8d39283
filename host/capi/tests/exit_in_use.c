/* Returns from main while other threads run a model on images of many sizes: exit_in_use MODEL PLUGINS BACKEND HOW. HOW
 * is "keep" to leave everything allocated, "free" to free the session in a handler of exit, or "run" to run the model
 * in a handler. Ends with the exit code 7. */
#include <byoc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 8, LARGEST = 48, THREADS = 3, RUNS = 60 };

static byoc_model *model = NULL;
static byoc_session *session = NULL;
static atomic_int run_count;

static void check(byoc_error *error) {
    if (error == NULL) return;
    fprintf(stderr, "%s\n", byoc_error_text(error));
    _Exit(2);
}

/* Runs the model on an image of one of many sizes. */
static byoc_error *run(int number) {
    static float pixels[CHANNELS * LARGEST * LARGEST];
    int64_t shape[4] = {1, CHANNELS, 9 + number % 37, 9 + number % 31};
    byoc_tensor_view input;
    byoc_results *results = NULL;
    byoc_view(&input, "float32", pixels, shape, 4);
    byoc_error *error = byoc_model_run_alloc(model, &input, 1, NULL, &results);
    byoc_results_free(results);
    return error;
}

static void *work(void *first) {
    for (int number = *(int *)first;; number++) {
        byoc_error *error = run(number);
        /* Runs fail once the process ends. */
        if (error != NULL) {
            byoc_error_free(error);
            return NULL;
        }
        atomic_fetch_add(&run_count, 1);
    }
}

static void free_session(void) {
    byoc_session_free(session);
}

static void run_model(void) {
    byoc_error_free(run(3));
}

int main(int count, char **arguments) {
    static int firsts[THREADS];
    static const byoc_dim open_dims[2] = {{"h", -1}, {"w", -1}};
    if (count != 5) return 3;
    byoc_session_options session_options;
    byoc_compile_options options;
    memset(&session_options, 0, sizeof session_options);
    memset(&options, 0, sizeof options);
    session_options.struct_size = sizeof session_options;
    session_options.plugin_dirs = (const char *const *)&arguments[2];
    session_options.plugin_dir_count = 1;
    session_options.threads = 2;
    options.struct_size = sizeof options;
    options.backends = (const char *const *)&arguments[3];
    options.backend_count = strcmp(arguments[3], "none") != 0;
    options.dims = open_dims;
    options.dim_count = 2;
    if (strcmp(arguments[4], "free") == 0) atexit(free_session);
    if (strcmp(arguments[4], "run") == 0) atexit(run_model);
    check(byoc_session_create(&session_options, &session));
    check(byoc_model_compile(session, arguments[1], &options, &model));
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_t handle;
        firsts[thread] = thread * 400;
        if (pthread_create(&handle, NULL, work, &firsts[thread]) != 0) return 4;
    }
    while (atomic_load(&run_count) < RUNS) {
        check(run(atomic_load(&run_count)));
    }
    return 7;
}
