#include "recorder.h"

#include "ahead.h"

#include <ATen/CPUGeneratorImpl.h>
#include <atomic>
#include <algorithm>
#include <cstring>
#include <mutex>
#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/graph_task.h>
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else  // before torch 2.13
#include <torch/csrc/autograd/function.h>
#endif
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

namespace opguard {

namespace {

constexpr int OP = 0, VIEW = 1, COPY = 2, ALLOC = 3, CONTRACT = 4;              // KINDS
constexpr int SETUP = 0, DATA = 1, FORWARD = 2, BACKWARD = 3, OPTIMIZER = 4;    // PHASES
constexpr int RECOMPUTED = 1;                                                   // a flag of an event
constexpr uint8_t WRITTEN = 1, OVERWRITTEN = 2, SCRATCH = 3;                    // how a call treats an argument
constexpr int SHOWN = 0, ALLOCATED = 1, CHANGED = 2;                            // what it did to memory
constexpr int64_t ALWAYS_CHECKED = 1 << 15, MAX_GARBAGE = 1 << 20;
constexpr size_t MAX_EXPANSION = size_t(1) << 28, MAX_FRAMES = 24, MAX_TEXTS = 4096, KEEP = 400000;
constexpr int FIRST_CALLS = 4;
constexpr int64_t LINKED = -(int64_t(1) << 62);  // of looks by links where those are worked out late
constexpr size_t WORKS = 512;                    // that Python sees as one
constexpr int LAST_FRAME = 2;  // all below it are ours

PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

PyObject* item(const py::dict& dict, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(dict.ptr(), name);
  if (found == nullptr && PyErr_Occurred()) throw py::error_already_set();
  return found;
}

bool is_true(PyObject* object) { return object != nullptr && PyObject_IsTrue(object) == 1; }

// The session's lock, taken by its own methods, so that Python's path and this one exclude each other.
class Locked {
 public:
  Locked(const py::object& acquire, const py::object& release) : release_(release) {
    const auto done = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(acquire.ptr()));
    if (!done) throw py::error_already_set();
  }
  ~Locked() {
    PyObject* done = PyObject_CallNoArgs(release_.ptr());
    if (done == nullptr) PyErr_WriteUnraisable(release_.ptr());
    Py_XDECREF(done);
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const py::object& release_;
};

void flatten(const c10::IValue& result, std::vector<at::Tensor>& into) {
  if (result.isTensor()) {
    if (result.toTensor().defined()) into.push_back(result.toTensor());
  } else if (result.isList()) {
    for (const auto& element : result.toListRef()) flatten(element, into);
  } else if (result.isTuple()) {
    for (const auto& element : result.toTupleRef().elements()) flatten(element, into);
  }
}

template <class T>
void put(std::string& key, char tag, T number) {
  key.push_back(tag);
  key.append(reinterpret_cast<const char*>(&number), sizeof(T));
}

// An argument as Python would be given it.
py::object as_python(const c10::Argument& argument, const c10::IValue& value) {
  const auto is = [&](c10::TypeKind kind) {
    const auto& type = argument.real_type();
    if (type->kind() == kind) return true;
    auto optional = type->cast<c10::OptionalType>();
    return optional && optional->getElementType()->kind() == kind;
  };
  const auto borrowed = [](PyObject* object) { return py::reinterpret_borrow<py::object>(object); };
  if (value.isNone()) return py::none();
  if (is(c10::ScalarTypeType::Kind))
    return borrowed(reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt()))));
  if (is(c10::LayoutType::Kind))
    return borrowed(reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<c10::Layout>(value.toInt()))));
  if (is(c10::MemoryFormatType::Kind))
    return borrowed(torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(value.toInt())));
  return torch::jit::toPyObject(value);
}

}  // namespace

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

// A name for a value that is not there yet: as good as no value is the same.
static uint64_t name_of(uint64_t number) {
  number += 0x9E3779B97F4A7C15u;
  number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9u;
  number = (number ^ (number >> 27)) * 0x94D049BB133111EBu;
  return number ^ (number >> 31);
}

// Have another thread read a tensor whose place is known; false if it doesn't.
bool Core::read_aside(const at::Tensor& tensor, Look& look) {
  const uintptr_t pointer = address_of(tensor);
  if (!pointer || tensor.nbytes() > MAX_EXPANSION || tensor.nbytes() < Aside::min_bytes) return false;
  const char* first = reinterpret_cast<const char*>(pointer) + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  const auto reading = Aside::here().begin(tensor, first, salt(tensor.scalar_type()));
  if (!reading) return false;
  look.value = name_of(first_name_ ^ (reading->number << 32));
  look.place.region->last_reading = reading->number;
  unsettled_.push_back({look.value, reading, look.place.region});
  return true;
}

uint64_t Core::settled(uint64_t value) const {
  if (settled_.empty()) return value;
  auto found = settled_.find(value);
  return found == settled_.end() ? value : found->second;
}

void Core::settle() {
  if (unsettled_.empty()) return;
  const auto unsettled = std::move(unsettled_);
  unsettled_.clear();
  Aside::here().wait(unsettled.back().reading->number);
  for (const auto& [name, reading, region] : unsettled) {
    settled_.emplace(name, reading->value);
    region->seen.replace(name, reading->value);
  }
}

void Core::settle_rows() {
  settle();
  if (settled_.empty()) return;
  rows_->replace(settled_, [this](int id, uint64_t value) {
    const Spec& spec = *specs_by_id_.at(id);
    return spec.all_weak || std::find(spec.constants.begin(), spec.constants.end(), value) != spec.constants.end();
  });
  if (!num_running_) settled_.clear();
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

Core::Kind Core::kind_of(const at::Tensor& tensor) {
  const uint64_t keys = tensor.key_set().raw_repr();
  for (const auto& [known, kind] : kinds_)
    if (known == keys) return kind;
  static PyObject* asked = py::object(py::module_::import("opguard_ci.capture.fingerprint.tensors")).release().ptr();
  if (tensor.key_set().has(c10::DispatchKey::Python)) return STRANGE;
  const auto wrapped = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  const auto kind = static_cast<Kind>(py::cast<int>(py::handle(asked).attr("_kind_of")(wrapped)));
  if (kind != STRANGE) kinds_.emplace_back(keys, kind);  // others may be many
  return kind;
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

// What stands for a value, when links are worked out.
uint64_t Core::resolved(int64_t pending, const Place& place) const {
  if (pending != LINKED) return py::cast<uint64_t>(value_of_(pending));
  const uint64_t* known = place.region ? place.region->seen.find(place.geometry) : nullptr;
  return known == nullptr ? 0 : *known;
}

void Core::load_constants(const Spec& spec) const {
  Spec& known = const_cast<Spec&>(spec);
  const py::object constants = looks_.attr("_constants")[py::int_(spec.id)];
  known.asked = false;
  known.all_weak = constants.is_none();
  known.constants.clear();
  if (!known.all_weak)
    for (const auto& constant : constants) known.constants.push_back(py::cast<uint64_t>(constant));
}

// Have tensors of a device fingerprinted where they lie; those of one call share what they can.
void Core::queue(const std::vector<std::pair<Look*, const at::Tensor*>>& asked, const py::object& name) {
  if (asked.empty()) return;
  std::vector<std::pair<Look*, const at::Tensor*>> left;
  if (!launcher_) {
    static PyObject* const known = interned("launcher");
    PyObject* launcher = item(devices_, known);
    if (launcher != nullptr && launcher != Py_None) launcher_ = py::cast<std::shared_ptr<Launcher>>(py::handle(launcher));
  }
  if (launcher_) {
    std::vector<const at::Tensor*> all;
    all.reserve(asked.size());
    for (const auto& [look, tensor] : asked) all.push_back(tensor);
    const auto handles = launcher_->queue(all);
    for (size_t i = 0; i < asked.size(); ++i) {
      asked[i].first->pending = handles[i];
      if (!handles[i]) left.push_back(asked[i]);
    }
    if (left.empty()) return;
  } else {
    left = asked;
  }
  py::list tensors;
  for (const auto& [look, tensor] : left) tensors.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(*tensor)));
  const py::list found = queue_(looks_, tensors, name);
  for (size_t i = 0; i < left.size(); ++i) {
    const py::object one = found[i];
    take(one, *left[i].first);
  }
}

// A value, or a handle that stands for one; false if it is neither.
bool Core::take(const py::object& number, Look& look) {
  int overflow = 0;
  const long long found = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (!overflow && found < 0) {
    look.pending = found;
  } else {
    look.value = py::cast<uint64_t>(number);
  }
  return look.is_known();
}

const Spec& Core::spec(const at::Tensor& tensor) {
  const auto device = static_cast<int>(tensor.device().type());
  SpecKey key{static_cast<int>(tensor.scalar_type()), device, {tensor.sizes().begin(), tensor.sizes().end()}};
  auto known = specs_.find(key);
  if (known != specs_.end()) return known->second;
  Spec made;
  made.id = py::cast<int>(looks_.attr("spec")(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor))));
  load_constants(made);
  made.asked = !made.all_weak && kind_of(tensor) == DEVICE;
  const Spec& kept = specs_.emplace(std::move(key), std::move(made)).first->second;
  specs_by_id_.emplace(kept.id, &kept);
  return kept;
}

uint64_t Core::salt(c10::ScalarType dtype) {
  uint64_t& known = salts_[static_cast<size_t>(dtype)];
  if (!known) {
    const auto type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
    known = py::cast<uint64_t>(py::module_::import("opguard_ci.capture.fingerprint.cpu").attr("salt")(type));
  }
  return known;
}

uint64_t Core::value(const at::Tensor& tensor, const py::object& name) {
  const size_t nbytes = tensor.nbytes();
  if (!nbytes) return Values::of_memory("", 0, salt(tensor.scalar_type()));
  const uintptr_t pointer = address_of(tensor);
  const auto shown_expanded = [&] {
    const auto strides = tensor.strides();
    return nbytes > MAX_EXPANSION && std::find(strides.begin(), strides.end(), 0) != strides.end();
  };
  if (!pointer || (!tensor.is_contiguous() && shown_expanded()))
    return py::cast<uint64_t>(looks_.attr("_value")(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)), name));
  const char* first = reinterpret_cast<const char*>(pointer) + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  if (tensor.is_contiguous()) return Values::of_memory(first, nbytes, salt(tensor.scalar_type()));
  try {
    return values_.of_strided(tensor, first, salt(tensor.scalar_type()));
  } catch (const std::bad_alloc&) {  // Python may have no room either, and then says so
    return py::cast<uint64_t>(looks_.attr("_value")(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)), name));
  }
}

// The value that the links say a tensor has; 0 if they say none, or if somebody else may have written it. counting: has
// the version counter of these bytes.
uint64_t assumed(const Place& place, const at::Tensor& tensor, const at::Tensor& counting, bool late) {
  if (!tensor.storage().resizable()) return 0;  // numpy has it, or another process
  const auto version = counting.is_inference() ? NULL_ID : static_cast<int64_t>(counting._version());
  if (late) return will_be_known(*place.region, place.geometry, version);
  return place.region->assumed(place.geometry, version);
}

Look Core::at(const at::Tensor& tensor, const py::object& name, bool made, bool assume, bool aside, const at::Tensor* base, const Look* shown) {
  Look look;
  look.spec = &spec(tensor);
  look.place = memory_->place(tensor, made);
  const size_t nbytes = tensor.nbytes();
  // Torch's version counter is followed even where nothing is assumed.
  const auto is_assumed = [&] {
    if (made || !assumes()) return false;
    const bool late = is_late();
    const uint64_t found = assumed(look.place, tensor, base == nullptr ? tensor : *base, late);
    if (!assume || !found) return false;
    if (late) {
      look.pending = LINKED;
    } else {
      look.value = found;
    }
    return look.by_links = true;
  };
  const auto is_shown_as = [&] {
    return base != nullptr && shown->place.region == look.place.region && shown->place.geometry == look.place.geometry;
  };
  if (look.place.region && nbytes && is_shown_as()) {
    look.value = shown->value;
    look.pending = shown->pending;
    look.by_links = shown->by_links;
    return look;
  }
  if (kind_of(tensor) == DEVICE) {  // asked by whoever looks, together with others
    if (look.place.region && !made && nbytes) is_assumed();
    return look;
  }
  if (!look.place.region || !nbytes) {
    look.value = value(tensor, name);
    return look;
  }
  if (is_assumed() || (aside && read_aside(tensor, look))) return look;
  if (!tensor.is_contiguous()) {
    look.value = value(tensor, name);
    return look;
  }
  const uintptr_t pointer = address_of(tensor);
  if (!pointer) {
    look.value = value(tensor, name);
    return look;
  }
  look.again = reinterpret_cast<const char*>(pointer) + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  look.value = Values::of_memory(look.again, nbytes, salt(tensor.scalar_type()));
  return look;
}

Look Core::beside(const at::Tensor& tensor, bool made) {
  Look look;
  look.spec = &spec(tensor);
  look.place = memory_->place(tensor, made);
  return look;
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

// Call

namespace {

// A Python number that torch made a tensor of: Python would be given the number.
bool add_number(const at::Tensor& tensor, std::string& key) {
  const void* data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double:
      put(key, 'd', *static_cast<const double*>(data));
      return true;
    case c10::ScalarType::Long:
      put(key, 'i', *static_cast<const int64_t*>(data));
      return true;
    case c10::ScalarType::Bool:
      key.push_back(*static_cast<const bool*>(data) ? '1' : '0');
      return true;
    default:
      return false;
  }
}

}  // namespace

bool Call::add(const c10::IValue& argument, uint8_t mark, std::string& key) {
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    if (!tensor.defined()) {
      key.push_back('N');
      return true;
    }
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return add_number(tensor, key);
    const auto kind = core_.kind_of(tensor);
    if (kind == Core::STRANGE || (kind == Core::DEVICE && !core_.is_late())) return false;
    has_device_ = has_device_ || kind == Core::DEVICE;
    key.push_back('T');
    tensors_.push_back(tensor);
    marks_.push_back(mark);
  } else if (argument.isNone()) {
    key.push_back('N');
  } else if (argument.isInt()) {
    put(key, 'i', argument.toInt());
  } else if (argument.isDouble()) {
    put(key, 'd', argument.toDouble());
  } else if (argument.isBool()) {
    key.push_back(argument.toBool() ? '1' : '0');
  } else if (argument.isComplexDouble()) {
    put(key, 'c', argument.toComplexDouble());
  } else if (argument.isList()) {
    const auto elements = argument.toListRef();
    put(key, 'L', elements.size());
    for (const auto& element : elements)
      if (!add(element, mark, key)) return false;
  } else if (argument.isString()) {
    const std::string& text = argument.toStringRef();
    put(key, 's', text.size());
    key += text;
  } else if (argument.isDevice()) {
    const c10::Device device = argument.toDevice();
    if (!device.is_cpu() && (!device.is_cuda() || !core_.is_late())) return false;
    has_device_ = has_device_ || device.is_cuda();
    put(key, device.is_cpu() ? 'D' : 'C', device.index());
  } else {
    return false;  // generators, symbolic numbers, storages, script objects
  }
  return true;
}

bool Call::parse(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const size_t count = op.schema().arguments().size();
  const size_t first = stack.size() - count;
  std::string key;
  key.reserve(128);
  tensors_.reserve(4);
  for (size_t i = 0; i < count; ++i)
    if (!add(stack[first + i], info_.argument_marks[i], key)) return false;
  if (info_.random) choose_generator(op, stack, first);
  auto known = info_.texts.find(key);
  if (known == info_.texts.end()) {
    if (info_.texts.size() >= MAX_TEXTS) info_.texts.clear();
    known = info_.texts.emplace(std::move(key), text_of(op, stack, first)).first;
  }
  text_ = known->second;
  return true;
}

std::shared_ptr<Text> Call::text_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) const {
  const auto& arguments = op.schema().arguments();
  const auto is_default = [&](size_t i) {
    const auto& value = arguments[i].default_value();
    return value.has_value() && !(*value != stack[first + i]);
  };
  size_t num_positional = 0;
  while (num_positional < arguments.size() && !arguments[num_positional].kwarg_only()) ++num_positional;
  size_t passed = num_positional;
  while (passed > 0 && is_default(passed - 1)) --passed;
  py::tuple args(passed);
  for (size_t i = 0; i < passed; ++i) args[i] = as_python(arguments[i], stack[first + i]);
  py::dict kwargs;
  for (size_t i = num_positional; i < arguments.size(); ++i)
    if (!is_default(i)) kwargs[py::str(arguments[i].name())] = as_python(arguments[i], stack[first + i]);
  const py::tuple found = core_.oracle_(info_.python, args, kwargs);
  const auto marks = py::cast<std::vector<uint8_t>>(found[1]);
  if (marks != marks_) throw std::logic_error("tensor arguments are taken apart in another way");
  return std::make_shared<Text>(Text{found[0], NULL_ID});
}

void Call::before() {
  if (core_.crumbs_ != nullptr) std::memcpy(core_.crumbs_, info_.crumb.data(), info_.crumb.size());
  head_.phase = core_.phase(thread_);
  head_.flags = info_.flags;
  if (head_.phase == BACKWARD && c10::GradMode::is_enabled()) {
    static PyObject* const create_graph = interned("create_graph");
    if (!is_true(item(core_.state_, create_graph))) head_.flags |= RECOMPUTED;
  }
  head_.module = core_.module_id(thread_);
  const std::pair<int, int>* place = nullptr;
  const bool is_of_node = head_.phase == BACKWARD && head_.module == NULL_ID && !(head_.flags & RECOMPUTED);
  if (is_of_node) place = core_.origins_->of_current_node();
  if (place != nullptr) {
    std::tie(head_.module, head_.stack) = *place;
  } else {
    head_.stack = core_.stack_id();
  }
  {
    const Locked locked(core_.acquire_, core_.release_);
    const bool assume = may_assume();
    seen_.resize(tensors_.size());
    for (size_t n = 0; n < tensors_.size(); ++n)
      if (marks_[n] < OVERWRITTEN) seen_[n] = core_.at(tensors_[n], info_.name, false, assume);
    std::vector<std::pair<Look*, const at::Tensor*>> asked;
    for (size_t n = 0; n < tensors_.size(); ++n) {
      if (marks_[n] >= OVERWRITTEN) {
        seen_[n] = core_.beside(tensors_[n], false);
      } else if (!seen_[n].is_known() && has_device_ && core_.kind_of(tensors_[n]) == Core::DEVICE) {
        asked.emplace_back(&seen_[n], &tensors_[n]);
      }
    }
    core_.queue(asked, info_.name);
    wait_for_readers();
    spend();
    is_put_off_ = core_.is_late();
    if (is_put_off_) {
      if (core_.assumes()) read_ahead();
      core_.link_late([call = shared_from_this()] { call->link_reads(); }, &info_);
    } else {
      link_reads();
    }
  }
  if (info_.random) head_.state_before = generator_state();
}

// What is written now must have been read, and what was looked at is held against values, not against names of values.
void Call::wait_for_readers() const {
  for (size_t n = 0; n < seen_.size(); ++n) {
    const Place& place = seen_[n].place;
    if (!place.region || !place.region->last_reading) continue;
    if (marks_[n] || !info_.trusted) Aside::here().wait(place.region->last_reading);
    if (!seen_[n].by_links && marks_[n] < OVERWRITTEN) core_.settle();
  }
}

// Whether arguments need no look at level op: not where one is taken again after the call.
bool Call::may_assume() const {
  return core_.assumes() && info_.trusted && (info_.kind != OP || core_.num_calls(info_) >= FIRST_CALLS);
}

// Level auto counts what is read.
void Call::spend() const {
  static PyObject* const bytes_left = interned("bytes_left");
  PyObject* left = item(core_.state_, bytes_left);
  if (left == nullptr || left == Py_None) return;
  int64_t nbytes = 0;
  for (const Look& look : seen_) nbytes += look.place.geometry.hi - look.place.geometry.lo;
  core_.session_.attr("spend")(nbytes);
}

// What a copy made is what it read: a value that was assumed is known now.
void Call::verify_copied() {
  core_.settle();
  for (auto& row : reads_) row.value = core_.settled(row.value);
  for (auto& change : changes_) change.look.value = core_.settled(change.look.value);
  size_t change = 0;
  for (size_t n = 0; n < marks_.size() && change < changes_.size(); ++n) {
    if (marks_[n] == OVERWRITTEN) continue;
    const Look& look = changes_[change++].look;
    ReadRow& row = reads_[n];
    const Place& place = seen_[n].place;
    if (!(row.flags & ASSUMED) || look.spec->id != row.spec || !look.value || !place.region) continue;
    row.flags &= ~ASSUMED;
    if (look.value == row.value || versions_[n] != std::pair(place.region->version, place.region->writing)) continue;
    row.value = look.value;
    Events writers;
    row.flags |= place.region->read(place.geometry, place.geometry.lo, place.geometry.hi, place.dense, look.value, writers);
  }
}

void Call::read_ahead() {
  for (size_t n = 0; n < seen_.size(); ++n) {
    const Place& place = seen_[n].place;
    if (!place.region) continue;
    Region& ahead = ahead_of(*place.region);
    if (seen_[n].is_known()) ahead.remember(place.geometry, 1);
    if (marks_[n] && marks_[n] != SCRATCH) {
      ++ahead.writing;
      writing_ahead_.push_back(place.region->ahead);
    }
  }
}

void Call::write_ahead() {
  for (const auto& [look, slot, change] : changes_) {
    const Place& place = look.place;
    if (!place.region) continue;
    Region& ahead = ahead_of(*place.region);
    const auto& [lo, hi, form] = place.geometry;
    if (change == ALLOCATED) {
      ahead.allocate(place.geometry, lo, hi, place.dense, look.is_known(), 0);
    } else if (change == CHANGED) {
      ahead.write(place.geometry, lo, hi, place.dense, look.is_known(), 0);
      if (!look.is_known()) ahead.foreign = true;  // nobody sees when it is written again
    } else if (look.is_known()) {
      ahead.remember(place.geometry, 1);
    }
  }
  if (!info_.trusted)
    for (const auto& [n, look] : suspects_) {
      const Place& place = seen_[n].place;
      Region& ahead = ahead_of(*place.region);
      ahead.seen.keep_beside(place.geometry.lo, place.geometry.hi);
      ahead.remember(place.geometry, 1);
    }
  end_ahead();
}

void Call::end_ahead() {
  for (const auto& region : writing_ahead_) --region->writing;
  writing_ahead_.clear();
}

void Call::link_reads() {
  reads_.resize(seen_.size());
  versions_.resize(seen_.size());
  for (size_t n = 0; n < seen_.size(); ++n) {
    Look& look = seen_[n];
    ReadRow& row = reads_[n];
    look.value = look.pending ? core_.resolved(look.pending, look.place) : core_.settled(look.value);
    row.value = look.value;
    row.spec = look.spec->id;
    Region* region = look.place.region.get();
    const int unread = marks_[n] >= OVERWRITTEN ? UNREAD : 0;
    if (region == nullptr) {
      row.flags = unread ? unread : STRIDED;
      continue;
    }
    const Geometry& geometry = look.place.geometry;
    if (look.value) {
      row.flags = region->read(geometry, geometry.lo, geometry.hi, look.place.dense, look.value, row.writers);
      if (look.by_links) row.flags |= ASSUMED;
      if (!Forms::all().is_contiguous(geometry.form)) row.flags |= STRIDED;
    } else {
      row.flags = unread;
    }
    if (marks_[n] && marks_[n] != SCRATCH) {
      ++region->writing;
      writing_.push_back(look.place.region);
    }
    versions_[n] = {region->version, region->writing};
  }
}

void Call::stop_writing() {
  for (const auto& region : writing_) --region->writing;
  writing_.clear();
}

void Call::abandon() {
  tensors_.clear();
  if (!is_put_off_ && writing_.empty()) return;
  const Locked locked(core_.acquire_, core_.release_);
  end_ahead();
  if (is_put_off_) {
    core_.link_late([call = shared_from_this()] { call->stop_writing(); }, &info_);
  } else {
    stop_writing();
  }
}

// The default one of the device that the operator runs on.
void Call::choose_generator(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first) {
  c10::Device device = tensors_.empty() ? c10::Device(c10::kCPU) : tensors_[0].device();
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name() == "device" && stack[first + i].isDevice()) device = stack[first + i].toDevice();
  generator_ = device.is_cuda() ? at::globalContext().defaultGenerator(device) : at::detail::getDefaultCPUGenerator();
}

uint64_t Call::generator_state() {
  at::Tensor state;
  {
    const std::lock_guard<std::mutex> guard(generator_.mutex());
    state = generator_.get_state();
  }
  return Values::of_memory(state.const_data_ptr(), state.nbytes(), core_.salt(state.scalar_type()));
}

// As Python has it.
py::object Call::python_generator() const {
  const auto torch = py::module_::import("torch");
  if (generator_.device().is_cpu()) return torch.attr("default_generator");
  return torch.attr("cuda").attr("default_generators")[py::int_(static_cast<int>(generator_.device().index()))];
}

void Call::after(const torch::jit::Stack& stack, size_t num_returns) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < num_returns; ++i) {
    const size_t first = outputs.size();
    flatten(stack[stack.size() - num_returns + i], outputs);
    const auto& scratch = info_.scratch_outputs;
    if (std::find(scratch.begin(), scratch.end(), static_cast<int64_t>(i)) == scratch.end()) continue;
    for (size_t slot = first; slot < outputs.size(); ++slot) scratch_slots_.push_back(static_cast<int>(slot));
  }
  for (const auto& output : outputs)
    if (const auto kind = core_.kind_of(output); kind == Core::STRANGE || (kind == Core::DEVICE && !core_.is_late()))
      return hand_over(stack, num_returns);
  if (head_.phase != BACKWARD && c10::GradMode::is_enabled()) core_.origins_->remember(head_.module, head_.stack);
  std::vector<size_t> changed;
  std::vector<const at::Tensor*> made;
  std::vector<int> slots;
  if (info_.writes)
    for (size_t k = 0; k < tensors_.size(); ++k)
      if (marks_[k] && marks_[k] != SCRATCH) changed.push_back(k);
  for (size_t slot = 0; slot < outputs.size(); ++slot) {
    const auto is_output = [&](size_t k) { return tensors_[k].is_same(outputs[slot]); };
    if (std::any_of(changed.begin(), changed.end(), is_output)) continue;
    made.push_back(&outputs[slot]);
    slots.push_back(static_cast<int>(slot));
  }
  for (size_t k : changed) {
    made.push_back(&tensors_[k]);
    slots.push_back(~static_cast<int>(k));
  }
  head_.kind = info_.kind == COPY ? kind_of_copy(changed, outputs) : info_.kind;
  if (info_.random) {
    const bool is_first = generator_.device().is_cpu();  // torch's default one is number 0
    head_.generator = is_first ? 0 : py::cast<int>(core_.session_.attr("generator_number")(python_generator()));
    head_.state_after = generator_state();
  }
  head_.lane = core_.lane_number(thread_);
  const Locked locked(core_.acquire_, core_.release_);
  look_at(made, slots);
  if (info_.kind == OP && !tensors_.empty()) look_again();
  tensors_.clear();
  if (core_.is_late()) {
    if (core_.assumes()) write_ahead();
    core_.link_late([call = shared_from_this()] { call->link_writes(); }, &info_);
  } else {
    link_writes();
  }
}

// Whether nobody can write what was made, unseen, before another thread has read it.
bool Call::may_be_read_aside(const std::vector<const at::Tensor*>& made) const {
  if (head_.phase != BACKWARD || (head_.flags & RECOMPUTED) || c10::GradMode::is_enabled() || core_.has_saving_hooks_) return false;
  const auto is_large = [](const at::Tensor* tensor) { return tensor->nbytes() >= Aside::min_bytes; };
  if (!std::any_of(made.begin(), made.end(), is_large)) return false;
  return core_.assumes() && !core_.is_late() && is_torch_alone(core_.first_node_);
}

void Call::look_at(const std::vector<const at::Tensor*>& made, const std::vector<int>& slots) {
  changes_.reserve(made.size());
  const bool aside = may_be_read_aside(made);
  for (size_t i = 0; i < made.size(); ++i) {
    const at::Tensor& tensor = *made[i];
    if (info_.kind == ALLOC) {
      Look look = core_.beside(tensor, true);
      const Geometry& place = look.place.geometry;
      if (look.place.region && place.hi - place.lo <= MAX_GARBAGE) look = core_.at(tensor, info_.name, true, false);
      changes_.push_back({std::move(look), slots[i], ALLOCATED});
    } else if (info_.kind == VIEW) {
      const bool has_base = !tensors_.empty();
      const at::Tensor* base = has_base ? &tensors_[0] : nullptr;
      changes_.push_back({core_.at(tensor, info_.name, false, core_.assumes(), aside, base, has_base ? &seen_[0] : nullptr), slots[i], SHOWN});
    } else {
      const bool is_scratch = std::find(scratch_slots_.begin(), scratch_slots_.end(), slots[i]) != scratch_slots_.end();
      changes_.push_back({core_.at(tensor, info_.name, true, false, aside && !is_scratch), slots[i], is_scratch ? ALLOCATED : CHANGED});
    }
  }
  std::vector<std::pair<Look*, const at::Tensor*>> asked;
  for (size_t i = 0; i < made.size(); ++i) {
    Look& look = changes_[i].look;
    const Geometry& place = look.place.geometry;
    if (core_.kind_of(*made[i]) != Core::DEVICE || look.is_known()) continue;
    if (info_.kind != ALLOC || (look.place.region && place.hi - place.lo <= MAX_GARBAGE)) asked.emplace_back(&look, made[i]);
  }
  core_.queue(asked, info_.name);
}

// Read-only arguments that the call may have changed all the same.
void Call::look_again() {
  bool thorough = !info_.trusted;
  if (!thorough) {
    const int before = core_.num_calls(info_);
    thorough = before < FIRST_CALLS;
    if (thorough) core_.session_.attr("num_calls")[info_.name] = before + 1;
  }
  std::vector<size_t> chosen;
  std::vector<Look> again;
  std::vector<std::pair<Look*, const at::Tensor*>> asked;
  const auto is_written = [&](const RegionPtr& region) {
    for (size_t n = 0; n < seen_.size(); ++n)
      if (marks_[n] && marks_[n] != SCRATCH && seen_[n].place.region == region) return true;
    return false;
  };
  for (size_t n = 0; n < tensors_.size(); ++n) {
    const Look& look = seen_[n];
    if (!look.is_known() || !look.place.region || marks_[n] || look.by_links) continue;
    if (is_written(look.place.region)) continue;
    if (!thorough && look.place.geometry.hi - look.place.geometry.lo > ALWAYS_CHECKED) continue;
    if (info_.trusted && look.again != nullptr) {
      const uint64_t now = Values::of_memory(look.again, tensors_[n].nbytes(), core_.salt(tensors_[n].scalar_type()));
      if (now == look.value) continue;
      suspects_.emplace_back(n, Look{});
      suspects_.back().second.value = now;
    } else {
      chosen.push_back(n);
    }
  }
  again.reserve(chosen.size());
  for (size_t n : chosen) {
    again.push_back(core_.at(tensors_[n], info_.name, false, false));
    if (core_.kind_of(tensors_[n]) == Core::DEVICE) asked.emplace_back(&again.back(), &tensors_[n]);
  }
  core_.queue(asked, info_.name);
  for (size_t i = 0; i < chosen.size(); ++i)
    if (again[i].pending || again[i].value != seen_[chosen[i]].value) suspects_.emplace_back(chosen[i], std::move(again[i]));
}

void Call::link_writes() {
  for (auto& [look, slot, change] : changes_)
    if (look.pending && look.pending != LINKED) look.value = core_.resolved(look.pending, look.place);
  for (auto& [n, look] : suspects_)
    if (look.pending) look.value = core_.resolved(look.pending, look.place);
  for (const auto& [look, slot, change] : changes_)
    if (look.spec->asked) core_.load_constants(*look.spec);
  if (head_.kind == COPY && core_.assumes()) verify_copied();
  if (info_.id == NULL_ID) info_.id = core_.string_id("op", core_.op_ids_, info_.name);
  if (text_->id == NULL_ID) text_->id = core_.string_id("args", core_.args_ids_, text_->text);
  // From here on no Python runs, and so no finalizer either, whose operators would come before this event.
  const int event = static_cast<int>(core_.rows_->num_events);
  bool hashed = true;
  for (auto& [look, slot, change] : changes_) {
    const Geometry& geometry = look.place.geometry;
    Region* region = look.place.region.get();
    look.value = look.pending == LINKED ? core_.resolved(LINKED, look.place) : core_.settled(look.value);
    if (change == ALLOCATED) {
      if (region != nullptr) region->allocate(geometry, geometry.lo, geometry.hi, look.place.dense, look.value, event);
      writes_.push_back({0, look.spec->id, slot, 0});
      continue;
    }
    if (region != nullptr && change == CHANGED) {
      region->write(geometry, geometry.lo, geometry.hi, look.place.dense, look.value, event);
    } else if (region != nullptr && look.value) {
      region->remember(geometry, look.value);
    }
    const auto& constants = look.spec->constants;
    const bool weak = look.spec->all_weak || std::find(constants.begin(), constants.end(), look.value) != constants.end();
    hashed = hashed && look.value;
    writes_.push_back({look.value, look.spec->id, slot, !look.value ? UNHASHED : weak ? WEAK : 0});
  }
  for (const auto& [n, look] : suspects_) {
    const uint64_t now = look.value;
    const Place& place = seen_[n].place;
    const auto [version, writing] = versions_[n];
    const bool idle = !writing && !place.region->writing && place.region->version == version;
    if (!idle || !now || now == reads_[n].value) continue;
    place.region->write(place.geometry, place.geometry.lo, place.geometry.hi, place.dense, now, event);
    writes_.push_back({now, reads_[n].spec, ~static_cast<int>(n), HIDDEN});
  }
  stop_writing();
  head_.op = info_.id;
  head_.args = text_->id;
  head_.key = NULL_ID;
  ++core_.rows_->num_calls;
  core_.rows_->num_hashed += hashed;
  core_.rows_->append(head_, reads_, writes_);
}

// A copy to another dtype, or one that broadcasts, computes something.
int Call::kind_of_copy(const std::vector<size_t>& changed, const std::vector<at::Tensor>& outputs) const {
  std::vector<const at::Tensor*> sources, results;
  for (size_t n = 0; n < tensors_.size(); ++n)
    if (marks_[n] != OVERWRITTEN) sources.push_back(&tensors_[n]);
  for (size_t k : changed) results.push_back(&tensors_[k]);
  if (results.empty())
    for (const auto& output : outputs) results.push_back(&output);
  if (sources.size() != results.size()) return OP;
  for (size_t i = 0; i < sources.size(); ++i)
    if (sources[i]->scalar_type() != results[i]->scalar_type() || sources[i]->sizes() != results[i]->sizes()) return OP;
  return COPY;
}

// An output is strange: Python goes on from here.
void Call::hand_over(const torch::jit::Stack& stack, size_t num_returns) {
  core_.settle();
  for (auto& look : seen_) look.value = core_.settled(look.value);
  for (auto& row : reads_) row.value = core_.settled(row.value);
  py::list tensors, seen, results;
  for (const auto& tensor : tensors_) tensors.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)));
  for (size_t n = 0; n < seen_.size(); ++n) {
    const Look& look = seen_[n];
    const auto address = reinterpret_cast<uintptr_t>(look.again);
    py::object again = py::none();
    if (look.by_links) {
      again = py::tuple();
    } else if (address) {
      again = py::make_tuple(address, tensors_[n].nbytes(), core_.salt(tensors_[n].scalar_type()));
    }
    const py::object value = look.pending ? py::int_(look.pending) : py::int_(look.value);
    seen.append(py::make_tuple(value, look.spec->id, place_of(look.place), again));
  }
  for (size_t i = stack.size() - num_returns; i < stack.size(); ++i) results.append(torch::jit::toPyObject(stack[i]));
  end_ahead();
  const py::tuple place = py::make_tuple(head_.phase, head_.flags, head_.module, head_.stack);
  const py::object marks = py::cast(std::vector<int>(marks_.begin(), marks_.end()));
  const py::object drawn = info_.random ? py::object(py::make_tuple(python_generator(), head_.state_before)) : py::object(py::none());
  const py::object links = py::cpp_function([call = shared_from_this()] { return call->links(); });
  const py::tuple given = py::make_tuple(text_->text, tensors, marks);
  core_.hand_over_(core_.session_, info_.python, given, place, seen, py::make_tuple(links, is_put_off_), drawn, results);
  tensors_.clear();
}

// What was linked of the reads: rows, places that are being written, versions. Python counts down.
py::tuple Call::links() {
  py::list reads, writing, versions;
  for (size_t n = 0; n < reads_.size(); ++n) {
    const ReadRow& row = reads_[n];
    if (seen_[n].place.region && marks_[n] && marks_[n] != SCRATCH) writing.append(place_of(seen_[n].place));
    reads.append(py::make_tuple(row.value, row.spec, row.flags, py::tuple(py::cast(row.writers))));
    versions.append(py::make_tuple(versions_[n].first, versions_[n].second));
  }
  writing_.clear();
  return py::make_tuple(reads, writing, versions);
}

// The interpreter of torch, while a recorder is entered

namespace {

struct Entered {
  py::object mode;  // held, so that no other object can have its address
  std::shared_ptr<Core> core;
};
std::vector<Entered>& entered() {
  static auto* all = new std::vector<Entered>();
  return *all;
}
std::atomic<int> num_entered{0};

Core* core_of(PyObject* mode) {
  for (const auto& one : entered())
    if (one.mode.ptr() == mode) return one.core.get();
  return nullptr;
}

using c10::DispatchKey;  // as torch's header names them
using c10::TensorImpl;

// As torch's own, but for operators of threads that a recorder watches.
class Interpreter final : public c10::impl::PyInterpreterVTable {
 public:
  explicit Interpreter(const c10::impl::PyInterpreterVTable* torch) : torch_(torch) {}

  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override {
    if (!run(op, stack)) torch_->dispatch(op, stack);
  }

  // Where torch makes a tensor without history for itself, which a mode sees as a call of detach.
  c10::intrusive_ptr<TensorImpl> detach(const TensorImpl* self) const override {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
    torch::jit::Stack stack;
    stack.emplace_back(at::Tensor(
        c10::intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>::unsafe_reclaim_from_nonowning(const_cast<TensorImpl*>(self))));
    if (!run(op, &stack)) return torch_->detach(self);
    // Having been a Python object counts as a reference, and autograd asks how many there are before it takes a sparse
    // gradient for its own: both recorders must have it do the same.
    const py::gil_scoped_acquire gil;
    const auto seen = py::reinterpret_steal<py::object>(THPVariable_Wrap(stack[0].toTensor()));
    return stack[0].toTensor().getIntrusivePtr();
  }

#include "interpreter.inc"

 private:
  static bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    using Modes = c10::impl::TorchDispatchModeTLS;
    const int64_t depth = num_entered.load(std::memory_order_relaxed) ? Modes::stack_len() : 0;
    if (!depth) return false;
    PyObject* mode = Modes::get_stack_at(depth - 1)->ptr(getPyInterpreter());
    const py::gil_scoped_acquire gil;
    Core* found = core_of(mode);
    if (found == nullptr) return false;
    const auto core = found->shared_from_this();  // whatever the call does
    return core->run(op, stack);
  }

  const c10::impl::PyInterpreterVTable* torch_;
};

const c10::impl::PyInterpreterVTable* torch_table = nullptr;

void enter(const py::object& mode, std::shared_ptr<Core> core) {
  if (torch_table == nullptr) torch_table = getPyInterpreter()->vtable_;
  static const auto* ours = new Interpreter(torch_table);  // for ever: another thread may be in one of its methods
  entered().push_back({mode, std::move(core)});
  ++num_entered;
  getPyInterpreter()->vtable_ = ours;
}

void leave(const py::object& mode) {
  auto& all = entered();
  auto found = std::find_if(all.rbegin(), all.rend(), [&](const Entered& one) { return one.mode.ptr() == mode.ptr(); });
  if (found == all.rend()) return;
  const Entered gone = std::move(*found);  // until the list is whole again
  all.erase(std::next(found).base());
  if (--num_entered == 0) getPyInterpreter()->vtable_ = torch_table;
}

}  // namespace

void bind_recorder(py::module_& module) {
  module.def("read_aside_from", [](size_t nbytes) { return std::exchange(Aside::min_bytes, nbytes); });
  module.def("num_read_aside", [] { return Aside::here().num_begun(); });
  py::class_<Origins, std::shared_ptr<Origins>>(module, "Origins")
      .def(py::init<>())
      .def("remember", &Origins::remember)
      .def("of_current_node", [](const Origins& origins) -> py::object {
        const auto* place = origins.of_current_node();
        return place == nullptr ? py::object(py::none()) : py::make_tuple(place->first, place->second);
      });
  py::class_<Works, std::shared_ptr<Works>>(module, "Works").def("__call__", &Works::run);
  py::class_<Core, std::shared_ptr<Core>>(module, "Core")
      .def(py::init<py::object, std::shared_ptr<Memory>, std::shared_ptr<Rows>, std::shared_ptr<Origins>>())
      .def("begin_crumbs", &Core::begin_crumbs)
      .def("append_contract", &Core::append_contract)
      .def("lies", &Core::lies)
      .def("settle", &Core::settle)
      .def("saves_by_hooks", &Core::saves_by_hooks)
      .def("enter", [](std::shared_ptr<Core> core, const py::object& mode) { enter(mode, std::move(core)); })
      .def("leave", [](const std::shared_ptr<Core>&, const py::object& mode) { leave(mode); })
      .def("end", &Core::end);
}

}  // namespace opguard

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  opguard::bind_region(module);
  opguard::bind_memory(module);
  opguard::bind_rows(module);
  opguard::bind_launch(module);
  opguard::bind_recorder(module);
}
