/* Writes a model as ONNX, and runs what was written. Arguments: the model, and a file for the written one. */
#include "byoc.h"
#include <stdio.h>

static int failed(byoc_error *error) {
    if (error == NULL) return 0;
    printf("%s %s\n", byoc_error_code(error), byoc_error_message(error));
    byoc_error_free(error);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const byoc_dim dims[] = {{"batch", 2}};
    byoc_onnx_options options = {.struct_size = sizeof options, .opset = 21, .dims = dims, .dim_count = 1};
    if (failed(byoc_export_onnx(argv[1], argv[2], &options))) return 1;
    byoc_session *session = NULL;
    byoc_model *model = NULL;
    if (failed(byoc_session_create(NULL, &session)) || failed(byoc_model_compile(session, argv[2], NULL, &model)))
        return 1;
    byoc_port port = {.struct_size = sizeof port};
    if (byoc_model_input(model, 0, &port) != 0) return 1;
    printf("%s %d\n", port.name, (int)port.dims[0]);
    byoc_model_free(model);
    byoc_session_free(session);
    options.stage = "partitioned";
    failed(byoc_export_onnx(argv[1], argv[2], &options));
    options.stage = NULL;
    options.opset = 12;
    failed(byoc_export_onnx(argv[1], argv[2], &options));
    failed(byoc_export_onnx(argv[1], "/nowhere/x.onnx", NULL));
    failed(byoc_export_onnx(NULL, argv[2], NULL));
    return 0;
}
