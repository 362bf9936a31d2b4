// Planes of elements, turned round: columns become rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace opguard {

constexpr int64_t BLOCK = 16, BLOCKS = 4;  // elements along each side of a block; blocks that are read side by side

// By whole cache lines both ways, through a block of our own: the lines of a plane whose sides are powers of two share a
// few places of the cache.
template <class T>
struct TransposeBlock {
  static void run(const T* source, T* target, int64_t source_stride, int64_t target_stride) {
    T block[BLOCK * BLOCK];
    for (int64_t j = 0; j < BLOCK; ++j) std::memcpy(block + j * BLOCK, source + j * source_stride, sizeof(T) * BLOCK);
    for (int64_t i = 0; i < BLOCK; ++i)
      for (int64_t j = 0; j < BLOCK; ++j) target[i * target_stride + j] = block[j * BLOCK + i];
  }
};

// target[i][j] = source[j][i]. rows, columns: of the target, multiples of BLOCK.
template <class T, class Block = TransposeBlock<T>>
void transpose(const T* source, T* target, int64_t rows, int64_t columns, int64_t source_stride, int64_t target_stride) {
  for (int64_t first = 0; first < rows; first += BLOCK * BLOCKS)
    for (int64_t j = 0; j < columns; j += BLOCK)
      for (int64_t i = first; i < rows && i < first + BLOCK * BLOCKS; i += BLOCK)
        Block::run(source + i + j * source_stride, target + i * target_stride + j, source_stride, target_stride);
}

// For elements of four bytes.
struct Transpose {
  void (*words)(const uint32_t* source, uint32_t* target, int64_t rows, int64_t columns, int64_t source_stride, int64_t target_stride);
};

OPGUARD_PER_ISA(Transpose, transpose)

// The fastest that this processor runs.
inline const Transpose& transposing() {
  static const Transpose& chosen = OPGUARD_FASTEST(transpose);
  return chosen;
}

}  // namespace opguard
