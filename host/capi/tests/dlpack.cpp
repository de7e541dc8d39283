// Tests managed tensors and the plan in C++: dlpack DIGITS.onnx.
#include <byoc.hpp>
#include <cstdio>

static int deleted;

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    std::vector<float> image(64, 0.5F);
    int64_t shape[] = {1, 1, 8, 8};
    byoc::Dlpack kept;
    {
        const byoc::Session session({}, 1);
        const auto model = byoc::Model::compile(session, argv[1], {}, {{"batch", 1}});
        if (model.plan().find("\"nn.conv2d\"") == std::string::npos) return 3;
        byoc::Dlpack other(new byoc_dlpack{});
        byoc_view(&other->view, "float32", image.data(), shape, 4);
        other->deleter = [](byoc_dlpack *tensor) {
            deleted++;
            delete tensor;
        };
        const auto input = byoc::Results::from(std::move(other));
        const auto results = model.run({byoc::View(input[0])});
        kept = results.to_dlpack(0);
        if (results.to_dlpack_versioned(0)->major != 1 || results.data<float>(0) != kept->view.data) return 4;
        try {
            (void)results.to_dlpack(1);
            return 5;
        } catch (const byoc::Error &error) {
            if (error.kind() != BYOC_ERROR_ARGUMENT) return 6;
        }
        byoc::DlpackVersioned wrong(new byoc_dlpack_versioned{});
        wrong->major = 9;
        wrong->deleter = [](byoc_dlpack_versioned *tensor) {
            deleted++;
            delete tensor;
        };
        try {
            byoc::Results::from(std::move(wrong));
            return 7;
        } catch (const byoc::Error &) {
        }
        if (deleted != 1) return 8;
    }
    if (deleted != 2) return 9;
    std::printf("%f\n", static_cast<const float *>(kept->view.data)[0]);
    return kept->view.shape[1] == 10 ? 0 : 10;
}
