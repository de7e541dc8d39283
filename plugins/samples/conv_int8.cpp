// conv_int8: a byoc backend in C++ that offloads int8 convolutions to a third-party function.
//
// `judge` checks that the function supports a convolution and otherwise gives the reason. `compile` serializes the
// arguments of the function, `load` parses them, `run` calls the function.
#include "byoc_json.h"
#include "byoc_plugin.h"
#include "vendor_conv2d.h"

#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr const char *NAME = "conv_int8";

// Exceptions must not cross the C boundary; they are reported as the failure of the entry.
template <typename Body> int32_t guarded(byoc_call *call, Body body) {
    try {
        body();
        return BYOC_OK;
    } catch (const std::exception &error) {
        call->host->fail(call, error.what(), nullptr);
    } catch (...) {
        call->host->fail(call, "unknown C++ exception", nullptr);
    }
    return BYOC_ERROR;
}

// -- Arguments of the function ----------------------------------------------------------------------------------------

// Operand of the convolution: an input or a constant of the region.
struct Operand {
    int32_t is_constant;
    int32_t number;
};

// Blob format: the memory layout on the compiling machine, which is safe because an artifact names its processor.
struct Layer {
    char magic[8];
    int32_t batch, in_ch, in_height, in_width, kernel_number, group, pad_height, pad_width, kernel_height, kernel_width,
        stride_height, stride_width;
    Operand data, weight;

    int64_t out_height() const { return (int64_t(in_height) + 2 * pad_height - kernel_height) / stride_height + 1; }
    int64_t out_width() const { return (int64_t(in_width) + 2 * pad_width - kernel_width) / stride_width + 1; }
    std::array<int64_t, 4> data_dims() const { return {batch, in_ch, in_height, in_width}; }
    std::array<int64_t, 4> weight_dims() const { return {kernel_number, in_ch / group, kernel_height, kernel_width}; }
    std::array<int64_t, 4> out_dims() const { return {batch, kernel_number, out_height(), out_width()}; }

    // Validates the arguments, because blobs are untrusted.
    bool makes_sense() const {
        const int32_t most = 1 << 20;
        for (int32_t size : {in_ch, in_height, in_width, kernel_number, kernel_height, kernel_width, stride_height, stride_width, group})
            if (size < 1 || size > most) return false;
        return batch >= 0 && batch <= most && pad_height >= 0 && pad_height <= most && pad_width >= 0 && pad_width <= most &&
               in_ch % group == 0 && kernel_number % group == 0 && in_height + 2 * pad_height >= kernel_height &&
               in_width + 2 * pad_width >= kernel_width;
    }
};

constexpr char MAGIC[8] = {'c', 'o', 'n', 'v', 'i', '8', '0', '1'};

// -- Reading a graph --------------------------------------------------------------------------------------------------

// Reason why a graph is not a single convolution that the function supports.
struct Refusal : std::runtime_error {
    const char *code;
    Refusal(const char *code, const std::string &detail) : std::runtime_error(detail), code(code) {}
};

std::string text_of(byoc_json value) {
    std::string text(byoc_json_text(value, nullptr, 0), ' ');
    byoc_json_text(value, &text[0], text.size() + 1);
    return text;
}

// Dimensions, or an attribute with a list of integers. `judge` may be called for thousands of convolutions, and
// allocating a vector for each list would take longer than parsing it.
struct Ints {
    std::array<int64_t, 4> number;
    size_t count = 0; // total number of integers; at most four are stored

    int64_t operator[](size_t i) const { return number[i]; }
    bool empty() const { return count == 0; }
};

void take(byoc_json &at, Ints &ints) { ints.count = byoc_json_take_ints(&at, ints.number.data(), ints.number.size(), -1); }

std::string shown(const Ints &ints) {
    std::ostringstream out;
    out << "[";
    for (size_t i = 0; i < ints.count && i < ints.number.size(); i++) out << (i ? ", " : "") << ints[i];
    out << (ints.count > ints.number.size() ? ", ...]" : "]");
    return out.str();
}

// Type of a tensor.
struct Type {
    byoc_json dtype{};
    Ints dims;
};

void take(byoc_json &at, Type &type) {
    while (byoc_json_each(&at)) {
        if (byoc_json_field(&at, "dtype")) {
            type.dtype = byoc_json_take(&at);
        } else if (byoc_json_field(&at, "dims")) {
            take(at, type.dims);
        } else {
            byoc_json_pass(&at);
        }
    }
}

// Attributes of a convolution that the function depends on.
struct Attributes {
    Ints strides, padding, dilation;
    int64_t groups = 1;
    byoc_json data_layout{}, kernel_layout{}, out_layout{};
};

void take(byoc_json &at, Attributes &attributes) {
    while (byoc_json_each(&at)) {
        if (byoc_json_field(&at, "strides")) {
            take(at, attributes.strides);
        } else if (byoc_json_field(&at, "padding")) {
            take(at, attributes.padding);
        } else if (byoc_json_field(&at, "dilation")) {
            take(at, attributes.dilation);
        } else if (byoc_json_field(&at, "groups")) {
            attributes.groups = byoc_json_take_int(&at, 0);
        } else if (byoc_json_field(&at, "data_layout")) {
            attributes.data_layout = byoc_json_take(&at);
        } else if (byoc_json_field(&at, "kernel_layout")) {
            attributes.kernel_layout = byoc_json_take(&at);
        } else if (byoc_json_field(&at, "out_layout")) {
            attributes.out_layout = byoc_json_take(&at);
        } else {
            byoc_json_pass(&at);
        }
    }
}

// Node: an input of the region, a constant, or an operator.
struct Node {
    int64_t input = 0, constant = -1;
    byoc_json name{};                        // name of the operator
    std::array<int64_t, 2> operands{-1, -1}; // operand nodes of the operator, which have smaller indices
    Attributes attributes;
    Type type; // type of the result

    Node() {} // user-provided, so that value initialization does not zero the object first
};

void take(byoc_json &at, Node &node) {
    while (byoc_json_each(&at)) {
        if (byoc_json_field(&at, "input")) {
            node.input = byoc_json_take_int(&at, 0);
        } else if (byoc_json_field(&at, "constant")) {
            node.constant = byoc_json_take_int(&at, 0);
        } else if (byoc_json_field(&at, "op")) {
            node.name = byoc_json_take(&at);
        } else if (byoc_json_field(&at, "inputs")) {
            for (size_t i = 0; byoc_json_each(&at); i++) { // each is [node, output]
                Ints value;
                take(at, value);
                if (i < node.operands.size() && !value.empty()) node.operands[i] = value[0];
            }
        } else if (byoc_json_field(&at, "attrs")) {
            take(at, node.attributes);
        } else if (byoc_json_field(&at, "outputs")) {
            while (byoc_json_each(&at)) take(at, node.type); // exactly one element
        } else {
            byoc_json_pass(&at);
        }
    }
}

int32_t small(int64_t size, const char *what) {
    if (size < 0 || size > 1 << 20)
        throw Refusal(BYOC_UNSUPPORTED_SHAPE, std::string(what) + ": expected 0 to 1048576, found " + std::to_string(size));
    return int32_t(size);
}

Operand operand(const Node &node, size_t which, const char *dtype_wanted) {
    if (!byoc_json_is(node.type.dtype, dtype_wanted))
        throw Refusal(BYOC_UNSUPPORTED_DTYPE, "input " + std::to_string(which) + ": expected " + dtype_wanted + ", found " +
                                                  text_of(node.type.dtype));
    if (node.constant >= 0) return {1, int32_t(node.constant)};
    return {0, int32_t(node.input)};
}

// Reads a pair from an attribute with one common value or two values.
std::array<int32_t, 2> pair(const Ints &given, const char *name) {
    if (given.empty()) throw Refusal(BYOC_UNSUPPORTED_ATTR, "missing attribute " + std::string(name));
    return {small(given[0], name), small(given[given.count > 1 ? 1 : 0], name)};
}

void check_layout(byoc_json found, const char *name, const char *taken) {
    if (!byoc_json_is(found, taken))
        throw Refusal(BYOC_UNSUPPORTED_LAYOUT, std::string(name) + ": expected " + taken + ", found " + text_of(found));
}

Layer layer_of(const char *graph_text) {
    std::vector<Node> nodes;
    nodes.reserve(3);
    byoc_json at = byoc_json_get(byoc_json_of(graph_text), "nodes");
    while (byoc_json_each(&at)) take(at, nodes.emplace_back());

    const Node *found = nullptr;
    for (const Node &node : nodes) {
        if (!byoc_json_there(node.name)) continue;
        if (found) throw Refusal(BYOC_RESOURCE_LIMIT, "expected one operator in the region, found several");
        if (!byoc_json_is(node.name, "nn.conv2d"))
            throw Refusal(BYOC_UNSUPPORTED_OP, "expected nn.conv2d, found " + text_of(node.name));
        found = &node;
    }
    if (!found) throw Refusal(BYOC_UNSUPPORTED_OP, "expected one operator in the region, found none");
    const Node &convolution = *found;

    const Attributes &attributes = convolution.attributes;
    check_layout(attributes.data_layout, "data_layout", "NCHW");
    check_layout(attributes.kernel_layout, "kernel_layout", "OIHW");
    // An empty out_layout means the layout of the data.
    if (byoc_json_text(attributes.out_layout, nullptr, 0) > 0) check_layout(attributes.out_layout, "out_layout", "NCHW");
    const Node &data_node = nodes.at(size_t(convolution.operands[0])), &weight_node = nodes.at(size_t(convolution.operands[1]));
    Layer layer{};
    std::memcpy(layer.magic, MAGIC, sizeof MAGIC);
    layer.data = operand(data_node, 0, "int8");
    layer.weight = operand(weight_node, 1, "int8");
    const byoc_json result = convolution.type.dtype;
    if (!byoc_json_is(result, "int32"))
        throw Refusal(BYOC_UNSUPPORTED_DTYPE, "result: expected int32, found " + text_of(result));
    const Ints &data = data_node.type.dims, &weight = weight_node.type.dims;
    if (data.count != 4 || weight.count != 4)
        throw Refusal(BYOC_UNSUPPORTED_SHAPE, "data and kernel: expected rank 4, found " + std::to_string(data.count) +
                                                  " and " + std::to_string(weight.count));
    const std::array<int32_t, 2> strides = pair(attributes.strides, "strides"), dilation = pair(attributes.dilation, "dilation");
    if (dilation[0] != 1 || dilation[1] != 1)
        throw Refusal(BYOC_UNSUPPORTED_ATTR, "dilation: expected 1, found " + shown(attributes.dilation));
    const Ints &padding = attributes.padding;
    const bool symmetric = padding.count < 4 || (padding[0] == padding[2] && padding[1] == padding[3]);
    if (padding.empty() || !symmetric)
        throw Refusal(BYOC_UNSUPPORTED_ATTR, "padding: expected the same before and after, found " + shown(padding));
    layer.batch = small(data[0], "batch size");
    layer.in_ch = small(data[1], "number of channels");
    layer.in_height = small(data[2], "data height");
    layer.in_width = small(data[3], "data width");
    layer.kernel_number = small(weight[0], "number of kernels");
    layer.kernel_height = small(weight[2], "kernel height");
    layer.kernel_width = small(weight[3], "kernel width");
    layer.group = small(attributes.groups, "groups");
    layer.pad_height = small(padding[0], "padding");
    layer.pad_width = small(padding.count == 1 ? padding[0] : padding[1], "padding");
    layer.stride_height = strides[0];
    layer.stride_width = strides[1];
    if (!layer.makes_sense())
        throw Refusal(BYOC_UNSUPPORTED_SHAPE, "expected a kernel that matches data " + shown(data) + ", found " + shown(weight));
    return layer;
}

// -- Compile time -----------------------------------------------------------------------------------------------------

int32_t describe(void *, byoc_call *call) {
    const char text[] = R"({"version": 1, "about": "int8 convolutions by vendor_conv2d", "operators": ["nn.conv2d"],
        "quantization": {"activation": "int8", "weight": "int8", "accumulator": "int32", "symmetric": true}})";
    call->host->answer(call, text, sizeof text - 1);
    return BYOC_OK;
}

int32_t judge(void *, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    return guarded(call, [&] {
        for (size_t i = 0; i < count; i++) {
            try {
                layer_of(candidates[i]->graph);
                call->host->support(call, i);
            } catch (const Refusal &refusal) {
                const bool dtype = std::strcmp(refusal.code, BYOC_UNSUPPORTED_DTYPE) == 0;
                call->host->refuse(call, i, refusal.code, refusal.what(), dtype ? "run \"byoc quantize\" first" : nullptr);
            }
        }
    });
}

// Formats the call as C source for display.
std::string source_of(const Layer &layer, const char *symbol) {
    std::ostringstream out;
    out << "void " << symbol << "(const int8_t *data, const int8_t *weight, int32_t *out) {\n    vendor_conv2d(data, weight, out";
    for (int32_t argument : {layer.batch, layer.in_ch, layer.in_height, layer.in_width, layer.kernel_number, layer.group,
                             layer.pad_height, layer.pad_width, layer.kernel_height, layer.kernel_width, layer.stride_height,
                             layer.stride_width})
        out << ", " << argument;
    out << ");\n}\n";
    return out.str();
}

int32_t compile(void *, byoc_call *call, const byoc_region *region) {
    return guarded(call, [&] {
        const Layer layer = layer_of(region->graph);
        const std::string source = source_of(layer, region->symbol);
        byoc_compiled result{};
        result.struct_size = sizeof result;
        result.blob = &layer;
        result.blob_size = sizeof layer;
        result.loader = NAME;
        result.source_language = "c";
        result.source = source.c_str();
        call->host->compiled(call, &result);
    });
}

const byoc_codegen CODEGEN = {sizeof(byoc_codegen), describe, judge, compile, nullptr, nullptr};

// -- Run time ---------------------------------------------------------------------------------------------------------

struct Loaded {
    const byoc_host *host;
    Layer layer;
    std::vector<const byoc_constant *> constants;

    Loaded(const byoc_host *host, const byoc_load *request) : host(host) {
        if (request->blob_size != sizeof layer)
            throw std::runtime_error("expected a blob of " + std::to_string(sizeof layer) + " bytes, found " +
                                     std::to_string(request->blob_size));
        std::memcpy(&layer, request->blob, sizeof layer);
        if (std::memcmp(layer.magic, MAGIC, sizeof MAGIC) != 0 || !layer.makes_sense())
            throw std::runtime_error("expected a conv_int8 layer, found foreign or corrupted data");
        check_constant(layer.data, layer.data_dims(), request);
        check_constant(layer.weight, layer.weight_dims(), request);
        check_signature(request->options);
        constants.reserve(request->constant_count);
        for (size_t i = 0; i < request->constant_count; i++) constants.push_back(host->constant_retain(request->constants[i]));
    }

    ~Loaded() {
        for (const byoc_constant *constant : constants) host->constant_release(constant);
    }

    Loaded(const Loaded &) = delete;
    Loaded &operator=(const Loaded &) = delete;

    void check_constant(const Operand &operand, const std::array<int64_t, 4> &dims, const byoc_load *request) const {
        if (!operand.is_constant) return;
        if (operand.number < 0 || size_t(operand.number) >= request->constant_count)
            throw std::runtime_error("expected a constant index < " + std::to_string(request->constant_count) + ", found " +
                                     std::to_string(operand.number));
        byoc_tensor tensor;
        host->constant_tensor(request->constants[operand.number], &tensor);
        if (tensor.dtype.code != 0 || tensor.dtype.bits != 8 || tensor.ndim != 4 ||
            std::memcmp(tensor.shape, dims.data(), sizeof dims) != 0)
            throw std::runtime_error("constant " + std::to_string(operand.number) +
                                     ": the type differs from that of the compiled layer");
    }

    // Checks the element types, because `prepare` receives only dimensions. The types are in the load option "region", which a
    // host may omit.
    void check_signature(const char *options) const {
        const byoc_json region = byoc_json_get(byoc_json_of(options), "region");
        if (!byoc_json_there(region)) return;
        const byoc_json inputs = byoc_json_get(region, "inputs"), outputs = byoc_json_get(region, "outputs");
        if (!layer.data.is_constant) check_type(inputs, layer.data.number, "int8", layer.data_dims());
        if (!layer.weight.is_constant) check_type(inputs, layer.weight.number, "int8", layer.weight_dims());
        check_type(outputs, 0, "int32", layer.out_dims());
    }

    static void check_type(byoc_json types, int32_t number, const char *dtype, const std::array<int64_t, 4> &dims) {
        Type type;
        byoc_json at = byoc_json_at(types, size_t(number));
        if (byoc_json_there(at)) take(at, type);
        if (!byoc_json_is(type.dtype, dtype) || type.dims.count != 4 || type.dims.number != dims)
            throw std::runtime_error("the tensor types differ from the compiled layer's; compile the model again");
    }

    const int8_t *data_of(const Operand &operand, const byoc_run *run) const {
        byoc_tensor tensor;
        if (operand.is_constant) {
            host->constant_tensor(constants[size_t(operand.number)], &tensor);
        } else {
            tensor = run->inputs[operand.number];
        }
        return static_cast<const int8_t *>(tensor.data) + tensor.byte_offset;
    }
};

void check_input(const Operand &operand, const std::array<int64_t, 4> &dims, const byoc_dims *inputs, size_t count) {
    if (operand.is_constant) return;
    if (operand.number < 0 || size_t(operand.number) >= count)
        throw std::runtime_error("expected an input index < " + std::to_string(count) + ", found " +
                                 std::to_string(operand.number));
    const byoc_dims &given = inputs[operand.number];
    if (given.count != 4 || std::memcmp(given.data, dims.data(), sizeof dims) != 0)
        throw std::runtime_error("input " + std::to_string(operand.number) +
                                 ": the dimensions differ from those of the compiled layer");
}

int32_t prepare(void *self, byoc_call *call, const byoc_dims *inputs, size_t count) {
    return guarded(call, [&] {
        const Layer &layer = static_cast<const Loaded *>(self)->layer;
        check_input(layer.data, layer.data_dims(), inputs, count);
        check_input(layer.weight, layer.weight_dims(), inputs, count);
        const std::array<int64_t, 4> dims = layer.out_dims();
        call->host->output(call, dims.data(), dims.size(), 1);
    });
}

int32_t run(void *self, byoc_call *, const byoc_run *run) {
    const Loaded &loaded = *static_cast<const Loaded *>(self);
    const Layer &layer = loaded.layer;
    vendor_conv2d(loaded.data_of(layer.data, run), loaded.data_of(layer.weight, run), static_cast<int32_t *>(run->outputs[0].data),
                  layer.batch, layer.in_ch, layer.in_height, layer.in_width, layer.kernel_number, layer.group, layer.pad_height,
                  layer.pad_width, layer.kernel_height, layer.kernel_width, layer.stride_height, layer.stride_width);
    return BYOC_OK;
}

void release(void *self) { delete static_cast<Loaded *>(self); }

const byoc_executable EXECUTABLE = {sizeof(byoc_executable), prepare, run, nullptr, release};

int32_t load(void *, byoc_call *call, const byoc_load *request) {
    return guarded(call, [&] {
        auto loaded = std::make_unique<Loaded>(call->host, request);
        call->host->loaded(call, &EXECUTABLE, loaded.release());
    });
}

const byoc_loader LOADER = {sizeof(byoc_loader), load, nullptr, nullptr};

int32_t init(byoc_call *call, const char *, const char *) {
    call->host->register_codegen(call, NAME, &CODEGEN, nullptr);
    call->host->register_loader(call, NAME, &LOADER, nullptr);
    return BYOC_OK;
}

} // namespace

extern "C" const byoc_plugin *byoc_plugin_entry(uint32_t host_abi) {
    static const byoc_plugin plugin = {BYOC_ABI, sizeof plugin, NAME, "0.1.0", init};
    return host_abi >= BYOC_ABI ? &plugin : nullptr;
}
