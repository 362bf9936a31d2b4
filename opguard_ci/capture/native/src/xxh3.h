// XXH3 with 64 bits, in one piece or piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>

namespace opguard {

struct Xxh3 {
  uint64_t (*digest)(const void* data, size_t size);
  void* (*begin)();
  void (*update)(void* state, const void* data, size_t size);
  uint64_t (*finish)(void* state);  // frees the state
};

extern const Xxh3 xxh3_baseline;
#if defined(__x86_64__)
extern const Xxh3 xxh3_avx2;
extern const Xxh3 xxh3_avx512;
#endif

// The fastest that this processor runs.
inline const Xxh3& xxh3() {
  static const Xxh3& chosen = []() -> const Xxh3& {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return xxh3_avx512;
    if (__builtin_cpu_supports("avx2")) return xxh3_avx2;
#endif
    return xxh3_baseline;
  }();
  return chosen;
}

}  // namespace opguard
