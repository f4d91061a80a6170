// Implementation of server-routes.h. Handlers run on the HTTP server's threads.

#include "ostinato.h"

#include "server-routes.h"

#include "server-common.h"
#include "server-context.h"
#include "server-http.h"

#include <atomic>
#include <cstdio>
#include <vector>

static std::atomic<bool> enabled { false };

// Set on the loading thread when a model is ready; the server accepts no request before that.
static std::atomic<const llama_model *> served_model { nullptr };

void ostinato_enable_server_routes() {
    enabled.store(true);
}

static server_http_res_ptr respond(const json & body, int status = 200) {
    auto res = std::make_unique<server_http_res>();
    res->status = status;
    res->data   = safe_json_to_str(body);
    return res;
}

static server_http_res_ptr get_status(const server_http_req &) {
    ostinato_route_shape shape = { 0, 0 };
    const bool is_counting = ostinato_get_route_shape(served_model.load(), &shape) == OSTINATO_OK;
    return respond({
        { "abi",          ostinato_abi_version() },
        { "llama_commit", ostinato_llama_commit() },
        { "route_counting", {
            { "enabled",   is_counting },
            { "reason",    is_counting ? "" : ostinato_last_error() },
            { "n_layers",  shape.n_layers },
            { "n_experts", shape.n_experts },
        }},
    });
}

static json rows(const std::vector<uint64_t> & counts, int32_t n_experts) {
    json out = json::array();
    for (size_t at = 0; at < counts.size(); at += n_experts) {
        json row = json::array();
        for (int32_t e = 0; e < n_experts; ++e) {
            row.push_back(counts[at + e]);
        }
        out.push_back(std::move(row));
    }
    return out;
}

static server_http_res_ptr get_routes(const server_http_req &) {
    const llama_model * model = served_model.load();

    ostinato_route_shape shape = { 0, 0 };
    if (ostinato_get_route_shape(model, &shape) != OSTINATO_OK) {
        return respond({{ "error", {
            { "message", std::string("routes are not counted: ") + ostinato_last_error() },
            { "type",    "not_supported_error" },
            { "code",    501 },
        }}}, 501);
    }
    std::vector<int32_t>  layers (shape.n_layers);
    std::vector<uint64_t> prefill((size_t) shape.n_layers*shape.n_experts);
    std::vector<uint64_t> decode (prefill.size());
    ostinato_get_route_layers(model, layers.data(), layers.size());
    ostinato_get_route_counts(model, OSTINATO_PHASE_PREFILL, prefill.data(), prefill.size());
    ostinato_get_route_counts(model, OSTINATO_PHASE_DECODE,  decode.data(),  decode.size());

    return respond({
        { "layers",    layers },
        { "n_experts", shape.n_experts },
        { "prefill",   rows(prefill, shape.n_experts) },
        { "decode",    rows(decode,  shape.n_experts) },
    });
}

void ostinato_add_server_routes(server_http_context & http, server_context & server) {
    if (!enabled.load()) {
        return;
    }
    http.get("/ostinato/status", get_status);
    http.get("/ostinato/routes", get_routes);

    server.set_state_callback([&server](server_state state, json payload) {
        if (state == SERVER_STATE_READY) {
            served_model.store(llama_get_model(server.get_llama_context()));
        } else if (state == SERVER_STATE_LOADING) {
            printf("ostinato-load %.4f\n", json_value(payload, "value", 0.0));
            fflush(stdout);
        }
    });
}
