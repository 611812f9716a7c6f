// In CUDA's place where a .cu is compiled as C++, after kernels/cpu/convert.h.
#pragma once

struct __half {
  uint16_t bits;
};

inline float __half2float(__half value) { return from_fp16(value.bits); }
inline __half __float2half_rn(float value) { return {to_fp16(value)}; }
