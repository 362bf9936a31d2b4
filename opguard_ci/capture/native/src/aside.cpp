#include "aside.h"

#include <Python.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/Type.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <thread>
#include <typeindex>

namespace opguard {

namespace {

constexpr size_t MAX_WAITING = size_t(32) << 20;  // bytes
constexpr auto PATIENCE = std::chrono::microseconds(60);  // to wake a thread takes half of it

Aside* of_this_process = nullptr;
c10::DeleterFnPtr freeing = nullptr;  // torch's own

// Look again and again for a while; whether it came.
template <class Came>
bool look_out(const Came& came) {
  const auto until = std::chrono::steady_clock::now() + PATIENCE;
  do {
    for (int i = 0; i < 32; ++i) {
      if (came()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

bool has_processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 1;
}

}  // namespace

size_t Aside::min_bytes = size_t(1) << 17;

Aside& Aside::here() {
  if (of_this_process == nullptr) {
    of_this_process = new Aside(0);  // for ever: memory may be freed after everything else
    freeing = c10::GetCPUAllocator()->raw_deleter();
    pthread_atfork(before_fork, after_fork, in_child);
  }
  return *of_this_process;
}

Aside::Aside(uint64_t begun) : begun_(begun), done_(begun) {}

// The lock is held.
bool Aside::starts() {
  if (started_ || refused_) return started_;
  if (freeing == nullptr || !has_processors()) {
    refused_ = true;
    return false;
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
  try {
    buffer_.resize(Values::CHUNK);
    std::thread([this] { run(); }).detach();
    started_ = true;
  } catch (const std::exception&) {
    refused_ = true;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started_;
}

void Aside::run() {
  pthread_setname_np(pthread_self(), "opguard-aside");
  std::unique_lock lock(mutex_);
  while (true) {
    if (readings_.empty()) {
      const uint64_t done = done_.load(std::memory_order_relaxed);
      lock.unlock();
      look_out([&] { return begun_.load(std::memory_order_relaxed) != done || ends_; });
      lock.lock();
      more_.wait(lock, [this] { return !readings_.empty() || ends_; });
    }
    if (readings_.empty()) {
      started_ = false;
      done_one_.notify_all();
      return;
    }
    const std::shared_ptr<Reading> reading = std::move(readings_.front());
    readings_.pop_front();
    lock.unlock();
    reading->value = reading->is_contiguous
        ? Values::digest(reading->first, reading->nbytes, reading->salt)
        : Values::digest(reading->first, reading->layout, reading->size, reading->salt, buffer_.data());
    lock.lock();
    waiting_bytes_ -= reading->nbytes;
    done_.store(reading->number, std::memory_order_release);
    done_one_.notify_all();
  }
}

std::shared_ptr<const Aside::Reading> Aside::begin(const at::Tensor& tensor, const char* first, uint64_t salt) {
  release();
  const size_t nbytes = tensor.nbytes();
  const auto reading = std::make_shared<Reading>(Reading{first, tensor.itemsize(), nbytes, tensor.is_contiguous(), {}, salt});
  if (!reading->is_contiguous) reading->layout = layout_of(tensor.sizes(), tensor.strides());
  {
    const std::lock_guard lock(mutex_);
    if (!starts()) return nullptr;
    if (waiting_bytes_ && waiting_bytes_ + nbytes > MAX_WAITING) return nullptr;
    reading->number = begun_.load(std::memory_order_relaxed) + 1;
    if (!watch(tensor, reading->number)) return nullptr;
    waiting_bytes_ += nbytes;
    readings_.push_back(reading);
    begun_.store(reading->number, std::memory_order_relaxed);
  }
  more_.notify_one();
  return reading;
}

void Aside::wait(uint64_t number) {
  if (look_out([&] { return done_.load(std::memory_order_acquire) >= number; })) return;
  std::unique_lock lock(mutex_);
  done_one_.wait(lock, [&] { return done_.load(std::memory_order_relaxed) >= number; });
}

// Have whoever frees the memory wait. The lock is held.
bool Aside::watch(const at::Tensor& tensor, uint64_t number) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  c10::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
  auto known = watched_.find(memory.get_context());
  if (known != watched_.end()) {
    if (memory.get_deleter() != free_when_read) return false;
    known->second.last = number;
    return true;
  }
  if (!memory.compare_exchange_deleter(freeing, free_when_read)) return false;
  watched_.emplace(memory.get_context(), Watched{tensor.storage().getWeakStorageImpl(), number});
  return true;
}

// Memory that was read is freed as ever.
void Aside::release() {
  const uint64_t done = done_.load(std::memory_order_acquire);
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;  // let go of after the lock: that may free the memory
  const std::lock_guard lock(mutex_);
  for (auto next = watched_.begin(); next != watched_.end();) {
    if (next->second.last > done) {
      ++next;
      continue;
    }
    if (auto storage = next->second.storage.lock()) {
      c10::DataPtr& memory = storage->_mutable_data_ptr_no_checks();
      if (memory.get_context() == next->first) (void)memory.compare_exchange_deleter(free_when_read, freeing);
      held.push_back(std::move(storage));
    }
    next = watched_.erase(next);
  }
}

void Aside::free_when_read(void* context) {
  Aside& aside = here();
  uint64_t last = 0;
  {
    const std::lock_guard lock(aside.mutex_);
    auto known = aside.watched_.find(context);
    if (known != aside.watched_.end()) {
      last = known->second.last;
      aside.watched_.erase(known);
    }
  }
  if (last) aside.wait(last);
  freeing(context);
}

// A child has the memory, but not the thread; which ends before, for Python warns of forks of processes with threads.
void Aside::before_fork() {
  Aside& aside = *of_this_process;
  std::unique_lock lock(aside.mutex_);
  aside.ends_ = true;
  aside.more_.notify_one();
  aside.done_one_.wait(lock, [&] { return !aside.started_; });
  aside.ends_ = false;
  lock.release();
}

void Aside::after_fork() { of_this_process->mutex_.unlock(); }

void Aside::in_child() { of_this_process = new Aside(of_this_process->begun_.load()); }

namespace {

// Whether torch runs the backward pass: no dispatch mode, no handler of a subclass, no hook or finalizer of the program's.
bool is_called_by_engine() {
  static PyObject* const engine = [] {
    const py::object run = py::getattr(py::module_::import("torch.autograd.graph"), "_engine_run_backward", py::none());
    return py::object(py::getattr(run, "__code__", py::none())).release().ptr();  // None in a torch that has another
  }();
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  return code.ptr() == engine;
}

// Goes with a backward pass that fails.
struct End {
  ~End() { Aside::here().wait_for_all(); }
};

}  // namespace

bool is_torch_alone(uint64_t first_node) {
  using namespace torch::autograd;
  thread_local int last = -1;
  thread_local bool found = false;
  if (!is_called_by_engine()) return false;
  const int id = get_current_graph_task_id();
  if (id == last) return found;
  last = id;
  found = false;
  const auto* nodes = get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr || c10::impl::TorchDispatchModeTLS::stack_len() != 0) return false;
  if (PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) != nullptr) return false;
  static std::unordered_map<std::type_index, bool> kinds;
  for (Node* node : *nodes) {
    const bool has_hooks = !node->pre_hooks().empty() || !node->post_hooks().empty() || !node->tensor_pre_hooks().empty() ||
        !node->retains_grad_hooks().empty() || node->tensor_post_acc_grad_hooks() != nullptr;
    if (has_hooks || node->sequence_nr() < first_node) return false;
    auto known = kinds.find(typeid(*node));
    if (known == kinds.end()) {
      const std::string name = c10::demangle(typeid(*node).name());
      const bool is_torch = name.rfind("torch::autograd::generated::", 0) == 0 || name == "torch::autograd::AccumulateGrad" ||
          name == "torch::autograd::GraphRoot" || name == "torch::autograd::CopyBackwards" || name == "torch::autograd::CopySlices";
      known = kinds.emplace(typeid(*node), is_torch).first;
    }
    if (!known->second) return false;
  }
  Engine::get_default_engine().queue_callback([end = std::make_shared<End>()] { Aside::here().wait_for_all(); });
  return found = true;
}

}  // namespace opguard
