// What a session knows: places, values, and the calls that are recorded into it.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <deque>
#include <functional>
#include <random>
#include <string>

#include "aside.h"
#include "launch.h"
#include "memory.h"
#include "rows.h"
#include "values.h"

namespace opguard {

// From a backward node to the place of its forward operator, by sequence number.
class Origins {
 public:
  void remember(int module, int stack);
  const std::pair<int, int>* of_current_node() const;

 private:
  std::unordered_map<uint64_t, std::pair<int, int>> places_;
  std::deque<uint64_t> order_;
};

// The text of calls of an operator that pass the same arguments but for tensors.
struct Text {
  py::object text;
  int id = NULL_ID;
};

// The fixed facts about an operator; see schema.py.
struct Info {
  py::object python;
  py::object name;
  bool native = false;
  bool writes = false, random = false, trusted = false;
  int kind = 0, flags = 0, id = NULL_ID, num_calls = 0;
  std::string crumb;
  std::vector<int64_t> scratch_outputs;
  std::vector<uint8_t> argument_marks;  // by schema
  std::unordered_map<std::string, std::shared_ptr<Text>> texts;
};

// The fixed facts about tensors of a dtype, shape and device.
struct Spec {
  int id = NULL_ID;
  bool all_weak = false;
  bool asked = false;  // the constants come from a device, and are there when links are worked out
  std::vector<uint64_t> constants;
};

struct Look {
  uint64_t value = 0;
  int64_t pending = 0;  // stands for the value until that is there: a handle, or LINKED
  const Spec* spec = nullptr;
  Place place;
  const void* again = nullptr;  // where the same bytes can be looked at again
  bool by_links = false;        // they were not looked at
  bool is_known() const { return value || pending; }
};

// What a thread is doing: the dictionaries that Python keeps for it.
struct Thread {
  py::dict lane;
  py::list modules;
};

class Call;
class Core;

// What is worked out when the values of a device are there, in order; see late.py.
class Works {
 public:
  explicit Works(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  void add(std::function<void()> work, const Info* info) { works_.emplace_back(std::move(work), info); }
  void run();

 private:
  std::shared_ptr<Core> core_;
  std::vector<std::pair<std::function<void()>, const Info*>> works_;  // info: of the operator that it is about
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(py::object session, std::shared_ptr<Memory> memory, std::shared_ptr<Rows> rows, std::shared_ptr<Origins> origins);

  // Record a call of an operator and make it; false if that is left to Python.
  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  void begin_crumbs(const py::buffer& buffer);
  // Append a contract value; false if that is left to Python.
  // content: its value or handle, where links are worked out late.
  bool append_contract(int lane, int phase, const py::object& entry, const py::int_& content);
  // The number of a tensor's spec, and its place; None if that is left to Python.
  py::object lies(const at::Tensor& tensor);
  // Have values in place of the names that stand for them while another thread reads. Before anybody else looks at links.
  void settle();
  // Python may run where a backward pass unpacks what it saved.
  void saves_by_hooks() { has_saving_hooks_ = true; }
  // Let go of the session.
  void end();

 private:
  friend class Call;
  friend class Works;
  enum Kind : uint8_t { HOST, DEVICE, STRANGE };  // as in fingerprint/tensors.py

  Info* ready(const c10::OperatorHandle& op, Thread*& here);
  Info* describe(const c10::OperatorHandle& op);
  void forget_threads();
  Thread& thread();
  Kind kind_of(const at::Tensor& tensor);
  bool is_late() const;
  void link_late(std::function<void()> work, const Info* info);
  void link_contract(const Head& head, const Look& look, bool is_state);
  static bool take(const py::object& number, Look& look);
  uint64_t resolved(int64_t pending, const Place& place) const;
  void load_constants(const Spec& spec) const;
  const Spec& spec(const at::Tensor& tensor);
  // base: what the tensor may be a view of; shown: what was seen of that.
  // aside: another thread may read it.
  Look at(const at::Tensor& tensor, const py::object& name, bool made, bool assume, bool aside = false, const at::Tensor* base = nullptr, const Look* shown = nullptr);
  bool read_aside(const at::Tensor& tensor, Look& look);
  uint64_t settled(uint64_t value) const;
  void settle_rows();
  void queue(const std::vector<std::pair<Look*, const at::Tensor*>>& asked, const py::object& name);
  Look beside(const at::Tensor& tensor, bool made);
  uint64_t value(const at::Tensor& tensor, const py::object& name);
  uint64_t salt(c10::ScalarType dtype);
  bool assumes() const;
  int num_calls(Info& info);
  int phase(const Thread& thread);
  int string_id(const char* table, const py::dict& ids, const py::object& text);
  int module_id(const Thread& thread);
  int stack_id();
  int lane_number(const Thread& thread);
  void defect(const Info& info, const std::exception& error);
  void let_go();

  static uint64_t next_number() {
    static uint64_t last = 0;
    return ++last;
  }

  struct SpecKey {
    int dtype, device;
    c10::SmallVector<int64_t, 6> shape;
    bool operator==(const SpecKey& other) const { return dtype == other.dtype && device == other.device && shape == other.shape; }
  };
  struct SpecHash {
    size_t operator()(const SpecKey& key) const {
      size_t hash = static_cast<size_t>(key.dtype) + 1;
      for (int64_t length : key.shape) hash = (hash ^ static_cast<size_t>(length)) * 0x9E3779B97F4A7C15u;
      return hash;
    }
  };
  struct StackHash {
    size_t operator()(const std::vector<std::pair<void*, int>>& key) const {
      size_t hash = key.size();
      for (const auto& [code, lasti] : key)
        hash = (hash ^ reinterpret_cast<size_t>(code) ^ (static_cast<size_t>(lasti) << 32)) * 0x9E3779B97F4A7C15u;
      return hash;
    }
  };

  struct Unsettled {
    uint64_t name;
    std::shared_ptr<const Aside::Reading> reading;
    RegionPtr region;
  };

  py::object session_, looks_, stacks_, acquire_, release_, hand_over_, oracle_, queue_, value_of_, works_object_;
  py::dict late_;
  std::shared_ptr<Launcher> launcher_;
  std::shared_ptr<Works> works_;
  size_t num_late_ = 0, max_late_ = 0;
  py::object state_sections_;
  py::dict state_, devices_, module_ids_, op_ids_, args_ids_, key_ids_;
  std::shared_ptr<Memory> memory_;
  std::shared_ptr<Rows> rows_;
  std::shared_ptr<Origins> origins_;
  Values values_;
  std::unordered_map<const void*, std::unique_ptr<Info>> infos_;
  std::vector<std::pair<uint64_t, Kind>> kinds_;  // by dispatch keys
  std::unordered_map<SpecKey, Spec, SpecHash> specs_;
  std::unordered_map<int, const Spec*> specs_by_id_;
  std::vector<Unsettled> unsettled_;
  std::unordered_map<uint64_t, uint64_t> settled_;  // by name: of this step
  const uint64_t first_name_ = std::random_device()();
  bool has_saving_hooks_ = false;
  const uint64_t first_node_ = at::sequence_number::peek();
  static constexpr size_t MAX_THREADS = 1024;
  std::unordered_map<uint64_t, std::unique_ptr<Thread>> threads_;
  size_t max_threads_ = MAX_THREADS;
  std::unordered_map<void*, int> is_user_;  // by code object, which the session keeps
  std::unordered_map<std::vector<std::pair<void*, int>>, int, StackHash> stack_ids_;
  std::vector<std::pair<void*, int>> frames_;
  std::array<uint64_t, static_cast<size_t>(c10::ScalarType::NumOptions)> salts_{};
  const uint64_t number_ = next_number();
  bool ended_ = false;
  int num_running_ = 0;  // calls
  char* crumbs_ = nullptr;
  Py_buffer crumbs_buffer_{};
};

// As Python knows it.
py::object place_of(const Place& place);

}  // namespace opguard
