#include "call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "ahead.h"
#include "shared.h"

namespace opguard {

namespace {

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

}  // namespace opguard
