// The value of an ordinary tensor of the host: what fingerprint/cpu.py says, compiled.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "xxh3.h"

namespace opguard {

// Bytes from here on are hashed without the GIL.
constexpr size_t LARGE = size_t(1) << 18;

class Values {
 public:
  // The fingerprint of bytes as they lie, told apart by dtype; never 0.
  static uint64_t of_memory(const void* data, size_t nbytes, uint64_t salt);

  // Of the elements of a strided tensor in logical order. form: number of (dtype, shape, strides).
  uint64_t of_strided(const at::Tensor& tensor, const char* first, int64_t form, uint64_t salt);

 private:
  struct Key {
    uint64_t digest;
    int64_t form;
    bool operator==(const Key& other) const { return digest == other.digest && form == other.form; }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return key.digest ^ static_cast<size_t>(key.form); }
  };
  std::vector<char> buffer_;
  std::unordered_map<Key, uint64_t, KeyHash> permuted_;  // of dense tensors, by their bytes in memory
};

}  // namespace opguard
