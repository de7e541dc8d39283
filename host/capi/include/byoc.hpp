// SPDX-License-Identifier: MIT OR Apache-2.0
// byoc.hpp: compile and run neural-network models from C++17. Functions throw byoc::Error.
#ifndef BYOC_HPP
#define BYOC_HPP

#include "byoc.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace byoc {

/// Error of the library; what() returns the complete text.
class Error : public std::runtime_error {
  public:
    explicit Error(byoc_error *error)
        : std::runtime_error(byoc_error_text(error)), kind_(byoc_error_kind(error)), code_(byoc_error_code(error)),
          message_(byoc_error_message(error)), help_(byoc_error_help(error)) {
        byoc_error_free(error);
    }
    int kind() const { return kind_; }
    const std::string &code() const { return code_; }
    const std::string &message() const { return message_; }
    const std::string &help() const { return help_; }

  private:
    int kind_;
    std::string code_, message_, help_;
};

inline void check(byoc_error *error) {
    if (error != nullptr) throw Error(error);
}

/// Name of the element type of T.
template <typename T> constexpr const char *dtype() {
    if constexpr (std::is_same_v<T, bool>) return "bool";
    else if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 8 ? "float64" : "float32";
    else if constexpr (std::is_signed_v<T>)
        return sizeof(T) == 8 ? "int64" : sizeof(T) == 4 ? "int32" : sizeof(T) == 2 ? "int16" : "int8";
    else return sizeof(T) == 8 ? "uint64" : sizeof(T) == 4 ? "uint32" : sizeof(T) == 2 ? "uint16" : "uint8";
}

/// View of elements in caller-provided memory.
class View {
  public:
    template <typename T> View(T *data, std::vector<int64_t> shape) : shape_(std::move(shape)) {
        using Element = std::remove_const_t<T>;
        byoc_view(&view_, dtype<Element>(), const_cast<Element *>(data), nullptr, static_cast<int32_t>(shape_.size()));
    }
    /// Creates a view of a result or of a DLPack tensor, which must outlive the view.
    View(const byoc_tensor_view &view) : shape_(view.shape, view.shape + view.ndim), view_(view) {}
    byoc_tensor_view get() const {
        byoc_tensor_view view = view_;
        view.shape = const_cast<int64_t *>(shape_.data());
        return view;
    }

  private:
    std::vector<int64_t> shape_;
    byoc_tensor_view view_{};
};

/// Threads and plugins.
class Session {
  public:
    explicit Session(const std::vector<std::string> &plugin_dirs = {}, size_t threads = 0) {
        std::vector<const char *> dirs;
        for (const auto &dir : plugin_dirs) dirs.push_back(dir.c_str());
        byoc_session_options options{};
        options.struct_size = sizeof options;
        options.plugin_dirs = dirs.data();
        options.plugin_dir_count = dirs.size();
        options.threads = threads;
        byoc_session *session = nullptr;
        check(byoc_session_create(&options, &session));
        session_.reset(session);
    }
    explicit Session(const byoc_session_options &options) {
        byoc_session *session = nullptr;
        check(byoc_session_create(&options, &session));
        session_.reset(session);
    }
    const byoc_session *get() const { return session_.get(); }

  private:
    struct Free {
        void operator()(byoc_session *session) const { byoc_session_free(session); }
    };
    std::unique_ptr<byoc_session, Free> session_;
};

/// Deleter for managed DLPack tensors.
template <typename Tensor> struct DeleteManaged {
    void operator()(Tensor *tensor) const {
        if (tensor->deleter != nullptr) tensor->deleter(tensor);
    }
};
using Dlpack = std::unique_ptr<byoc_dlpack, DeleteManaged<byoc_dlpack>>;
using DlpackVersioned = std::unique_ptr<byoc_dlpack_versioned, DeleteManaged<byoc_dlpack_versioned>>;

/// Results that own their memory.
class Results {
  public:
    explicit Results(byoc_results *results) : results_(results) {}
    /// Takes ownership of a tensor of an external library, which is freed even on failure.
    static Results from(Dlpack tensor) {
        byoc_results *results = nullptr;
        check(byoc_results_from_dlpack(tensor.get(), &results));
        tensor.release();
        return Results(results);
    }
    static Results from(DlpackVersioned tensor) {
        byoc_results *results = nullptr;
        check(byoc_results_from_dlpack_versioned(tensor.get(), &results));
        tensor.release();
        return Results(results);
    }
    /// Exports a result as a DLPack tensor, which shares the memory and may outlive the results, model and session.
    Dlpack to_dlpack(size_t index) const {
        byoc_dlpack *tensor = nullptr;
        check(byoc_results_to_dlpack(results_.get(), index, &tensor));
        return Dlpack(tensor);
    }
    DlpackVersioned to_dlpack_versioned(size_t index) const {
        byoc_dlpack_versioned *tensor = nullptr;
        check(byoc_results_to_dlpack_versioned(results_.get(), index, &tensor));
        return DlpackVersioned(tensor);
    }
    const byoc_tensor_view &operator[](size_t index) const {
        const byoc_tensor_view *view = byoc_results_get(results_.get(), index);
        if (view == nullptr) throw std::out_of_range("expected the index of a result, found " + std::to_string(index));
        return *view;
    }
    template <typename T> const T *data(size_t index) const { return static_cast<const T *>((*this)[index].data); }

  private:
    struct Free {
        void operator()(byoc_results *results) const { byoc_results_free(results); }
    };
    std::unique_ptr<byoc_results, Free> results_;
};

/// Model that is ready to run.
class Model {
  public:
    static Model compile(const Session &session, const std::string &path, const std::vector<std::string> &backends = {},
                         const std::vector<std::pair<std::string, int64_t>> &dims = {}) {
        std::vector<const char *> names;
        for (const auto &backend : backends) names.push_back(backend.c_str());
        std::vector<byoc_dim> sizes;
        for (const auto &dim : dims) sizes.push_back({dim.first.c_str(), dim.second});
        byoc_compile_options options{};
        options.struct_size = sizeof options;
        options.backends = names.data();
        options.backend_count = names.size();
        options.dims = sizes.data();
        options.dim_count = sizes.size();
        byoc_model *model = nullptr;
        check(byoc_model_compile(session.get(), path.c_str(), &options, &model));
        return Model(model);
    }
    static Model load(const Session &session, const std::string &path) {
        byoc_model *model = nullptr;
        check(byoc_model_load(session.get(), path.c_str(), &model));
        return Model(model);
    }
    void save(const std::string &path) const { check(byoc_model_save(get(), path.c_str())); }
    /// Returns the placement of each operator, with the refusals of other backends, as JSON.
    std::string explanation() const { return byoc_model_explanation(get()); }
    /// Returns the steps, registers and arenas of a run as JSON.
    std::string plan() const { return byoc_model_plan(get()); }

    /// Runs the model, and writes the results to caller-provided memory.
    void run(const std::vector<View> &inputs, const std::vector<View> &outputs,
             const byoc_run_options *options = nullptr) const {
        const auto in = views(inputs), out = views(outputs);
        check(byoc_model_run(get(), in.data(), in.size(), out.data(), out.size(), options));
    }
    /// Runs the model, and allocates memory for the results.
    Results run(const std::vector<View> &inputs, const byoc_run_options *options = nullptr) const {
        const auto in = views(inputs);
        byoc_results *results = nullptr;
        check(byoc_model_run_alloc(get(), in.data(), in.size(), options, &results));
        return Results(results);
    }
    const byoc_model *get() const { return model_.get(); }

  private:
    explicit Model(byoc_model *model) : model_(model) {}
    static std::vector<byoc_tensor_view> views(const std::vector<View> &of) {
        std::vector<byoc_tensor_view> all;
        for (const auto &view : of) all.push_back(view.get());
        return all;
    }
    struct Free {
        void operator()(byoc_model *model) const { byoc_model_free(model); }
    };
    std::unique_ptr<byoc_model, Free> model_;
};

} // namespace byoc

#endif
