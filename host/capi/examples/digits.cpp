// Classifies an 8 x 8 grayscale image: digits MODEL < IMAGE, where IMAGE contains 64 values from 0 to 1.
#include <algorithm>
#include <byoc.hpp>
#include <iostream>

int main(int argc, char **argv) {
    std::vector<float> image(64), logits(10);
    for (float &value : image)
        if (argc != 2 || !(std::cin >> value)) return 2;
    try {
        byoc::Session session;
        auto model = byoc::Model::compile(session, argv[1], {}, {{"batch", 1}});
        model.run({{image.data(), {1, 1, 8, 8}}}, {{logits.data(), {1, 10}}});
    } catch (const byoc::Error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    std::cout << std::max_element(logits.begin(), logits.end()) - logits.begin() << '\n';
}
