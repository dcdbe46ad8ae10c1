// Linked with llama.cpp's test-backend-ops: makes the device of an RPC worker known before main,
// and numbers the cases, so that a run can go on behind one that ended the process.
//
// OPS_ENDPOINT is the worker's host:port, OPS_FIRST the number of the first case to run. Each case
// that is run prints "case N" first.

#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-rpc.h"

namespace {

struct Registered {
    Registered() {
        const char * endpoint = std::getenv("OPS_ENDPOINT");
        ggml_backend_reg_t reg = endpoint ? ggml_backend_rpc_add_server(endpoint) : nullptr;
        if (reg == nullptr) {
            std::fprintf(stderr, "no worker at OPS_ENDPOINT\n");
            std::exit(2);
        }
        ggml_backend_register(reg);
    }
};

const Registered registered;

template <typename Function> Function original(const char * name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int first_case() {
    const char * text = std::getenv("OPS_FIRST");
    return text ? std::atoi(text) : 0;
}

const int first = first_case();
int number = 0;

}  // namespace

// Takes the place of the function of libggml-base; a case without memory ends before its data is
// made, which is what costs time.
extern "C" ggml_backend_buffer_t ggml_backend_alloc_ctx_tensors(
    ggml_context * context, ggml_backend_t backend) {
    if (number < first) {
        ++number;
        return nullptr;
    }
    static const auto allocate =
        original<decltype(&ggml_backend_alloc_ctx_tensors)>("ggml_backend_alloc_ctx_tensors");
    return allocate(context, backend);
}

extern "C" bool ggml_backend_compare_graph_backend(
    ggml_backend_t a, ggml_backend_t b, ggml_cgraph * graph, ggml_backend_eval_callback callback,
    void * user_data, ggml_tensor const * const * nodes, size_t n_nodes) {
    static const auto compare = original<decltype(&ggml_backend_compare_graph_backend)>(
        "ggml_backend_compare_graph_backend");
    std::printf("case %d\n", number++);
    std::fflush(stdout);
    return compare(a, b, graph, callback, user_data, nodes, n_nodes);
}
