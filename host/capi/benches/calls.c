/* Prints the average duration of a call of `byoc_model_run` in microseconds: calls MODEL, one input and one output of 16
 * floats, on one thread. */
#define _POSIX_C_SOURCE 199309L
#include <byoc.h>
#include <stdio.h>
#include <time.h>

enum { WARM_UP_CALLS = 20000, CALLS = 400000 };

static int failed(byoc_error *error) {
    if (error == NULL) return 0;
    fprintf(stderr, "%s\n", byoc_error_text(error));
    byoc_error_free(error);
    return 1;
}

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

int main(int argc, char **argv) {
    static float data[16], result[16];
    int64_t shape[] = {16};
    byoc_session_options options = {.struct_size = sizeof options, .threads = 1};
    byoc_tensor_view input, output;
    byoc_session *session = NULL;
    byoc_model *model = NULL;
    double start = 0.0;
    int status = 1;
    if (argc != 2) return 2;
    byoc_view(&input, "float32", data, shape, 1);
    byoc_view(&output, "float32", result, shape, 1);
    if (failed(byoc_session_create(&options, &session)) || failed(byoc_model_compile(session, argv[1], NULL, &model)))
        goto end;
    for (int call = -WARM_UP_CALLS; call < CALLS; call++) {
        if (call == 0) start = microseconds();
        if (failed(byoc_model_run(model, &input, 1, &output, 1, NULL))) goto end;
    }
    printf("%.4f\n", (microseconds() - start) / CALLS);
    status = 0;
end:
    byoc_model_free(model);
    byoc_session_free(session);
    return status;
}
