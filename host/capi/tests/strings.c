/* Runs a model that reorders six strings. Arguments: the model. */
#include "byoc.h"
#include <stdio.h>
#include <string.h>

static int failed(byoc_error *error) {
    if (error == NULL) return 0;
    printf("%s %s\n", byoc_error_code(error), byoc_error_message(error));
    byoc_error_free(error);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    byoc_session *session = NULL;
    byoc_model *model = NULL;
    byoc_results *text = NULL, *results = NULL;
    if (failed(byoc_session_create(NULL, &session)) || failed(byoc_model_compile(session, argv[1], NULL, &model)))
        return 1;
    for (size_t i = 0; i < byoc_model_input_count(model); i++) {
        byoc_port port = {.struct_size = sizeof port};
        if (byoc_model_input(model, i, &port) != 0) return 1;
        printf("%s %s %s\n", port.name, port.dtype, port.kind);
    }
    const char *words[] = {"one", "", "drei\0!", "a", "b", "c"};
    const size_t sizes[] = {3, 0, 6, 1, 1, 1};
    const int64_t shape[] = {2, 3};
    if (failed(byoc_strings_create(words, sizes, shape, 2, &text))) return 1;
    byoc_tensor_view inputs[] = {*byoc_results_get(text, 0), *byoc_results_get(text, 1)};
    if (failed(byoc_model_run_alloc(model, inputs, 2, NULL, &results))) return 1;
    for (size_t i = 0; i < 6; i++) {
        const char *found;
        size_t size;
        if (failed(byoc_results_string(results, 0, 1, i, &found, &size))) return 1;
        printf("%zu:", size);
        fwrite(found, 1, size, stdout);
        printf("\n");
    }
    const char *found;
    size_t size;
    failed(byoc_results_string(results, 0, 1, 6, &found, &size));
    failed(byoc_results_string(results, 0, 0, 0, &found, &size));
    byoc_results *invalid = NULL;
    const char *bytes[] = {"\xff"};
    const size_t one[] = {1};
    failed(byoc_strings_create(bytes, one, NULL, 0, &invalid));
    byoc_results_free(results);
    byoc_results_free(text);
    byoc_model_free(model);
    byoc_session_free(session);
    return 0;
}
