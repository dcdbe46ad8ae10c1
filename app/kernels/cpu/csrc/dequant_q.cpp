// Panels of the types with blocks of 32 elements.
#include "dequant_kernel.h"

namespace ls {

namespace {

constexpr DequantType TYPES[] = {
    dequant_type<DecodeQ4_0>(TYPE_Q4_0), dequant_type<DecodeQ4_1>(TYPE_Q4_1),     dequant_type<DecodeQ5_0>(TYPE_Q5_0),
    dequant_type<DecodeQ5_1>(TYPE_Q5_1), dequant_type<DecodeQ8_0>(TYPE_Q8_0),     dequant_type<DecodeIQ4_NL>(TYPE_IQ4_NL),
    dequant_type<DecodeMXFP4>(TYPE_MXFP4),
};

}  // namespace

const DequantType *dequant_q_type(int32_t type) {
    for (const DequantType &row : TYPES) {
        if (row.type == type) {
            return &row;
        }
    }
    return nullptr;
}

}  // namespace ls
