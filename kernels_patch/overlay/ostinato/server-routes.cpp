// Implementation of server-routes.h. Handlers run on the HTTP server's threads.

#include "ostinato.h"

#include "engine.h"
#include "server-routes.h"

#include "server-common.h"
#include "server-context.h"
#include "server-http.h"

#include "llama-ext.h"

#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

static std::atomic<bool> enabled { false };

// The server accepts no request before its model is loaded. It says that a model is ready only after it has slept, so the model is asked for;
// a sleeping server is about to free what it would answer with, or has done so.
static struct {
    std::mutex mutex;
    const server_context * server = nullptr;
    bool is_asleep = false;
} served;

// What the server serves, nullptr while it sleeps.
static const llama_context * served_context() {
    std::lock_guard<std::mutex> lock(served.mutex);
    return served.is_asleep ? nullptr : served.server->get_llama_context();
}

static const llama_model * served_model() {
    const llama_context * ctx = served_context();
    return ctx ? llama_get_model(ctx) : nullptr;
}

void ostinato_enable_server_routes() {
    enabled.store(true);
}

static server_http_res_ptr respond(const json & body, int status = 200) {
    auto res = std::make_unique<server_http_res>();
    res->status = status;
    res->data   = safe_json_to_str(body);
    return res;
}

static server_http_res_ptr respond_error(int status, const char * type, const std::string & message, const json & more = json::object()) {
    json body = more;
    body["error"] = {
        { "message", message },
        { "type",    type },
        { "code",    status },
    };
    return respond(body, status);
}

static json describe_residency(const llama_model * model) {
    ostinato_residency_status status = { OSTINATO_RESIDENCY_NONE, 0, 0, 0 };
    ostinato_get_residency_status(model, &status);
    const char * state = status.state == OSTINATO_RESIDENCY_APPLIED ? "applied" : status.state == OSTINATO_RESIDENCY_REFUSED ? "refused" : "none";
    return {
        { "state",       state },
        { "reason",      ostinato_last_error() },
        { "generation",  status.generation },
        { "hot_experts", status.n_hot },
        { "pool_bytes",  status.pool_bytes },
    };
}

// Decode steps of one token whose layer had 1, 2, … cold routes, and what the CPU branch took for them together; layers without any are left out.
static json describe_decode(const ostinato_memory_view & device) {
    json out = json::array();
    for (const ostinato_layer_times & times : device.decode) {
        std::vector<uint64_t> steps = times.steps;
        while (!steps.empty() && steps.back() == 0) {
            steps.pop_back();
        }
        json ms = json::array();
        for (size_t i = 0; i < steps.size(); ++i) {
            ms.push_back(times.ns[i]/1e6);
        }
        if (!steps.empty()) {
            out.push_back({{ "layer", times.il }, { "expert_bytes", times.expert_bytes }, { "steps", steps }, { "cpu_ms", ms }});
        }
    }
    return out;
}

// What layers with uploads took beside what was expected of them, and the costs that the choice has learned.
static json describe_uploads(const ostinato_upload_times & uploads) {
    json costs = json::array();
    for (const ostinato_fixed_costs & fixed : uploads.costs) {
        costs.push_back({
            { "tokens",           fixed.n_tokens },
            { "link_bytes_per_s", fixed.costs.link > 0.0 ? 1.0/fixed.costs.link : 0.0 },
            { "hot_ms",           1e3*fixed.costs.hot },
            { "chain_ms",         1e3*fixed.costs.chain },
            { "cpu",              fixed.costs.cpu },
            { "cpu_alone",        fixed.costs.cpu_alone },
        });
    }
    return {{ "steps", uploads.steps }, { "ms", uploads.ns/1e6 }, { "ms_expected", uploads.expected_ns/1e6 }, { "costs", costs }};
}

// What the CPU branch took, as the cost model needs it: by device. Null where experts are not divided between two branches.
static json describe_cpu_branch(const ostinato_residency_view & view) {
    if (!view.has_placement) {
        return nullptr;
    }
    json out = json::array();
    for (const ostinato_memory_view & device : view.devices) {
        out.push_back({
            { "name",   device.device },
            { "decode", describe_decode(device) },
            { "prefill", {
                { "steps",            device.prefill.steps },
                { "cpu_routes",       device.prefill.n_routes },
                { "cpu_ms",           device.prefill.ns/1e6 },
                { "cpu_ms_predicted", device.prefill.predicted_ns/1e6 },
            }},
            { "uploads", describe_uploads(device.uploads) },
        });
    }
    return out;
}

// What a device or a kind of experts counts with: 0 where nothing was measured, and in place where the link has no columns.
static json describe_speeds(const ostinato_speeds & speeds, int64_t link_columns) {
    const auto speed = [&](double seconds_per_byte) { return speeds.is_default ? 0.0 : 1.0/seconds_per_byte; };
    return {
        { "cpu_row_bytes_per_s",  speed(speeds.cpu_row) },
        { "cpu_rows_bytes_per_s", speed(speeds.cpu_rows) },
        { "link_bytes_per_s",     speed(speeds.link) },
        { "in_place_bytes_per_s", link_columns > 0 ? speed(speeds.in_place) : 0.0 },
    };
}

// Layers by kind of experts, and what they count with.
static json describe_kinds(const ostinato_memory_view & device) {
    json out = json::array();
    for (const ostinato_kind_view & kind : device.kinds) {
        out.push_back({
            { "types",          ostinato_type_names(kind.types) },
            { "layers",         kind.layers },
            { "expert_bytes",   kind.expert_bytes },
            { "measured",       kind.measured },
            { "speeds",         describe_speeds(kind.speeds, kind.link_columns) },
            { "link_columns",   kind.link_columns },
            { "hidden_columns", kind.hidden_columns },
        });
    }
    return out;
}

static json describe_devices(const llama_model * model, const ostinato_residency_view & view) {
    size_t n = 0;
    ostinato_get_device_status(model, nullptr, 0, &n);
    std::vector<ostinato_device_status> devices(n);
    ostinato_get_device_status(model, devices.data(), devices.size(), &n);
    const ostinato_memory_view unseen;
    json out = json::array();
    for (const auto & d : devices) {
        const ostinato_memory_view & seen = out.size() < view.devices.size() ? view.devices[out.size()] : unseen;
        out.push_back({
            { "name",          d.name },
            { "gpu",           d.is_gpu },
            { "pool_capacity", d.pool_capacity },
            { "pool_used",     d.pool_used },
            { "pool_room",     d.pool_room },
            { "pool_unlearned", d.pool_unlearned },
            { "published",     d.n_published },
            { "cold_routes",   d.n_cold },
            { "waited_ms",     d.waited_ns/1e6 },
            { "decode_waited_ms", d.decode_waited_ns/1e6 },
            { "decode_busy_ms",   d.decode_busy_ns/1e6 },
            { "cpu_routes",    d.n_cpu },
            { "linked",        d.n_linked },
            { "link_columns",  d.link_columns },
            { "hidden_columns", d.hidden_columns },
            { "cpu_busy_ms",   d.cpu_busy_ns/1e6 },
            { "uploaded",      d.n_uploaded },
            { "uploaded_bytes", d.uploaded_bytes },
            { "prefetched",    d.n_prefetched },
            { "foreseen",      d.n_foreseen },
            { "staging_bytes", d.staging_bytes },
            { "borrowed_bytes", d.borrowed_bytes },
            { "borrowed",      d.n_borrowed },
            { "graphs", {
                { "captures",      d.graph_captures },
                { "replays",       d.graph_replays },
                { "direct_passes", d.direct_passes },
            }},
            { "speeds",        describe_speeds(seen.speeds, seen.link_columns) },
            { "kinds",         describe_kinds(seen) },
        });
    }
    return out;
}

// Bytes by use: of each GPU, and of host memory. A pool is its device's, and the loader does not know of it.
static json describe_memory(const llama_context * ctx, const json & devices) {
    std::map<ggml_backend_dev_t, llama_memory_breakdown_data> by_device;
    llama_memory_breakdown_data host;
    for (const auto & [buft, bytes] : llama_get_memory_breakdown(ctx)) {
        ggml_backend_dev_t dev = ggml_backend_buft_get_device(buft);
        const bool is_host = !dev || ggml_backend_buft_is_host(buft) || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
        llama_memory_breakdown_data & use = is_host ? host : by_device[dev];
        use.model   += bytes.model;
        use.context += bytes.context;
        use.compute += bytes.compute;
    }
    json gpus = json::array();
    for (const auto & [dev, use] : by_device) {
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        ggml_backend_dev_memory(dev, &free_bytes, &total_bytes);
        uint64_t pool_bytes = 0;
        uint64_t staging_bytes = 0;
        uint64_t borrowed_bytes = 0;
        for (const json & device : devices) {
            if (device.at("name").get<std::string>() == ggml_backend_dev_name(dev)) {
                const uint64_t lent = device.at("staging_bytes").get<uint64_t>(); // all that hot experts do not take, where any is
                pool_bytes     = device.at(lent > 0 ? "pool_used" : "pool_capacity").get<uint64_t>();
                borrowed_bytes = device.at("borrowed_bytes").get<uint64_t>();
                staging_bytes  = lent - borrowed_bytes;
            }
        }
        gpus.push_back({
            { "name",          ggml_backend_dev_name(dev) },
            { "total_bytes",   total_bytes },
            { "free_bytes",    free_bytes },
            { "dense_bytes",   use.model },
            { "kv_bytes",      use.context },
            { "compute_bytes", use.compute },
            { "pool_bytes",    pool_bytes },
            { "borrowed_bytes", borrowed_bytes },
            { "staging_bytes", staging_bytes },
        });
    }
    return {
        { "devices", gpus },
        { "host", {{ "weights_bytes", host.model }, { "kv_bytes", host.context }, { "compute_bytes", host.compute }} },
    };
}

// Of each MoE layer, which of `pool_bytes` it shares; null with one GPU.
static json describe_gpu_of_layer(const ostinato_residency_view & view) {
    std::map<int32_t, size_t> gpu_of_layer;
    size_t n_gpus = 0;
    for (const ostinato_memory_view & device : view.devices) {
        for (const ostinato_layer_times & times : device.decode) {
            gpu_of_layer[times.il] = n_gpus;
        }
        n_gpus += device.is_gpu;
    }
    json out = nullptr;
    for (const auto & [il, gpu] : gpu_of_layer) {
        if (n_gpus > 1) {
            out.push_back(gpu);
        }
    }
    return out;
}

static server_http_res_ptr get_status(const server_http_req &) {
    const llama_model * model = served_model();
    ostinato_route_shape shape = { 0, 0 };
    const bool is_counting = ostinato_get_route_shape(model, &shape) == OSTINATO_OK;
    const std::string reason = is_counting ? "" : ostinato_last_error();
    const auto entry = ostinato_find_model(model);
    const ostinato_residency_view view = entry ? ostinato_view_residency(*entry) : ostinato_residency_view {};
    const json devices = describe_devices(model, view);
    json pool_bytes      = nullptr; // what hot experts may take, one number for each GPU,
    json unlearned_bytes = nullptr; // and what of it they should while nobody has learned which they are
    for (const json & device : devices) {
        if (device.at("gpu").get<bool>()) {
            pool_bytes.push_back(device.at("pool_room"));
            unlearned_bytes.push_back(device.at("pool_unlearned"));
        }
    }
    return respond({
        { "abi",          ostinato_abi_version() },
        { "llama_commit", ostinato_llama_commit() },
        { "route_counting", {
            { "enabled",   is_counting },
            { "reason",    reason },
            { "n_layers",  shape.n_layers },
            { "n_experts", shape.n_experts },
        }},
        { "residency", describe_residency(model) },
        { "devices",    devices },
        { "pool_bytes", pool_bytes },
        { "unlearned_bytes", unlearned_bytes },
        { "gpu_of_layer", describe_gpu_of_layer(view) },
        { "page_locked", {{ "bytes", view.pinned_bytes }, { "reason", view.pin_refusal }} }, // why not all cold experts are
        { "cpu_branch", describe_cpu_branch(view) },
        { "memory",     model ? describe_memory(served_context(), devices) : json(nullptr) },
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
    const llama_model * model = served_model();

    ostinato_route_shape shape = { 0, 0 };
    if (ostinato_get_route_shape(model, &shape) != OSTINATO_OK) {
        return respond_error(501, "not_supported_error", std::string("routes are not counted: ") + ostinato_last_error());
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

struct residency_deleter {
    void operator()(ostinato_residency * residency) const { ostinato_free_residency(residency); }
};

using residency_ptr = std::unique_ptr<ostinato_residency, residency_deleter>;

// The set in use, nullptr without one.
static residency_ptr current_residency() {
    ostinato_residency * residency = nullptr;
    ostinato_get_residency(served_model(), &residency);
    return residency_ptr(residency);
}

static std::vector<uint8_t> hot_flags(const ostinato_residency & residency) {
    const ostinato_residency_facts facts = ostinato_describe_residency(&residency);
    std::vector<uint8_t> hot((size_t) facts.n_layers*facts.n_experts);
    ostinato_get_residency_hot(&residency, hot.data(), hot.size());
    return hot;
}

static server_http_res_ptr get_residency(const server_http_req &) {
    const residency_ptr residency = current_residency();
    if (!residency) {
        return respond_error(404, "not_found_error", ostinato_last_error());
    }
    const ostinato_residency_facts facts = ostinato_describe_residency(residency.get());
    std::vector<int32_t> layers(facts.n_layers);
    ostinato_get_residency_layers(residency.get(), layers.data(), layers.size());

    const std::vector<uint8_t> flags = hot_flags(*residency);
    json hot = json::array();
    for (int32_t i = 0; i < facts.n_layers; ++i) {
        json experts = json::array();
        for (int32_t e = 0; e < facts.n_experts; ++e) {
            if (flags[(size_t) i*facts.n_experts + e]) {
                experts.push_back(e);
            }
        }
        hot.push_back(std::move(experts));
    }
    return respond({
        { "generation",  facts.generation },
        { "created_at",  facts.created_at_s },
        { "fingerprint", facts.fingerprint },
        { "layers",      layers },
        { "n_experts",   facts.n_experts },
        { "hot",         hot },
        { "provenance",  facts.provenance },
    });
}

// What applying `next` would change; both fit the model. Without a set in use no expert is hot.
static json compare(const ostinato_residency * current, const ostinato_residency & next) {
    const std::vector<uint8_t> then = hot_flags(next);
    const std::vector<uint8_t> now  = current ? hot_flags(*current) : std::vector<uint8_t>(then.size(), 0);
    int64_t become_hot  = 0;
    int64_t become_cold = 0;
    for (size_t i = 0; i < then.size(); ++i) {
        become_hot  += then[i] > now[i];
        become_cold += then[i] < now[i];
    }
    const uint64_t generation = current ? ostinato_describe_residency(current).generation : 0;
    return {
        { "generation",  json::array({ generation, ostinato_describe_residency(&next).generation }) },
        { "become_hot",  become_hot },
        { "become_cold", become_cold },
    };
}

static server_http_res_ptr post_residency(const server_http_req & req) {
    const json body = json::parse_no_throw(req.body);
    if (body.is_discarded() || !body.is_object() || !body.contains("path") || !body.at("path").is_string()) {
        return respond_error(400, "invalid_request_error", "expected {\"path\": FILE}");
    }
    const std::string path = body.at("path").get<std::string>();
    ostinato_residency * read = nullptr;
    const bool is_valid = ostinato_read_residency(path.c_str(), &read) == OSTINATO_OK;
    const residency_ptr next(read);
    if (!is_valid || ostinato_check_residency(served_model(), next.get()) != OSTINATO_OK) {
        return respond_error(422, "invalid_residency_file", ostinato_last_error());
    }
    const residency_ptr current = current_residency();
    const json changes = compare(current.get(), *next);
    if (current && ostinato_equal_residency(current.get(), next.get())) {
        const uint64_t generation = ostinato_describe_residency(next.get()).generation;
        return respond({{ "generation", generation }, { "moved", 0 }, { "swap_ms", 0.0 }, { "changed", changes }});
    }
    size_t n_devices = 0;
    ostinato_get_device_status(served_model(), nullptr, 0, &n_devices);
    if (n_devices == 0) {
        return respond_error(409, "restart_required", "the file fits the model, whose experts are not divided between two branches: "
            "restart the engine with the file to apply it", {{ "would_change", changes }});
    }
    const int64_t begin_us = ggml_time_us();
    if (ostinato_load_residency(served_model(), path.c_str()) != OSTINATO_OK) {
        return respond_error(422, "invalid_residency_file", ostinato_last_error());
    }
    const ostinato_residency_facts facts = ostinato_describe_residency(next.get());
    return respond({
        { "generation", facts.generation },
        { "moved",      changes.at("become_hot") },
        { "swap_ms",    (ggml_time_us() - begin_us)/1000.0 },
        { "changed",    changes },
    });
}

void ostinato_add_server_routes(server_http_context & http, server_context & server) {
    if (!enabled.load()) {
        return;
    }
    http.get ("/ostinato/status",    get_status);
    http.get ("/ostinato/routes",    get_routes);
    http.get ("/ostinato/residency", get_residency);
    http.post("/ostinato/residency", post_residency);

    served.server = &server;
    server.set_state_callback([](server_state state, json payload) {
        if (state == SERVER_STATE_LOADING) {
            printf("ostinato-load %.4f\n", json_value(payload, "value", 0.0));
            fflush(stdout);
            return;
        }
        std::lock_guard<std::mutex> lock(served.mutex);
        served.is_asleep = state == SERVER_STATE_SLEEPING;
    });
}
