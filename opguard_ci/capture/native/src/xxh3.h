// XXH3 with 64 bits: in one piece, piece by piece, or of rows that lie apart.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace opguard {

// An axis of memory: how many steps, of how many bytes.
struct Steps {
  int64_t length, stride;
};

struct Xxh3 {
  uint64_t (*digest)(const void* data, size_t size);
  void* (*begin)();
  void (*update)(void* state, const void* data, size_t size);
  uint64_t (*finish)(void* state);  // frees the state

  // Of rows one after the other, as if they were copied together. axes: outermost first, at least one; row: bytes, a
  // multiple of STRIPE; all of them are more than MIN_ROWS bytes.
  uint64_t (*digest_rows)(const char* first, const Steps* axes, size_t count, size_t row);
};

constexpr size_t STRIPE = 64, MIN_ROWS = 240;

OPGUARD_PER_ISA(Xxh3, xxh3)

// The fastest that this processor runs.
inline const Xxh3& xxh3() {
  static const Xxh3& chosen = OPGUARD_FASTEST(xxh3);
  return chosen;
}

}  // namespace opguard
