// Starts the kernels that fingerprint tensors of a device: what fingerprint/cuda.py says, compiled.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <unordered_map>
#include <vector>

#include "region.h"

namespace opguard {

class Launcher {
 public:
  Launcher();
  // Begin to fingerprint the tensors of one call; their handles, 0 for those that are left to Python. The session's lock
  // is held.
  std::vector<int64_t> queue(const std::vector<const at::Tensor*>& tensors);

  // A device has these kernels; chunk: bytes of a program, planner: how to read what is not contiguous.
  void open(int device, int64_t chunk, py::object planner);
  void learn_one(int device, int unit, const py::tuple& kernel);
  void learn_many(int device, const py::tuple& kernel);
  // A page of slots is in use on a device.
  void begin(int device, py::object page);
  // None is.
  void end(int device);

 private:
  struct Kernel {
    void* function = nullptr;
    unsigned threads = 0, shared = 0;
  };
  struct Plan {  // of a tensor that is not contiguous; no function: Python's to do
    Kernel kernel;
    unsigned programs = 0;
    std::vector<int64_t> arguments;
  };
  struct Device {
    int64_t chunk = 0;
    py::object planner, page;
    Kernel many;
    std::map<int, Kernel> by_unit;  // by how many bytes addresses are aligned to
    std::unordered_map<int64_t, Plan> plans;
    std::unordered_map<int64_t, void*> streams;  // by torch's number
    std::vector<int64_t> used_on;                // streams that the page knows of
    int64_t first = 0, capacity = 0;
    uint64_t slots = 0, table = 0;
    int64_t* count = nullptr;
    uint64_t *sizes = nullptr, *salts = nullptr;
  };

  void* current_stream(Device& device, int index);
  bool start(const Kernel& kernel, unsigned x, unsigned y, void* stream, void** parameters) const;
  int64_t take(Device& device, const at::Tensor& tensor);
  int64_t one(Device& device, const at::Tensor& tensor, void* stream);
  int64_t strided(Device& device, const at::Tensor& tensor, void* stream);
  bool together(Device& device, const std::vector<const at::Tensor*>& tensors, void* stream, std::vector<int64_t>& handles);
  const Plan& plan(Device& device, const at::Tensor& tensor, uint64_t address);
  uint64_t salt(c10::ScalarType dtype);
  static Kernel kernel_of(const py::tuple& kernel);

  std::map<int, Device> devices_;
  std::array<uint64_t, static_cast<size_t>(c10::ScalarType::NumOptions)> salts_{};
};

void bind_launch(py::module_& module);

}  // namespace opguard
