// The registry of models that Ostinato serves in this process, and what each of them has. Entered by the thread that loads or frees a
// model, by every thread that builds a graph, and by readers of the C interface.

#pragma once

#include "route-counts.h"

#include <memory>
#include <string>

struct llama_model;

// What Ostinato keeps for one model.
struct ostinato_model {
    std::string reason;                            // why routes are not counted, "" when they are
    std::unique_ptr<ostinato_route_counts> counts; // nullptr when they are not
};

// The entry of a registered model, or nullptr. Valid until the model is freed.
std::shared_ptr<ostinato_model> ostinato_find_model(const llama_model * model);

bool ostinato_counts_routes();
