#include "launch.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "memory.h"

namespace opguard {

namespace {

constexpr int64_t MANY = int64_t(1) << 24;  // as in fingerprint/cuda.py
constexpr int64_t WORD = 8;
constexpr size_t MAX_PLANS = 4096;
constexpr size_t MAX_PARAMETERS = 16;

// The driver's own interface, which torch has loaded: no header or library of CUDA is needed to compile this.
struct Driver {
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  using IsCapturing = int (*)(void*, int*);
  Launch launch = nullptr;
  IsCapturing is_capturing = nullptr;
};

const Driver& driver() {
  static const Driver known = [] {
    Driver found;
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return found;
    found.launch = reinterpret_cast<Driver::Launch>(dlsym(library, "cuLaunchKernel"));
    found.is_capturing = reinterpret_cast<Driver::IsCapturing>(dlsym(library, "cuStreamIsCapturing"));
    return found;
  }();
  return known;
}

uint64_t address_of_data(const at::Tensor& tensor) {
  return address_of(tensor) + static_cast<uint64_t>(tensor.storage_offset()) * tensor.itemsize();
}

unsigned chunks(int64_t nbytes, int64_t chunk) { return static_cast<unsigned>((nbytes + chunk - 1) / chunk); }

}  // namespace

Launcher::Launcher() {
  if (driver().launch == nullptr || driver().is_capturing == nullptr) throw std::runtime_error("no driver of CUDA");
}

void Launcher::open(int device, int64_t chunk, py::object planner) {
  devices_[device].chunk = chunk;
  devices_[device].planner = std::move(planner);
}

Launcher::Kernel Launcher::kernel_of(const py::tuple& kernel) {
  return {reinterpret_cast<void*>(py::cast<uintptr_t>(kernel[0])), py::cast<unsigned>(kernel[1]), py::cast<unsigned>(kernel[2])};
}

void Launcher::learn_one(int device, int unit, const py::tuple& kernel) { devices_[device].by_unit[unit] = kernel_of(kernel); }

void Launcher::learn_many(int device, const py::tuple& kernel) { devices_[device].many = kernel_of(kernel); }

void Launcher::begin(int index, py::object page) {
  Device& device = devices_[index];
  const auto number = [&](const char* name) { return py::cast<uint64_t>(page.attr(name)); };
  device.first = static_cast<int64_t>(number("first"));
  device.capacity = static_cast<int64_t>(number("capacity"));
  device.slots = number("address");
  device.table = number("table_address");
  const auto memory = [&](const char* name) { return py::cast<uintptr_t>(page.attr(name).attr("ctypes").attr("data")); };
  device.count = reinterpret_cast<int64_t*>(memory("taken"));
  device.sizes = reinterpret_cast<uint64_t*>(memory("sizes"));
  device.salts = reinterpret_cast<uint64_t*>(memory("salts"));
  device.used_on.clear();
  device.page = std::move(page);
}

void Launcher::end(int device) { devices_[device].page = py::object(); }

// The stream that operators of this thread run on; null in `found` if nothing may be started there now.
void* Launcher::current_stream(Device& device, int index) {
  const auto* guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  const int64_t id = guard->getStream(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index))).id();
  auto known = device.streams.find(id);
  if (known == device.streams.end()) {
    const auto raw = py::module_::import("torch").attr("_C").attr("_cuda_getCurrentRawStream")(index);
    known = device.streams.emplace(id, reinterpret_cast<void*>(py::cast<uintptr_t>(raw))).first;
  }
  if (std::find(device.used_on.begin(), device.used_on.end(), id) == device.used_on.end()) {
    device.page.attr("streams").attr("add")(reinterpret_cast<uintptr_t>(known->second));
    device.used_on.push_back(id);
  }
  return known->second;
}

bool Launcher::start(const Kernel& kernel, unsigned x, unsigned y, void* stream, void** parameters) const {
  const py::gil_scoped_release free;  // the driver may have to wait for the device
  return driver().launch(kernel.function, x, y, 1, kernel.threads, 1, 1, kernel.shared, stream, parameters, nullptr) == 0;
}

uint64_t Launcher::salt(c10::ScalarType dtype) {
  uint64_t& known = salts_[static_cast<size_t>(dtype)];
  if (!known) {
    const auto type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
    known = py::cast<uint64_t>(py::module_::import("opguard_ci.capture.fingerprint.mix64").attr("salt")(type));
  }
  return known;
}

// The next row of the page, for a tensor. There is room.
int64_t Launcher::take(Device& device, const at::Tensor& tensor) {
  const uint64_t salted = salt(tensor.scalar_type());
  const int64_t row = (*device.count)++;
  device.sizes[row] = tensor.nbytes();
  device.salts[row] = salted;
  return row;
}

std::vector<int64_t> Launcher::queue(const std::vector<const at::Tensor*>& tensors) {
  std::vector<int64_t> handles(tensors.size(), 0);
  const auto* guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  const int index = guard->getDevice().index();
  auto found = devices_.find(index);
  if (found == devices_.end()) return handles;
  Device& device = found->second;
  if (!device.page || !device.planner) return handles;
  if (*device.count + static_cast<int64_t>(tensors.size()) > device.capacity) return handles;  // another page is needed
  void* stream = current_stream(device, index);
  int capturing = 0;
  if (driver().is_capturing(stream, &capturing) != 0 || capturing) return handles;
  const auto is_here = [&](const at::Tensor& tensor) {
    return tensor.is_cuda() && tensor.get_device() == index && tensor.nbytes() && address_of(tensor);
  };
  std::vector<const at::Tensor*> small;
  std::vector<size_t> places;
  if (tensors.size() > 1)
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = *tensors[i];
      if (!is_here(tensor) || !tensor.is_contiguous() || static_cast<int64_t>(tensor.nbytes()) > MANY) continue;
      if (address_of_data(tensor) % WORD) continue;
      small.push_back(&tensor);
      places.push_back(i);
    }
  if (small.size() > 1) {
    std::vector<int64_t> of_small(small.size(), 0);
    if (together(device, small, stream, of_small))
      for (size_t n = 0; n < places.size(); ++n) handles[places[n]] = of_small[n];
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (handles[i] || !is_here(*tensors[i])) continue;
    if (*device.count >= device.capacity) break;
    handles[i] = tensors[i]->is_contiguous() ? one(device, *tensors[i], stream) : strided(device, *tensors[i], stream);
  }
  return handles;
}

int64_t Launcher::one(Device& device, const at::Tensor& tensor, void* stream) {
  const uint64_t address = address_of_data(tensor);
  const int unit = address & 15 ? static_cast<int>(address & -address) : 16;
  auto kernel = device.by_unit.find(unit);
  if (kernel == device.by_unit.end()) return 0;  // to be compiled
  const int64_t row = take(device, tensor);
  uint64_t data = address, slot = device.slots + static_cast<uint64_t>(row * WORD), none = 0;
  auto nbytes = static_cast<int64_t>(tensor.nbytes()), start_word = int64_t(0);
  void* parameters[] = {&data, &slot, &nbytes, &start_word, &none, &none};
  return start(kernel->second, chunks(nbytes, device.chunk), 1, stream, parameters) ? ~(device.first + row) : 0;
}

bool Launcher::together(Device& device, const std::vector<const at::Tensor*>& tensors, void* stream, std::vector<int64_t>& handles) {
  if (device.many.function == nullptr) return false;
  const int64_t first = *device.count;
  auto* entries = reinterpret_cast<int64_t*>(device.table) + 2 * first;
  int64_t largest = 0;
  for (size_t n = 0; n < tensors.size(); ++n) {
    handles[n] = ~(device.first + take(device, *tensors[n]));
    const auto nbytes = static_cast<int64_t>(tensors[n]->nbytes());
    entries[2 * n] = static_cast<int64_t>(address_of_data(*tensors[n]));
    entries[2 * n + 1] = nbytes;
    largest = std::max(largest, nbytes);
  }
  uint64_t table = device.table + static_cast<uint64_t>(first * 2 * WORD), slots = device.slots + static_cast<uint64_t>(first * WORD), none = 0;
  void* parameters[] = {&table, &slots, &none, &none};
  const auto count = static_cast<unsigned>(tensors.size());
  return start(device.many, count, chunks(largest, device.chunk), stream, parameters);
}

const Launcher::Plan& Launcher::plan(Device& device, const at::Tensor& tensor, uint64_t address) {
  const int64_t aligned = address & 15 ? (address & 7 ? 0 : 1) : 2;
  const int64_t key = strided_form_of(tensor) * 3 + aligned;
  auto known = device.plans.find(key);
  if (known != device.plans.end()) return known->second;
  if (device.plans.size() >= MAX_PLANS) device.plans.clear();
  Plan made;
  const auto shape = py::tuple(py::cast(tensor.sizes().vec())), strides = py::tuple(py::cast(tensor.strides().vec()));
  py::object found = py::none();
  try {
    found = device.planner(shape, strides, tensor.itemsize(), address);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C; whatever a compiler runs into, Python meets it again and says so
  }
  if (!found.is_none()) {
    const auto parts = py::cast<py::tuple>(found);
    made.kernel = kernel_of(parts[0]);
    made.programs = py::cast<unsigned>(parts[1]);
    made.arguments = py::cast<std::vector<int64_t>>(parts[2]);
  }
  return device.plans.emplace(key, std::move(made)).first->second;
}

int64_t Launcher::strided(Device& device, const at::Tensor& tensor, void* stream) {
  const uint64_t address = address_of_data(tensor);
  const Plan& known = plan(device, tensor, address);
  if (known.kernel.function == nullptr || known.arguments.size() + 4 > MAX_PARAMETERS) return 0;
  const int64_t row = take(device, tensor);
  uint64_t data = address, slot = device.slots + static_cast<uint64_t>(row * WORD), none = 0;
  std::vector<int64_t> arguments = known.arguments;  // the plan may go while the lock of Python is free
  void* parameters[MAX_PARAMETERS] = {&data, &slot};
  size_t count = 2;
  for (int64_t& argument : arguments) parameters[count++] = &argument;
  parameters[count++] = &none;
  parameters[count] = &none;
  const Kernel kernel = known.kernel;
  return start(kernel, known.programs, 1, stream, parameters) ? ~(device.first + row) : 0;
}

void bind_launch(py::module_& module) {
  py::class_<Launcher, std::shared_ptr<Launcher>>(module, "Launcher")
      .def(py::init<>())
      .def("open", &Launcher::open)
      .def("learn_one", &Launcher::learn_one)
      .def("learn_many", &Launcher::learn_many)
      .def("begin", &Launcher::begin)
      .def("end", &Launcher::end)
      .def("queue", [](Launcher& launcher, const py::list& tensors) {
        std::vector<const at::Tensor*> given;
        given.reserve(tensors.size());
        for (const auto& tensor : tensors) given.push_back(&THPVariable_Unpack(tensor.ptr()));
        return launcher.queue(given);
      });
}

}  // namespace opguard
