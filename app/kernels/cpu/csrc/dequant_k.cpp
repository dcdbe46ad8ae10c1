// Panels of the types with blocks of 256 elements.
#include "dequant_kernel.h"
#include "matvec_decode_k.h"

namespace ls {

namespace {

constexpr DequantType TYPES[] = {
    dequant_type<DecodeQ2_K>(TYPE_Q2_K), dequant_type<DecodeQ3_K>(TYPE_Q3_K), dequant_type<DecodeQ4_K>(TYPE_Q4_K),
    dequant_type<DecodeQ5_K>(TYPE_Q5_K), dequant_type<DecodeQ6_K>(TYPE_Q6_K), dequant_type<DecodeIQ4_XS>(TYPE_IQ4_XS),
};

}  // namespace

const DequantType *dequant_k_type(int32_t type) {
    for (const DequantType &row : TYPES) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace ls
