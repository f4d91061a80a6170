// The engine process: llama-server with Ostinato's routes and settings. Takes llama-server's arguments, and its own:
//
//   --ostinato-count-routes   count the routes of the model's experts

#include "ostinato.h"

#include "ostinato/server-routes.h"

#include <cstring>
#include <vector>

int llama_server(int argc, char ** argv);

int main(int argc, char ** argv) {
    std::vector<char *> rest;
    for (int i = 0; i < argc; ++i) {
        if (strcmp(argv[i], "--ostinato-count-routes") == 0) {
            ostinato_set_count_routes(true);
        } else {
            rest.push_back(argv[i]);
        }
    }
    rest.push_back(nullptr);
    ostinato_enable_server_routes();
    return llama_server((int) rest.size() - 1, rest.data());
}
