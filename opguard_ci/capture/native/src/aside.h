// Hashes memory on another thread while this one goes on to compute: only where nobody can write it meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "values.h"

namespace opguard {

// One per process. Memory that is being read is neither kept alive nor copied: whoever frees it waits until it was read,
// whoever writes it calls wait() before.
class Aside {
 public:
  static Aside& here();

  // Tensors from so many bytes on are worth it.
  static size_t min_bytes;

  struct Reading {
    const char* first;
    size_t size, nbytes;  // of an element, of all
    bool is_contiguous;
    Layout layout;
    uint64_t salt;
    uint64_t number = 0;  // counted up from 1
    uint64_t value = 0;   // once it is done
  };

  // Begin to read a tensor of the host whose first element lies there. Null if the caller has to: there is one processor
  // only, the other thread has enough to do, or the memory is not that of torch's allocator.
  std::shared_ptr<const Reading> begin(const at::Tensor& tensor, const char* first, uint64_t salt);

  // Until the reading of this number, and with it all before, is done.
  void wait(uint64_t number);
  void wait_for_all() { wait(num_begun()); }

  uint64_t num_begun() const { return begun_.load(std::memory_order_relaxed); }

 private:
  struct Watched {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps the identity, not the memory
    uint64_t last;                                      // that reads it
  };

  explicit Aside(uint64_t begun);
  bool starts();
  void run();
  bool watch(const at::Tensor& tensor, uint64_t number);
  void release();
  static void before_fork();
  static void after_fork();
  static void in_child();
  static void free_when_read(void* context);

  std::mutex mutex_;
  std::condition_variable more_, done_one_;
  std::deque<std::shared_ptr<Reading>> readings_;
  std::vector<char> buffer_;
  size_t waiting_bytes_ = 0;
  bool started_ = false, refused_ = false;
  std::atomic<bool> ends_ = false;
  std::atomic<uint64_t> begun_, done_;
  std::unordered_map<void*, Watched> watched_;  // by the context of their memory
};

// Whether the backward pass that runs now runs nothing but torch's own nodes, without hooks, and no other Python thread is
// there: until it ends, nobody can write memory but operators that a recorder sees. When it ends, all is read.
// first_node: the number of the first node that is known not to unpack what it saved by a hook.
bool is_torch_alone(uint64_t first_node);

}  // namespace opguard
