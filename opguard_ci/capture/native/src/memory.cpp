#include "memory.h"

#include "values.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>

#include <algorithm>

namespace opguard {

namespace {

constexpr size_t SWEEP_AFTER = 20000;
constexpr int64_t BOUNDLESS = int64_t(1) << 62;

bool lies_at(const c10::StorageImpl* storage, const std::unordered_map<const c10::StorageImpl*, Known>& known, uintptr_t pointer) {
  auto entry = known.find(storage);
  if (entry == known.end()) return false;
  auto alive = entry->second.storage.lock();
  return alive && reinterpret_cast<uintptr_t>(alive->_mutable_data_ptr_no_checks().get()) == pointer;
}

// Whether a view has each element of its span once, if in another order.
bool is_permuted(at::IntArrayRef shape, at::IntArrayRef strides) {
  c10::SmallVector<std::pair<int64_t, int64_t>, 8> axes;
  for (size_t i = 0; i < shape.size(); ++i) axes.emplace_back(strides[i], shape[i]);
  std::sort(axes.begin(), axes.end());
  int64_t expected = 1;
  for (const auto& [stride, length] : axes) {
    if (length > 1 && stride != expected) return false;
    expected *= length;
  }
  return true;
}

py::object dtype_of(const at::Tensor& tensor) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(tensor.scalar_type())));
}

py::tuple tuple_of_numbers(at::IntArrayRef numbers) {
  py::tuple made(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) made[i] = numbers[i];
  return made;
}

}  // namespace

int64_t form_of(const at::Tensor& tensor) {
  static std::array<int64_t, static_cast<size_t>(c10::ScalarType::NumOptions)> forms = [] {
    std::array<int64_t, static_cast<size_t>(c10::ScalarType::NumOptions)> none{};
    none.fill(-1);
    return none;
  }();
  int64_t& form = forms[static_cast<size_t>(tensor.scalar_type())];
  if (form < 0) form = Forms::all().of(py::make_tuple(dtype_of(tensor)));
  return form;
}

int64_t strided_form_of(const at::Tensor& tensor) {
  struct Hash {
    size_t operator()(const std::vector<int64_t>& key) const {
      size_t hash = key.size();
      for (int64_t number : key) hash = (hash ^ static_cast<size_t>(number)) * 0x9E3779B97F4A7C15u;
      return hash;
    }
  };
  static std::unordered_map<std::vector<int64_t>, int64_t, Hash> forms;
  std::vector<int64_t> key{static_cast<int64_t>(tensor.scalar_type())};
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
  auto known = forms.find(key);
  if (known != forms.end()) return known->second;
  const Layout layout = layout_of(tensor.sizes(), tensor.strides());
  const int64_t form = Forms::all().of(py::make_tuple(dtype_of(tensor), tuple_of_numbers(layout.shape), tuple_of_numbers(layout.strides)));
  forms.emplace(std::move(key), form);
  return form;
}

Place Memory::place(const at::Tensor& tensor, bool made) {
  Known* entry = known(tensor, made);
  return entry == nullptr ? Place{} : place(tensor, *entry);
}

Place Memory::place(const at::Tensor& tensor, const Known& known) const {
  const auto size = static_cast<int64_t>(tensor.itemsize());
  const int64_t lo = tensor.storage_offset() * size + known.shift;
  if (tensor.is_contiguous()) return {known.region, {lo, lo + static_cast<int64_t>(tensor.nbytes()), form_of(tensor)}, true};
  const auto shape = tensor.sizes(), strides = tensor.strides();
  int64_t hi = lo + size;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) {
      hi = lo;
      break;
    }
    hi += (shape[i] - 1) * strides[i] * size;
  }
  const bool dense = hi - lo == static_cast<int64_t>(tensor.nbytes()) && is_permuted(shape, strides);
  return {known.region, {lo, hi, strided_form_of(tensor)}, dense};
}

Known* Memory::adopt(const at::Tensor& tensor, bool made) {
  const c10::Storage& storage = tensor.storage();
  if (storage.device_type() == c10::DeviceType::Meta) return nullptr;
  if (known_.size() >= sweep_at_) sweep();
  const uintptr_t pointer = address_of(tensor);
  const auto nbytes = static_cast<int64_t>(storage.nbytes());
  Known entry{nullptr, storage.getWeakStorageImpl(), 0};
  if (!pointer || sharing(pointer, nbytes, made, entry) == nullptr) {
    const bool foreign = !made && !storage.resizable();  // numpy's, DLPack's, a mapped file, a worker's batch
    entry.region = std::make_shared<Region>(static_cast<int64_t>(pointer), nbytes, foreign);
    if (pointer) put(pointer, entry);
  }
  return &known_.insert_or_assign(storage.unsafeGetStorageImpl(), std::move(entry)).first->second;
}

void Memory::put(uintptr_t pointer, const Known& known) {
  auto [place, is_new] = by_pointer_.try_emplace(pointer, Begin{nullptr, nullptr, 0, num_begun_});
  num_begun_ += is_new;
  place->second.region = known.region;
  place->second.storage = known.storage._unsafe_get_target();
  place->second.shift = known.shift;
}

// Fills in the region of another storage object over memory that we know; null if there is none.
Known* Memory::sharing(uintptr_t pointer, int64_t nbytes, bool made, Known& shared) {
  auto same = by_pointer_.find(pointer);
  if (same != by_pointer_.end() && lies_at(same->second.storage, known_, pointer)) {
    shared.region = same->second.region;
    shared.shift = same->second.shift;
    return &shared;
  }
  if (made) return nullptr;  // fresh from the allocator
  const Begin* best = nullptr;
  auto consider = [&](uintptr_t key, const Begin& other) {
    const auto begin = static_cast<uintptr_t>(other.region->pointer + other.shift);
    const bool overlaps = begin < pointer + static_cast<uintptr_t>(nbytes) && other.region->nbytes < BOUNDLESS &&
        pointer < begin + static_cast<uintptr_t>(other.region->nbytes);
    const bool lies_here = lies_at(other.storage, known_, begin);
    if (overlaps && lies_here && (best == nullptr || other.order < best->order)) best = &other;
    return lies_here && key == begin;
  };
  auto after = by_pointer_.lower_bound(pointer);
  for (auto next = after; next != by_pointer_.end() && next->first < pointer + static_cast<uintptr_t>(nbytes); ++next)
    consider(next->first, next->second);
  // Backwards up to the first that is alive: what began before it and reached as far would have shared its region.
  for (auto before = after; before != by_pointer_.begin();) {
    --before;
    if (consider(before->first, before->second)) break;
    Known* gone = find(before->second.storage);
    if (gone == nullptr || gone->storage.expired()) before = by_pointer_.erase(before);
  }
  if (best == nullptr) return nullptr;
  const RegionPtr& region = best->region;
  const auto begin = static_cast<int64_t>(pointer);
  if (begin < region->pointer || begin + nbytes > region->pointer + region->nbytes) region->nbytes = BOUNDLESS;
  shared.shift = begin - region->pointer;
  shared.region = region;
  return &shared;
}

void Memory::resized(const at::Tensor& tensor) {
  Known* entry = find(tensor.storage().unsafeGetStorageImpl());
  if (entry == nullptr) return;
  Region& region = *entry->region;
  const uintptr_t pointer = address_of(tensor);
  auto old = by_pointer_.find(static_cast<uintptr_t>(region.pointer));
  if (region.pointer && old != by_pointer_.end() && old->second.storage == tensor.storage().unsafeGetStorageImpl())
    by_pointer_.erase(old);
  region.pointer = static_cast<int64_t>(pointer);
  region.nbytes = static_cast<int64_t>(tensor.storage().nbytes());
  if (pointer) put(pointer, *entry);
}

void Memory::sweep() {
  for (auto entry = by_pointer_.begin(); entry != by_pointer_.end();) {
    Known* known = find(entry->second.storage);
    entry = known == nullptr || known->storage.expired() ? by_pointer_.erase(entry) : std::next(entry);
  }
  for (auto entry = known_.begin(); entry != known_.end();)
    entry = entry->second.storage.expired() ? known_.erase(entry) : std::next(entry);
  sweep_at_ = 2 * known_.size() + SWEEP_AFTER;
}

void Memory::close() {
  by_pointer_.clear();
  known_.clear();
}

void bind_memory(py::module_& module) {
  const auto as_tuple = [](Known* known) -> py::object {
    if (known == nullptr) return py::none();
    return py::make_tuple(known->region, reinterpret_cast<uintptr_t>(known->storage._unsafe_get_target()), known->shift);
  };
  py::class_<Memory, std::shared_ptr<Memory>>(module, "Memory")
      .def(py::init<>())
      .def("get", [as_tuple](Memory& m, uintptr_t storage) { return as_tuple(m.find(reinterpret_cast<c10::StorageImpl*>(storage))); })
      .def("adopt", [as_tuple](Memory& m, const at::Tensor& tensor, const py::object&, bool made) { return as_tuple(m.adopt(tensor, made)); })
      .def("resized", &Memory::resized)
      .def("sweep", &Memory::sweep)
      .def("close", &Memory::close)
      .def("__len__", &Memory::size);
}

}  // namespace opguard
