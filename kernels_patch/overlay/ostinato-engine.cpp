// The engine process: llama-server with Ostinato's routes and settings. Takes llama-server's arguments, and its own:
//
//   --ostinato-count-routes        count the routes of the model's experts
//   --ostinato-fingerprint HEX     of the model's GGUF headers; what a residency file is compared with
//   --ostinato-residency FILE      apply this residency set to the model; implies counting, and needs the fingerprint
//   --ostinato-branches            divide the model's experts between the GPU and the CPU branch. On GPUs as many as fit are hot, the same
//                                  share of every layer, until a residency set says which. Expert weights must lie in host memory as they are in the GGUF: --cpu-moe --no-repack. With layers on GPUs
//                                  --no-warmup belongs here too, since warming up goes through all experts on the CPU
//   --ostinato-pool-mib N          most memory of each GPU for hot experts                  default: what is left
//   --ostinato-margin-mib N        memory of each GPU that stays free                       default: 1024
//   --ostinato-pin-mib N           most host memory to page-lock for cold experts           default: what the system can spare
//   --ostinato-threads N           of the CPU branch of layers on GPUs                      default: one per physical core, less one
//   --ostinato-upload-tokens N     passes of so many tokens may upload cold experts         default: 64
//   --ostinato-upload-all-tokens N in passes of so many, all that can be are uploaded       default: never; a choice per expert instead
//   --ostinato-no-uploads          none ever does
//   --ostinato-link-percent N      of a cold expert's hidden columns that the GPU reads in place in steps of few tokens
//                                                                                           default: by measured speeds
//   --ostinato-no-link             none
//   --ostinato-staging-experts N   least room of the memory in which prefill stages uploads default: an eighth of the pool
//   --ostinato-borrow-percent N    of the memory in which prefill stages uploads, lent to cold experts in decode
//   --ostinato-no-borrowing        none
//   --ostinato-prefetch-us N       the link's head start on a layer's router, in prefill    default: as measured
//   --ostinato-no-prefetch         uploads begin when a layer's router has run
//   --ostinato-copy-blocks N       of the kernel that uploads, half of them ahead of a router default: as it was built
//   --ostinato-timeout-ms N        longest wait for the CPU branch                          default: 20000

#include "ostinato.h"

#include "ostinato/server-routes.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

int llama_server(int argc, char ** argv);

// A number from 0 to 2^31 - 1, as the whole of `text`.
static bool parse_number(const char * text, uint64_t & value) {
    char * end = nullptr;
    const long long parsed = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || parsed < 0 || parsed > 0x7fffffff) {
        return false;
    }
    value = (uint64_t) parsed;
    return true;
}

int main(int argc, char ** argv) {
    // A kernel that is loaded while another one waits for the CPU branch would wait for that one.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);

    ostinato_config config = {};
    uint64_t pool_mib = 0;
    uint64_t margin_mib = 0;
    uint64_t pin_mib = 0;
    uint64_t n_threads = 0;
    uint64_t timeout_ms = 0;
    uint64_t upload_tokens = 0;
    uint64_t upload_all_tokens = 0;
    uint64_t link_percent = 0;
    uint64_t staging_experts = 0;
    uint64_t borrow_percent = 0;
    uint64_t prefetch_us = 0;
    uint64_t copy_blocks = 0;
    bool has_uploads = true;
    bool has_link    = true;
    bool has_borrowing = true;
    bool has_prefetch = true;
    const struct {
        const char * name;
        uint64_t * value;
    } numbers[] = {
        { "--ostinato-pool-mib", &pool_mib }, { "--ostinato-margin-mib", &margin_mib }, { "--ostinato-pin-mib", &pin_mib },
        { "--ostinato-threads", &n_threads }, { "--ostinato-timeout-ms", &timeout_ms },
        { "--ostinato-upload-tokens", &upload_tokens }, { "--ostinato-upload-all-tokens", &upload_all_tokens },
        { "--ostinato-link-percent", &link_percent },
        { "--ostinato-staging-experts", &staging_experts },
        { "--ostinato-borrow-percent", &borrow_percent },
        { "--ostinato-prefetch-us", &prefetch_us },
        { "--ostinato-copy-blocks", &copy_blocks },
    };
    std::vector<char *> rest;
    for (int i = 0; i < argc; ++i) {
        const char ** text = strcmp(argv[i], "--ostinato-fingerprint") == 0 ? &config.fingerprint
                           : strcmp(argv[i], "--ostinato-residency")   == 0 ? &config.residency_file : nullptr;
        uint64_t * number = nullptr;
        for (const auto & n : numbers) {
            number = strcmp(argv[i], n.name) == 0 ? n.value : number;
        }
        if ((text || number) && i + 1 == argc) {
            fprintf(stderr, "%s: expected a value after it, found the end of the arguments\n", argv[i]);
            return 1;
        }
        if (text) {
            *text = argv[++i];
        } else if (number) {
            if (!parse_number(argv[i + 1], *number)) {
                fprintf(stderr, "%s: expected a number from 0 to 2147483647, found '%s'\n", argv[i], argv[i + 1]);
                return 1;
            }
            ++i;
        } else if (strcmp(argv[i], "--ostinato-count-routes") == 0) {
            ostinato_set_count_routes(true);
        } else if (strcmp(argv[i], "--ostinato-branches") == 0) {
            config.two_branches = true;
        } else if (strcmp(argv[i], "--ostinato-no-uploads") == 0) {
            has_uploads = false;
        } else if (strcmp(argv[i], "--ostinato-no-link") == 0) {
            has_link = false;
        } else if (strcmp(argv[i], "--ostinato-no-borrowing") == 0) {
            has_borrowing = false;
        } else if (strcmp(argv[i], "--ostinato-no-prefetch") == 0) {
            has_prefetch = false;
        } else {
            rest.push_back(argv[i]);
        }
    }
    config.pool_bytes   = pool_mib*1024*1024;
    config.margin_bytes = margin_mib*1024*1024;
    config.pin_bytes    = pin_mib*1024*1024;
    config.n_threads    = (int32_t) n_threads;
    config.timeout_ms   = (uint32_t) timeout_ms;
    config.upload_tokens     = has_uploads ? (uint32_t) upload_tokens : UINT32_MAX;
    config.upload_all_tokens = (uint32_t) upload_all_tokens;
    config.link_percent      = has_link ? (int32_t) link_percent : -1;
    config.staging_experts   = (int32_t) staging_experts;
    config.borrow_percent    = has_borrowing ? (int32_t) borrow_percent : -1;
    config.prefetch_us       = has_prefetch ? (int32_t) prefetch_us : -1;
    config.copy_blocks       = (int32_t) copy_blocks;
    if (ostinato_configure(&config) != OSTINATO_OK) {
        fprintf(stderr, "--ostinato-%s\n", ostinato_last_error());
        return 1;
    }
    rest.push_back(nullptr);
    ostinato_enable_server_routes();
    return llama_server((int) rest.size() - 1, rest.data());
}
