// Storages and the regions they lie in: what links.py says, compiled.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>

#include "region.h"

namespace opguard {

struct Known {
  RegionPtr region;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the identity, not the memory
  int64_t shift;                                      // where in the region the storage begins
};

// Where the elements of a tensor lie.
struct Place {
  RegionPtr region;
  Geometry geometry;
  bool dense = false;
};

class Memory {
 public:
  // The entry of a tensor's storage; null if it holds no bytes.
  Known* known(const at::Tensor& tensor, bool made) {
    auto found = known_.find(tensor.storage().unsafeGetStorageImpl());
    return found != known_.end() ? &found->second : adopt(tensor, made);
  }
  Known* adopt(const at::Tensor& tensor, bool made);
  Known* find(const c10::StorageImpl* storage) {
    auto found = known_.find(storage);
    return found == known_.end() ? nullptr : &found->second;
  }
  // The place of an ordinary tensor of the host.
  Place place(const at::Tensor& tensor, bool made);
  Place place(const at::Tensor& tensor, const Known& known) const;
  void resized(const at::Tensor& tensor);
  void sweep();
  void close();
  size_t size() const { return known_.size(); }

 private:
  struct Begin {
    RegionPtr region;
    const c10::StorageImpl* storage;
    int64_t shift;
    int64_t order;  // of insertion
  };
  Known* sharing(uintptr_t pointer, int64_t nbytes, bool made, Known& shared);
  void put(uintptr_t pointer, const Known& known);

  std::unordered_map<const c10::StorageImpl*, Known> known_;
  std::map<uintptr_t, Begin> by_pointer_;
  int64_t num_begun_ = 0;
  size_t sweep_at_ = 20000;
};

// A storage's first byte, without copying a lazy clone.
inline uintptr_t address_of(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

int64_t form_of(const at::Tensor& tensor);  // of a geometry that is contiguous
int64_t strided_form_of(const at::Tensor& tensor);

void bind_memory(py::module_& module);

}  // namespace opguard
