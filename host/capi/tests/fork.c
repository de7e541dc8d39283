/* Uses a session and a model after a fork: fork MODEL. The child process has none of the threads of its parent, so each
 * call there must return an error, a new session must work, and the objects of the parent can be freed. */
#define _DEFAULT_SOURCE
#include <byoc.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static float image[64], logits[10];
static int64_t image_shape[] = {1, 1, 8, 8}, logits_shape[] = {1, 10};
static byoc_dim batch = {"batch", 1};

static int compile(byoc_session **session, const char *path, byoc_model **model) {
    byoc_session_options two = {.struct_size = sizeof two, .threads = 2};
    byoc_compile_options options = {.struct_size = sizeof options, .dims = &batch, .dim_count = 1};
    return byoc_session_create(&two, session) == NULL && byoc_model_compile(*session, path, &options, model) == NULL;
}

static byoc_error *run(const byoc_model *model) {
    byoc_tensor_view input, output;
    byoc_view(&input, "float32", image, image_shape, 4);
    byoc_view(&output, "float32", logits, logits_shape, 2);
    return byoc_model_run(model, &input, 1, &output, 1, NULL);
}

/* Checks that a call returned the error for an object of another process. */
static int is_refused(const char *what, byoc_error *error) {
    int is_right = byoc_error_kind(error) == BYOC_ERROR_RUN && strcmp(byoc_error_code(error), "E0623") == 0 &&
                   strstr(byoc_error_message(error), "before a fork") != NULL && *byoc_error_help(error) != 0;
    if (!is_right) printf("%s: expected E0623, found %s\n", what, byoc_error_text(error));
    byoc_error_free(error);
    return is_right;
}

static int child(byoc_session *session, byoc_model *model, const char *path) {
    byoc_compile_options options = {.struct_size = sizeof options, .dims = &batch, .dim_count = 1};
    byoc_tensor_view input;
    byoc_results *results = NULL;
    byoc_model *other = NULL;
    byoc_session *own = NULL;
    alarm(60);
    byoc_view(&input, "float32", image, image_shape, 4);
    int is_right = is_refused("run", run(model));
    is_right &= is_refused("run_alloc", byoc_model_run_alloc(model, &input, 1, NULL, &results));
    is_right &= is_refused("save", byoc_model_save(model, "/nowhere"));
    is_right &= is_refused("compile", byoc_model_compile(session, path, &options, &other));
    is_right &= is_refused("compile_bytes", byoc_model_compile_bytes(session, (const uint8_t *)"x", 1, NULL, &other));
    is_right &= is_refused("load", byoc_model_load(session, path, &other));
    is_right &= is_refused("load_bytes", byoc_model_load_bytes(session, (const uint8_t *)"x", 1, &other));
    is_right &= byoc_model_input_count(model) == 1 && *byoc_model_plan(model) == 0;
    byoc_model_free(model);
    byoc_session_free(session);
    if (!compile(&own, path, &other) || run(other) != NULL) {
        printf("expected a session of the child process to work\n");
        is_right = 0;
    }
    byoc_model_free(other);
    byoc_session_free(own);
    fflush(stdout);
    return is_right ? 0 : 1;
}

int main(int argc, char **argv) {
    byoc_session *session = NULL;
    byoc_model *model = NULL;
    int status = -1;
    if (argc != 2 || !compile(&session, argv[1], &model) || run(model) != NULL) return 2;
    pid_t process = fork();
    if (process == 0) _exit(child(session, model, argv[1]));
    if (waitpid(process, &status, 0) != process || status != 0) {
        printf("expected the child process to succeed, found the status %d\n", status);
        return 1;
    }
    if (run(model) != NULL || *byoc_model_plan(model) == 0) return 3;
    byoc_model_free(model);
    byoc_session_free(session);
    return 0;
}
