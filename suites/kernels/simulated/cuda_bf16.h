// In CUDA's place where a .cu is compiled as C++, after kernels/cpu/convert.h.
#pragma once

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) { return from_bf16(value.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {to_bf16(value)}; }
