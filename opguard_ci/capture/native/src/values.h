// The value of an ordinary tensor of the host: what fingerprint/cpu.py says, compiled.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "xxh3.h"

namespace opguard {

// How elements lie, in as few axes as will do: outermost first, strides in elements. Equal ones show the same bytes in the
// same order.
struct Layout {
  c10::SmallVector<int64_t, 6> shape, strides;
};
Layout layout_of(at::IntArrayRef shape, at::IntArrayRef strides);

// Bytes from here on are hashed without the GIL.
constexpr size_t LARGE = size_t(1) << 18;

class Values {
 public:
  // Bytes of a strided tensor that are copied at a time: the cache keeps them.
  static constexpr size_t CHUNK = size_t(1) << 19;

  // The fingerprint of bytes as they lie, told apart by dtype; never 0. To be called with the GIL.
  static uint64_t of_memory(const void* data, size_t nbytes, uint64_t salt);

  // The same without it, of bytes as they lie and of elements in logical order. size: of an element; buffer: of CHUNK bytes,
  // or of all if they are fewer.
  static uint64_t digest(const void* data, size_t nbytes, uint64_t salt);
  static uint64_t digest(const char* first, const Layout& layout, size_t size, uint64_t salt, char* buffer);

  // Of the elements of a strided tensor in logical order.
  uint64_t of_strided(const at::Tensor& tensor, const char* first, uint64_t salt);

 private:
  std::vector<char> buffer_;
};

}  // namespace opguard
