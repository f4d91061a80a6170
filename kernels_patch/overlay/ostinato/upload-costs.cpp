// Implementation of upload-costs.h.

#include "upload-costs.h"

ostinato_upload_costs ostinato_upload_log::costs(int64_t n_tokens, double link) const {
    const std::lock_guard<std::mutex> lock(mutex);
    ostinato_upload_costs costs = { link };
    const int size = ostinato_size_class(n_tokens);
    const auto nearest = [&](samples size_class::* of) -> const samples * {
        for (int distance = 0; distance < (int) by_size.size(); ++distance) {
            for (const int at : { size - distance, size + distance }) {
                if (at >= 0 && at < (int) by_size.size() && (by_size[at].*of).is_fixed()) {
                    return &(by_size[at].*of);
                }
            }
        }
        return nullptr;
    };
    if (const samples * found = nearest(&size_class::link)) { // with it, its other costs are
        costs.link  = found->quantile(0.5);
        costs.hot   = nearest(&size_class::hot)->quantile(0.5);
        costs.chain = nearest(&size_class::chain)->quantile(0.5);
        costs.cpu   = nearest(&size_class::cpu)->quantile(0.5);
    }
    if (const samples * found = nearest(&size_class::alone)) {
        costs.cpu_alone = found->quantile(0.5);
    }
    return costs;
}

void ostinato_upload_log::add_shared(int64_t n_tokens, const ostinato_upload_costs & found) {
    const std::lock_guard<std::mutex> lock(mutex);
    size_class & size = by_size[ostinato_size_class(n_tokens)];
    size.link.add(found.link);
    size.hot.add(found.hot);
    size.chain.add(found.chain);
    size.cpu.add(found.cpu);
}

void ostinato_upload_log::add_alone(int64_t n_tokens, double cpu) {
    const std::lock_guard<std::mutex> lock(mutex);
    by_size[ostinato_size_class(n_tokens)].alone.add(cpu);
}

std::vector<ostinato_fixed_costs> ostinato_upload_log::fixed() const {
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<ostinato_fixed_costs> found;
    for (size_t i = 0; i < by_size.size(); ++i) {
        const size_class & size = by_size[i];
        if (size.link.is_fixed()) {
            const double alone = size.alone.is_fixed() ? size.alone.quantile(0.5) : 1.0;
            found.push_back({ (int64_t) 1 << i, { size.link.quantile(0.5), size.hot.quantile(0.5), size.chain.quantile(0.5), size.cpu.quantile(0.5), alone } });
        }
    }
    return found;
}
