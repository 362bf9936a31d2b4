// Records the ordinary calls of threads that a recorder watches, before torch hands them to Python; and the module.
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>

#include "core.h"

namespace opguard {

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
