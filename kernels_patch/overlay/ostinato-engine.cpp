// The engine process: llama-server with Ostinato's routes and settings. Takes llama-server's arguments, and its own:
//
//   --ostinato-count-routes        count the routes of the model's experts
//   --ostinato-fingerprint HEX     of the model's GGUF headers; what a residency file is compared with
//   --ostinato-residency FILE      apply this residency set to the model; implies counting, and needs the fingerprint. Expert weights must
//                                  lie in host memory as they are in the GGUF, so llama-server's --no-repack belongs with it

#include "ostinato.h"

#include "ostinato/server-routes.h"

#include <cstdio>
#include <cstring>
#include <vector>

int llama_server(int argc, char ** argv);

int main(int argc, char ** argv) {
    ostinato_config config = { nullptr, nullptr };
    std::vector<char *> rest;
    for (int i = 0; i < argc; ++i) {
        const char ** value = strcmp(argv[i], "--ostinato-fingerprint") == 0 ? &config.fingerprint
                            : strcmp(argv[i], "--ostinato-residency")   == 0 ? &config.residency_file : nullptr;
        if (value) {
            if (i + 1 == argc) {
                fprintf(stderr, "%s: expected a value after it, found the end of the arguments\n", argv[i]);
                return 1;
            }
            *value = argv[++i];
        } else if (strcmp(argv[i], "--ostinato-count-routes") == 0) {
            ostinato_set_count_routes(true);
        } else {
            rest.push_back(argv[i]);
        }
    }
    if (ostinato_configure(&config) != OSTINATO_OK) {
        fprintf(stderr, "--ostinato-%s\n", ostinato_last_error());
        return 1;
    }
    rest.push_back(nullptr);
    ostinato_enable_server_routes();
    return llama_server((int) rest.size() - 1, rest.data());
}
