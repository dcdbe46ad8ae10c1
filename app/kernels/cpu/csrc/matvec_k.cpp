// Products for the types with blocks of 256 elements.
#include "matvec_decode_k.h"
#include "matvec_kernel.h"

namespace ls {

namespace {

constexpr MatvecType TYPES[] = {
    matvec_type<DecodeQ2_K>(TYPE_Q2_K), matvec_type<DecodeQ3_K>(TYPE_Q3_K), matvec_type<DecodeQ4_K>(TYPE_Q4_K),
    matvec_type<DecodeQ5_K>(TYPE_Q5_K), matvec_type<DecodeQ6_K>(TYPE_Q6_K), matvec_type<DecodeIQ4_XS>(TYPE_IQ4_XS),
};

}  // namespace

const MatvecType *matvec_k_type(int32_t type) {
    for (const MatvecType &row : TYPES) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace ls
