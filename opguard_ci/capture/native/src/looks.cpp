// How a session looks at tensors: what look.py says, compiled.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "ahead.h"
#include "core.h"
#include "shared.h"

namespace opguard {

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

}  // namespace opguard
