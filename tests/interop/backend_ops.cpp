// Linked with llama.cpp's test-backend-ops: makes the device of an RPC worker known before main,
// and numbers the cases that both devices take, so that some of them can be run.
//
// OPS_ENDPOINT is the worker's host:port, OPS_CASES the numbers of the cases to run, with commas
// between. Each of them prints "case N" first; each other one says how large it is and ends before
// its data is made, which is what costs time. The program counts it as failed.

#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>

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

std::set<int> wanted_cases() {
    const char * text = std::getenv("OPS_CASES");
    std::istringstream numbers(text ? text : "");
    std::set<int> wanted;
    for (std::string one; std::getline(numbers, one, ',');) {
        wanted.insert(std::stoi(one));
    }
    return wanted;
}

const std::set<int> wanted = wanted_cases();
int number = 0;

size_t size_of(ggml_context * context) {
    size_t bytes = 0;
    for (ggml_tensor * t = ggml_get_first_tensor(context); t; t = ggml_get_next_tensor(context, t)) {
        bytes += t->view_src ? 0 : ggml_nbytes(t);
    }
    return bytes;
}

}  // namespace

// Takes the place of the function of libggml-base. A case without memory ends; others come here again
// for what they keep apart: weights, and the copy that the other device works on.
extern "C" ggml_backend_buffer_t ggml_backend_alloc_ctx_tensors(
    ggml_context * context, ggml_backend_t backend) {
    static const auto allocate =
        original<decltype(&ggml_backend_alloc_ctx_tensors)>("ggml_backend_alloc_ctx_tensors");
    if (wanted.count(number) == 0) {
        std::printf("\ncase %d has %zu bytes\n", number++, size_of(context));
        return nullptr;
    }
    ggml_backend_buffer_t buffer = allocate(context, backend);
    number += buffer == nullptr;
    return buffer;
}

extern "C" bool ggml_backend_compare_graph_backend(
    ggml_backend_t a, ggml_backend_t b, ggml_cgraph * graph, ggml_backend_eval_callback callback,
    void * user_data, ggml_tensor const * const * nodes, size_t n_nodes) {
    static const auto compare = original<decltype(&ggml_backend_compare_graph_backend)>(
        "ggml_backend_compare_graph_backend");
    std::printf("\ncase %d\n", number);
    std::fflush(stdout);
    const bool compared = compare(a, b, graph, callback, user_data, nodes, n_nodes);
    ++number;
    return compared;
}
