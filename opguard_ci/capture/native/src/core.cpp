#include "core.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else  // before torch 2.13
#include <torch/csrc/autograd/function.h>
#endif
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <algorithm>

#include "ahead.h"
#include "call.h"
#include "shared.h"

namespace opguard {

// As Python knows it.
py::object place_of(const Place& place) {
  if (!place.region) return py::none();
  const Geometry& geometry = place.geometry;
  return py::make_tuple(place.region, tuple_of(geometry), geometry.lo, geometry.hi, place.dense);
}

// Origins

void Origins::remember(int module, int stack) {
  const uint64_t next = at::sequence_number::peek();
  if (next == 0) return;  // no node was made yet
  if (places_.count(next - 1)) return;
  if (places_.size() > KEEP)
    for (size_t i = 0; i < KEEP / 2; ++i) {
      places_.erase(order_.front());
      order_.pop_front();
    }
  places_.emplace(next - 1, std::pair<int, int>{module, stack});
  order_.push_back(next - 1);
}

const std::pair<int, int>* Origins::of_current_node() const {
  const auto node = torch::autograd::get_current_node();
  if (!node) return nullptr;
  auto found = places_.find(node->sequence_nr());
  return found == places_.end() ? nullptr : &found->second;
}

// Core

Core::Core(py::object session, std::shared_ptr<Memory> memory, std::shared_ptr<Rows> rows, std::shared_ptr<Origins> origins)
    : session_(std::move(session)), memory_(std::move(memory)), rows_(std::move(rows)), origins_(std::move(origins)) {
  looks_ = session_.attr("looks");
  stacks_ = session_.attr("stacks");
  acquire_ = session_.attr("lock").attr("acquire");
  release_ = session_.attr("lock").attr("release");
  state_ = session_.attr("__dict__");
  devices_ = session_.attr("devices").attr("__dict__");
  const auto strings = session_.attr("strings");
  module_ids_ = strings.attr("module").attr("ids");
  op_ids_ = strings.attr("op").attr("ids");
  args_ids_ = strings.attr("args").attr("ids");
  key_ids_ = strings.attr("key").attr("ids");
  state_sections_ = py::module_::import("opguard_ci.capture.contract_events").attr("STATE_SECTIONS");
  const auto bridge = py::module_::import("opguard_ci.capture.native.bridge");
  hand_over_ = bridge.attr("hand_over");
  oracle_ = bridge.attr("text_and_marks");
  queue_ = bridge.attr("queue");
  late_ = session_.attr("_late").attr("__dict__");
  value_of_ = session_.attr("devices").attr("values").attr("of");
  rows_->before_take = [this] { settle_rows(); };
  max_late_ = py::cast<size_t>(py::module_::import("opguard_ci.capture.session").attr("MAX_LATE"));
}

void Core::begin_crumbs(const py::buffer& buffer) {
  if (PyObject_GetBuffer(buffer.ptr(), &crumbs_buffer_, PyBUF_WRITABLE) != 0) throw py::error_already_set();
  crumbs_ = static_cast<char*>(crumbs_buffer_.buf);
}

void Core::end() {
  settle();
  rows_->before_take = nullptr;
  if (crumbs_ != nullptr) PyBuffer_Release(&crumbs_buffer_);
  crumbs_ = nullptr;
  ended_ = true;
  let_go();
}

// Let go of the session, unless other threads are in the middle of a call.
void Core::let_go() {
  if (!ended_ || num_running_) return;
  session_ = looks_ = stacks_ = acquire_ = release_ = value_of_ = works_object_ = py::object();
  state_ = devices_ = late_ = py::dict();
  works_.reset();
  launcher_.reset();
  threads_.clear();
}

// Why a call is not recorded is a defect of ours, but what ends the program (Ctrl-C) is not: it goes on its way.
void Core::defect(const Info& info, const std::exception& error) {
  const auto* raised = dynamic_cast<const py::error_already_set*>(&error);
  if (raised != nullptr && !raised->matches(PyExc_Exception)) throw;
  py::module_::import("opguard_ci.capture.native.bridge").attr("defect")(session_, info.python, error.what());
}

Info* Core::describe(const c10::OperatorHandle& op) {
  auto& info = infos_[&op.schema()];
  if (info) return info.get();
  info = std::make_unique<Info>();
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  if (name.rfind("aten::", 0) != 0 && name.rfind("prims::", 0) != 0) return info.get();  // may do anything
  const auto func = py::reinterpret_borrow<py::object>(torch::detail::getTorchApiFunction(op));
  py::object known = session_.attr("infos").attr("get")(func);
  if (known.is_none()) known = session_.attr("describe")(func);
  info->python = known;
  info->name = known.attr("name");
  info->native = py::cast<bool>(known.attr("builtin")) && !py::cast<bool>(known.attr("resizes")) && !py::cast<bool>(known.attr("skipped"));
  info->writes = py::len(known.attr("written")) != 0;
  info->random = py::cast<bool>(known.attr("random"));
  info->trusted = py::cast<bool>(known.attr("trusted"));
  info->kind = py::cast<int>(known.attr("kind"));
  info->flags = py::cast<int>(known.attr("flags"));
  info->crumb = py::cast<std::string>(known.attr("crumb"));
  for (const auto& slot : known.attr("scratch_outputs")) info->scratch_outputs.push_back(py::cast<int64_t>(slot));
  for (const auto& argument : schema.arguments()) {
    const py::str text(argument.name());
    const bool written = known.attr("written").contains(text);
    const bool overwritten = written && known.attr("overwrites").contains(text);
    info->argument_marks.push_back(overwritten ? OVERWRITTEN : written ? WRITTEN : known.attr("scratch").contains(text) ? SCRATCH : 0);
  }
  return info.get();
}

Thread& Core::thread() {
  struct Last {
    uint64_t core = 0, thread = 0;
    Thread* held = nullptr;
  };
  static thread_local Last last;
  const uint64_t id = PyThreadState_GetID(PyThreadState_Get());
  if (last.core == number_ && last.thread == id) return *last.held;
  if (threads_.size() >= max_threads_) forget_threads();
  auto& held = threads_[id];
  if (!held) {
    held = std::make_unique<Thread>();
    held->lane = session_.attr("lane").attr("__dict__");
    held->modules = session_.attr("modules").attr("names");
  }
  last = {number_, id, held.get()};
  return *held;
}

// Let go of threads that have ended.
void Core::forget_threads() {
  std::unordered_map<uint64_t, std::unique_ptr<Thread>> alive;
  for (PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); state != nullptr;
       state = PyThreadState_Next(state)) {
    auto known = threads_.find(PyThreadState_GetID(state));
    if (known != threads_.end()) alive.emplace(known->first, std::move(known->second));
  }
  threads_ = std::move(alive);
  max_threads_ = 2 * threads_.size() + MAX_THREADS;
}

// Whether links wait for values of a device.
bool Core::is_late() const {
  static PyObject* const used = interned("used");
  return is_true(item(devices_, used));
}

void Core::link_late(std::function<void()> work, const Info* info) {
  static PyObject* const name = interned("_works");
  PyObject* works = item(late_, name);
  const Py_ssize_t count = PyList_GET_SIZE(works);
  if (!count) num_late_ = 0;
  const bool is_last = count && works_ && PyTuple_GET_ITEM(PyList_GET_ITEM(works, count - 1), 0) == works_object_.ptr();
  if (is_last && num_late_ % WORKS) {
    works_->add(std::move(work), info);
  } else {
    works_ = std::make_shared<Works>(shared_from_this());
    works_->add(std::move(work), info);
    works_object_ = py::cast(works_);
    session_.attr("link_late")(works_object_, py::none());
  }
  if (++num_late_ >= max_late_) {
    num_late_ = 0;
    session_.attr("cut_late")();
  }
}

void Works::run() {
  const auto works = std::move(works_);
  for (const auto& [work, info] : works) {
    try {
      work();
    } catch (const std::exception& error) {
      if (info == nullptr) throw;
      core_->defect(*info, error);
    }
  }
}

int Core::phase(const Thread& thread) {
  if (torch::autograd::get_current_graph_task_id() != -1) return BACKWARD;
  static PyObject *const optimizing = interned("optimizing"), *const loading = interned("loading"), *const step = interned("step"),
                         *const lent_phase = interned("lent_phase");
  PyObject* steps = item(thread.lane, optimizing);
  if (steps != nullptr && PyTuple_GET_SIZE(steps) > 0) {
    PyObject* first = PyTuple_GET_ITEM(steps, 0);
    const void* number = PyLong_AsVoidPtr(PyTuple_GET_ITEM(first, 0));
    const PyObject* code = PyTuple_GET_ITEM(first, 1);
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
      auto* current = reinterpret_cast<PyFrameObject*>(frame.ptr());
      if (current == number) {
        const auto own = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(current)));
        if (own.ptr() == code) return OPTIMIZER;
      }
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(current)));
    }
    thread.lane[optimizing] = py::tuple();  // the step raised
  }
  PyObject* loads = item(thread.lane, loading);
  if (is_true(loads)) return DATA;
  PyObject* lent = item(thread.lane, lent_phase);
  if (lent != nullptr && lent != Py_None) return static_cast<int>(PyLong_AsLong(lent));
  return PyLong_AsLong(item(state_, step)) < 0 ? SETUP : FORWARD;
}

int Core::module_id(const Thread& thread) {
  const auto depth = PyList_GET_SIZE(thread.modules.ptr());
  if (!depth) return NULL_ID;
  PyObject* name = PyList_GET_ITEM(thread.modules.ptr(), depth - 1);
  return string_id("module", module_ids_, py::reinterpret_borrow<py::object>(name));
}

int Core::stack_id() {
  frames_.clear();
  auto top = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  auto frame = top;
  while (frame) {
    auto* current = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(current)));
    auto known = is_user_.find(code.ptr());
    if (known == is_user_.end()) known = is_user_.emplace(code.ptr(), py::cast<int>(stacks_.attr("_learn")(code))).first;
    if (known->second == LAST_FRAME) break;
    if (known->second) {
      frames_.emplace_back(code.ptr(), PyFrame_GetLasti(current));
      if (frames_.size() >= MAX_FRAMES) break;
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(current)));
  }
  if (frames_.empty()) return NULL_ID;
  auto known = stack_ids_.find(frames_);
  if (known == stack_ids_.end()) known = stack_ids_.emplace(frames_, py::cast<int>(stacks_.attr("current")(top))).first;
  return known->second;
}

int Core::lane_number(const Thread& thread) {
  static PyObject* const number = interned("number");
  PyObject* known = item(thread.lane, number);
  const long found = known == nullptr ? NULL_ID : PyLong_AsLong(known);
  return found != NULL_ID ? static_cast<int>(found) : py::cast<int>(session_.attr("lane_number")());
}

bool Core::assumes() const {
  static PyObject* const name = interned("assumes");
  return is_true(item(state_, name));
}

// How often an operator was called, up to FIRST_CALLS.
int Core::num_calls(Info& info) {
  if (info.num_calls < FIRST_CALLS) {
    static PyObject* const name = interned("num_calls");
    PyObject* known = PyDict_GetItemWithError(item(state_, name), info.name.ptr());
    info.num_calls = known == nullptr ? 0 : static_cast<int>(PyLong_AsLong(known));
  }
  return info.num_calls;
}

// What a call of an operator needs to be recorded here; null if that is left to Python.
Info* Core::ready(const c10::OperatorHandle& op, Thread*& here) {
  static PyObject *const closed = interned("closed"), *const silent = interned("silent"),
                         *const begun = interned("begun");
  if (ended_ || is_true(item(state_, closed))) return nullptr;
  if (is_true(item(state_, begun))) return nullptr;  // collectives, which a call may have to wait for
  here = &thread();
  if (is_true(item(here->lane, silent))) return nullptr;
  Info* info = describe(op);
  return info->native ? info : nullptr;
}

bool Core::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  has_saving_hooks_ = has_saving_hooks_ || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  Info* info = nullptr;
  Thread* here = nullptr;
  try {
    info = ready(op, here);
  } catch (const std::exception&) {  // Python meets it too, and says so
  }
  if (info == nullptr) {
    settle();
    return false;
  }
  ++num_running_;
  const auto done = c10::make_scope_exit([this] {
    --num_running_;
    let_go();
  });
  const torch::torch_dispatch_mode::StashTorchDispatchModeGuard stash;
  const auto held = std::make_shared<Call>(*this, *info, *here);
  Call& call = *held;
  bool records = true;
  try {
    if (!call.parse(op, *stack)) {
      settle();
      return false;
    }
    call.before();
  } catch (const std::exception& error) {
    records = false;
    call.abandon();
    defect(*info, error);
  }
  try {
    const py::gil_scoped_release free;
    op.callBoxed(stack);
  } catch (...) {
    settle();  // what the program does now is not known
    if (records) call.abandon();
    throw;
  }
  if (!records) return true;
  try {
    if (ended_) {
      call.abandon();
      return true;
    }
    call.after(*stack, op.schema().returns().size());
  } catch (const std::exception& error) {
    call.abandon();
    defect(*info, error);
  }
  return true;
}

bool Core::append_contract(int lane, int phase, const py::object& entry, const py::int_& content) {
  settle();
  static PyObject *const held = interned("held"), *const section = interned("section"), *const name = interned("name"),
                         *const key = interned("key");
  const auto attribute = [&](PyObject* which) {
    auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(entry.ptr(), which));
    if (!found) throw py::error_already_set();
    return found;
  };
  const py::object object = attribute(held);
  if (!THPVariable_Check(object.ptr())) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  const bool late = is_late();
  Look look;
  if (late) {  // looked at together with others
    if (kind_of(tensor) == STRANGE || !take(content, look)) return false;
  } else if (kind_of(tensor) != HOST || (tensor.nbytes() && !address_of(tensor))) {
    return false;
  }
  const py::object section_name = attribute(section), value_name = attribute(name), place_key = attribute(key);
  Head head{};
  head.lane = lane;
  head.phase = phase;
  head.kind = CONTRACT;
  if (!late) look.value = value(tensor, value_name);
  look.spec = &spec(tensor);
  look.place = memory_->place(tensor, false);
  head.op = string_id("op", op_ids_, section_name);
  head.args = string_id("args", args_ids_, value_name);
  head.key = place_key.is_none() ? NULL_ID : string_id("key", key_ids_, place_key);
  head.module = head.stack = NULL_ID;
  const bool is_state = state_sections_.contains(section_name);
  if (late) {
    if (look.place.region && assumes()) ahead_of(*look.place.region).remember(look.place.geometry, 1);
    link_late([this, head, look, is_state] { link_contract(head, look, is_state); }, nullptr);
  } else {
    link_contract(head, look, is_state);
  }
  return true;
}

void Core::link_contract(const Head& head, const Look& look, bool is_state) {
  ReadRow read{look.pending ? resolved(look.pending, look.place) : look.value, look.spec->id, 0, {}};
  if (look.place.region) {
    Region& region = *look.place.region;
    const Geometry& geometry = look.place.geometry;
    region.state = region.state || is_state;
    read.flags = region.read(geometry, geometry.lo, geometry.hi, look.place.dense, read.value, read.writers);
  }
  rows_->append(head, {std::move(read)}, {});
}

py::object Core::lies(const at::Tensor& tensor) {
  if (kind_of(tensor) == STRANGE) return py::none();
  return py::make_tuple(spec(tensor).id, place_of(memory_->place(tensor, false)));
}

int Core::string_id(const char* table, const py::dict& ids, const py::object& text) {
  PyObject* known = item(ids, text.ptr());
  if (known != nullptr) return static_cast<int>(PyLong_AsLong(known));
  return py::cast<int>(session_.attr("strings").attr(table)(text));
}

}  // namespace opguard
