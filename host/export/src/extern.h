/* Argument types of external operator functions (byoc export --extern). */
#ifndef BYOC_EXTERN_H
#define BYOC_EXTERN_H

#include <stdint.h>

/* Input tensor: row-major and contiguous; `type` is "float32", "int8", ... */
typedef struct {
    const void *data;
    const char *type;
    int32_t rank;
    const int32_t *shape;
} byoc_input;

/* Output tensor, in the same form. */
typedef struct {
    void *data;
    const char *type;
    int32_t rank;
    const int32_t *shape;
} byoc_output;

/* Attribute: one or more integers (a Boolean is an integer), a real number, or a string. */
typedef struct {
    const char *name;
    int32_t count;
    const int64_t *integers;
    double real;
    const char *text;
} byoc_attribute;

/* Operator call: Relay name, nodes in the model, tensors and attributes. */
typedef struct {
    const char *operator_name;
    const char *node;
    const byoc_input *inputs;
    int32_t input_count;
    const byoc_output *outputs;
    int32_t output_count;
    const byoc_attribute *attributes;
    int32_t attribute_count;
} byoc_call;

#endif
