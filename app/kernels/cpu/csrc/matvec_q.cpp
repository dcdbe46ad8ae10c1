// Products for the types with blocks of 32 elements.
#include "matvec_kernel.h"

namespace ls {

namespace {

constexpr MatvecType TYPES[] = {
    matvec_type<DecodeQ4_0>(TYPE_Q4_0), matvec_type<DecodeQ4_1>(TYPE_Q4_1),     matvec_type<DecodeQ5_0>(TYPE_Q5_0),
    matvec_type<DecodeQ5_1>(TYPE_Q5_1), matvec_type<DecodeQ8_0>(TYPE_Q8_0),     matvec_type<DecodeIQ4_NL>(TYPE_IQ4_NL),
    matvec_type<DecodeMXFP4>(TYPE_MXFP4),
};

}  // namespace

const MatvecType *matvec_q_type(int32_t type) {
    for (const MatvecType &row : TYPES) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace ls
