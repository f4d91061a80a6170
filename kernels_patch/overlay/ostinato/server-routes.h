// Ostinato's HTTP routes inside the engine process. They listen where the server listens: on a socket that only the daemon can reach.
//
//   GET  /ostinato/status     {"abi","llama_commit",
//                              "route_counting":{"enabled","reason","n_layers","n_experts"},
//                              "residency":{"state":"none"|"applied"|"refused","reason","generation","hot_experts","pool_bytes"},
//                              "devices":[{"name","gpu","pool_capacity","pool_used","pool_room","pool_unlearned","published","cold_routes","waited_ms","decode_waited_ms",
//                                          "cpu_routes","linked","link_columns","hidden_columns","cpu_busy_ms","decode_busy_ms",
//                                          "uploaded","uploaded_bytes","prefetched","foreseen","staging_bytes","borrowed","borrowed_bytes","graphs","speeds","kinds"}, ...]:
//                                          "speeds","link_columns" and "hidden_columns" of the kind of experts with the most bytes, and "kinds":[{"types","layers":[il, ...],
//                                          "expert_bytes","measured","speeds","link_columns","hidden_columns"}, ...], layers whose experts have the same
//                                          types and shapes; "measured": the kind in this list with whose experts their speeds were measured, -1: none,
//                              "pool_bytes": of each GPU or null, "unlearned_bytes": what of it a set should take that nobody has learned,
//                              "page_locked":{"bytes","reason"}: of cold experts, and why not all of them are,
//                              "gpu_of_layer": null or of each MoE layer the place of its GPU in "pool_bytes",
//                              "cpu_branch": null or of each device {"name","decode":[{"layer","expert_bytes","steps":[n with 1, 2, ... cold routes],
//                                          "cpu_ms":[their sum]}, ...],"prefill":{"steps","cpu_routes","cpu_ms","cpu_ms_predicted"},
//                                          "uploads":{"steps","ms","ms_expected","costs":[by size of passes {"tokens","link_bytes_per_s","hot_ms","chain_ms",
//                                          "cpu","cpu_alone"}]}},
//                              "memory": bytes by use, of each GPU and of the host}
//   GET  /ostinato/routes     {"layers":[il, ...],"n_experts","prefill":[[...], ...],"decode":[[...], ...]}, since the model was loaded
//   GET  /ostinato/residency  {"generation","created_at","fingerprint","layers":[il, ...],"n_experts","hot":[[expert, ...], ...],
//                              "provenance": text}; 404 without a residency set
//   POST /ostinato/residency  {"path"}: the set of that file compared with the one in use. 200 when they are the same, 422 with the reason
//                             when the file does not fit the model, 409 when it does: it takes a restart with --ostinato-residency to
//                             apply it. 200 and 409 carry "would_change":{"generation":[now, then],"become_hot","become_cold"}.
//
// While a model loads, the process writes lines "ostinato-load <share between 0 and 1>" to standard output.

#pragma once

struct server_context;
struct server_http_context;

// Called by ostinato-engine before the server starts; llama-server never calls it and so keeps its own routes and output.
void ostinato_enable_server_routes();

// Hook: called by llama_server after its last stock route. Inert when ostinato_enable_server_routes was not called.
void ostinato_add_server_routes(server_http_context & http, server_context & server);
