// The events of a step while they are collected: what rows.py says, compiled.
#pragma once

#include "region.h"

#include <functional>

namespace opguard {

constexpr int NULL_ID = -1;
constexpr int WEAK = 1, HIDDEN = 2, UNHASHED = 4;  // flags of a write

struct Head {
  int32_t lane, phase, kind, op, args, module, stack, key, flags;
  int32_t generator = NULL_ID;
  uint64_t state_before = 0, state_after = 0;
};

struct ReadRow {
  uint64_t value;
  int32_t spec, flags;
  Events writers;
};

struct WriteRow {
  uint64_t value;
  int32_t spec, slot, flags;
};

class Rows {
 public:
  void append(const Head& head, const std::vector<ReadRow>& reads, const std::vector<WriteRow>& writes);
  void append_tuples(const py::tuple& row, const py::list& reads, const py::list& writes);
  void make_setup();
  py::object take(int step, const py::object& strings);
  void clear();

  // Put values in the places of others. is_weak: whether a value of a spec proves nothing.
  void replace(const std::unordered_map<uint64_t, uint64_t>& values, const std::function<bool(int spec, uint64_t value)>& is_weak);
  // Called before rows are taken.
  std::function<void()> before_take;

  int64_t num_events = 0;
  int64_t num_calls = 0, num_hashed = 0;

 private:
  struct Columns {
    std::vector<int32_t> lane, phase, kind, op, args, module, stack, key, flags, generator;
    std::vector<uint64_t> state_before, state_after;
    std::vector<int32_t> read_offsets{0}, read_spec, read_flags, writer_offsets{0}, writers;
    std::vector<uint64_t> read_value;
    std::vector<int32_t> write_offsets{0}, write_spec, write_slot, write_flags;
    std::vector<uint64_t> write_value;
  };
  Columns columns_;
  int64_t first_ = 0;
};

void bind_rows(py::module_& module);

}  // namespace opguard
