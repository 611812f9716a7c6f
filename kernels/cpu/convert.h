// Blocks of values between memory, in any dtype, and fp32. Narrowing rounds to nearest even; a NaN stays a NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "../dtype.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

// Elements that a kernel processes at a time: a few such fp32 blocks stay in the first-level cache.
constexpr int64_t kBlock = 1024;

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int64_t size_of(int dtype) { return dtype == kFp32 ? 4 : 2; }

inline uint16_t to_bf16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

inline float from_bf16(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }

inline uint16_t to_fp16(float value) {
  const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  // Normal: move the exponent's bias from 127 to 15 and round away 13 bits; the carry may go into the exponent.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Subnormal: adding 0.5 aligns the last bit of fp16 with the last bit of fp32, so the addition rounds.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  return static_cast<uint16_t>(sign | (magnitude >= 0x477ff000 ? special : finite));
}

inline float from_fp16(uint16_t half) {
  const uint32_t magnitude = half & 0x7fff, sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = normal + (112u << 23);
  const uint32_t subnormal = bits_of(float_of((magnitude << 13) + (113u << 23)) - float_of(113u << 23));
  return float_of(sign | (magnitude >= 0x7c00 ? special : magnitude < 0x400 ? subnormal : normal));
}

inline void widen_fp16(const uint16_t* __restrict from, float* __restrict to, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  }
#endif
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#endif
  for (; i < n; ++i) to[i] = from_fp16(from[i]);
}

inline void narrow_fp16(const float* __restrict from, uint16_t* __restrict to, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), kNearest));
  }
#endif
  for (; i < n; ++i) to[i] = to_fp16(from[i]);
}

inline void widen_bf16(const uint16_t* __restrict from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = from_bf16(from[i]);
}

inline void narrow_bf16(const float* __restrict from, uint16_t* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]);
}

// Prefetches elements [start, start + n), even past the last one: if a core alternates between many streams, its own
// prefetcher does not look far enough ahead.
template <int kToWrite>
void ask(const void* values, int dtype, int64_t start, int64_t n) {
  const char* lines = static_cast<const char*>(values) + start * size_of(dtype);
  for (int64_t at = 0; at < n * size_of(dtype); at += 64) __builtin_prefetch(lines + at, kToWrite);
}

// Elements [start, start + n) of `from` as fp32: in place, or converted into `scratch`.
inline const float* load(const void* from, int dtype, int64_t start, int64_t n, float* scratch) {
  if (dtype == kFp32) return static_cast<const float*>(from) + start;
  const uint16_t* halves = static_cast<const uint16_t*>(from) + start;
  dtype == kBf16 ? widen_bf16(halves, scratch, n) : widen_fp16(halves, scratch, n);
  return scratch;
}

// Writes n fp32 values to elements [start, start + n) of `to`.
inline void store(const float* from, void* to, int dtype, int64_t start, int64_t n) {
  if (dtype == kFp32) {
    std::memcpy(static_cast<float*>(to) + start, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  uint16_t* halves = static_cast<uint16_t*>(to) + start;
  dtype == kBf16 ? narrow_bf16(from, halves, n) : narrow_fp16(from, halves, n);
}

// 4 MB: from this size on, bypassing the caches saves more than a later reader loses by cache misses.
constexpr int64_t kStreamedBytes = 1 << 22;

// Bytes before the next cache line begins.
inline int64_t to_line(const void* to) { return -reinterpret_cast<uintptr_t>(to) % 64; }

// Like memcpy, but bypasses the caches: the core does not read a line before writing it, which saves a third of the
// traffic. `to` must begin a cache line.
inline void stream(const void* from, void* to, int64_t bytes) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 64 <= bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i), _mm512_loadu_si512(source + i));
  }
#elif defined(__AVX__)
  for (; i + 32 <= bytes; i += 32) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i), values);
  }
#endif
  std::memcpy(target + i, source + i, static_cast<size_t>(bytes - i));
}

// Orders streamed values before the later writes of this thread.
inline void end_stream() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

}  // namespace
